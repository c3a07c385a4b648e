package e2e

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
)

type nowhere struct{}

func (nowhere) Publish(context.Context, event.Event) error { return nil }
func (nowhere) Flush(context.Context) error                { return nil }
func (nowhere) Close(context.Context) error                { return nil }

// The judge finds nothing wrong with an index that is right, and does find a
// single block that is missing, or one too many.
func TestJudgeSeesOneBlock(t *testing.T) {
	var fleet mocker.Config
	var http query.Config
	set := conf.New("kvtest", "A test.")
	fleet.Declare(set)
	http.Declare(set)
	record := filepath.Join(t.TempDir(), "events")
	if _, err := set.Run([]string{"--requests=60", "--speed=0", "--workers=2", "--dp-size=2", "--progress=none",
		"--max-tokens=4096", "--cache-blocks=600", "--events-out=" + record, "--http-listen=127.0.0.1:0"}, nil, os.Stdout); err != nil {
		t.Fatal(err)
	}
	err := mocker.Run(t.Context(), &fleet, mocker.Broker{
		Open:    func(context.Context, event.Space, uint64) (mocker.Publisher, error) { return nowhere{}, nil },
		Pending: func() int64 { return 0 },
	}, os.Stdout)
	if err != nil {
		t.Fatal(err)
	}

	shards := shard.New(shard.Config{})
	defer shards.Close()
	space, err := shards.Open(event.Space{Model: fleet.Model, BlockSize: uint32(fleet.Engine.BlockSize)})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(b *event.Batch) error {
		_, err := space.ApplyWait(t.Context(), b)
		return err
	}
	var last event.Batch // the last store of blocks that begin a prompt
	if err := mocker.ReadRecord(record, func(b *event.Batch) error {
		if ev := b.Events[0]; ev.Kind == event.Stored && !ev.HasParent {
			ev.Engine, ev.Local = slices.Clone(ev.Engine[:1]), slices.Clone(ev.Local[:1])
			last = event.Batch{Space: b.Space, Worker: b.Worker, Events: []event.Event{ev}}
		}
		return apply(b)
	}); err != nil {
		t.Fatal(err)
	}
	server, err := query.New(http, query.Deps{Index: query.Shards{Set: shards}, Log: slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := server.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }() // ends with Shutdown
	defer func() {
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	judge := func() Verdict {
		t.Helper()
		v, err := Judge(t.Context(), &fleet, record, "http://"+ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if v.Prompts != 60 || v.Matches == 0 || v.EvictedBlocks == 0 || v.AsTokens == 0 {
			t.Fatalf("the judge looked at too little: %+v", v)
		}
		return v
	}

	if v := judge(); v.Differences != 0 {
		t.Fatalf("%d differences from an index that is right; the first: %s", v.Differences, v.First)
	}
	removal := last
	removal.Events = []event.Event{{Kind: event.Removed, DPRank: last.Events[0].DPRank, Engine: last.Events[0].Engine}}
	if err := apply(&removal); err != nil {
		t.Fatal(err)
	}
	// One rank holds a block less, and each prompt that begins with it misses it.
	if v := judge(); v.Differences < 2 {
		t.Errorf("%d differences with a block missing: %s", v.Differences, v.First)
	}
	if err := apply(&last); err != nil {
		t.Fatal(err)
	}
	if v := judge(); v.Differences != 0 {
		t.Errorf("%d differences after the block is back: %s", v.Differences, v.First)
	}
	extra := last
	extra.Events = []event.Event{last.Events[0]}
	extra.Events[0].Engine, extra.Events[0].Local = []uint64{1}, []uint64{2}
	if err := apply(&extra); err != nil {
		t.Fatal(err)
	}
	if v := judge(); v.Differences != 1 {
		t.Errorf("%d differences with a block too many that no prompt has: %s", v.Differences, v.First)
	}
}
