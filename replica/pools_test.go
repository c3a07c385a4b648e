package replica

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// What was said of a pool between the snapshot that a replica starts from and its start is about the
// pool, not about who said it: also the removals, which nobody says again.
func TestAStartKnowsPoolsBeforeItReadsOfThem(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	server, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // the test is over
	const self = 1 << 20
	key := event.Space{Model: "m", BlockSize: 4}
	// Others, who are looked at first: that takes longer than to read the first message.
	others := make([]registry.Worker, 2000)
	for i := range others {
		others[i] = registry.Worker{ID: uint64(i), Model: key.Model, BlockSize: key.BlockSize, Transport: registry.NoEvents,
			Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:9"}, Pools: []event.Pool{{Name: "store"}}}
	}
	pub, err := publish.Open(ctx, publish.Config{Conn: server.Conn(), Space: key, Worker: self, Heartbeat: -1, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close(ctx) //nolint:errcheck // the test is over
	here, err := registry.Register(ctx, registry.Worker{
		ID: self, Model: key.Model, BlockSize: key.BlockSize, Ranks: []uint32{0}, Transport: registry.JetStream, Incarnation: pub.Incarnation(),
		Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:9"}, Pools: []event.Pool{{Name: "store"}},
	}, registry.AnnounceConfig{Conn: server.Conn(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close(ctx) //nolint:errcheck // the test is over
	say := func(events ...event.Event) {
		t.Helper()
		for _, ev := range events {
			if err := pub.Publish(ctx, ev); err != nil {
				t.Fatal(err)
			}
		}
		if err := pub.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	start := func() *Replica {
		t.Helper()
		cfg, err := declared(t, "--data-dir", dir)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.PoolBlocks != 1<<23 {
			t.Errorf("%d blocks of a pool are followed", cfg.PoolBlocks)
		}
		cfg.Log, cfg.Static = quiet, others
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(ctx); err != nil {
			t.Fatal(err)
		}
		return r
	}
	deep := func(r *Replica, want uint32) {
		t.Helper()
		waittest.Until(t, func() error {
			var found shard.Result
			if sp := r.set.Lookup(key); sp != nil {
				sp.Find([]uint64{1, 2, 3}, &found)
			}
			if p := found.Pools(); len(p) != 1 || p[0].Depth != want {
				return fmt.Errorf("the pool is %v, want %d", p, want)
			}
			return r.Ready()
		})
	}
	names := []uint64{11, 12, 13}
	say(event.Event{Kind: event.Stored, Engine: names, Local: []uint64{1, 2, 3}}, event.Event{Kind: event.Stored, Engine: names, Tier: event.External})
	first := start()
	deep(first, 3)
	if err := first.Close(ctx); err != nil { // with a snapshot
		t.Fatal(err)
	}
	say(event.Event{Kind: event.Removed, Engine: names[1:], Tier: event.External})
	next := start()
	defer next.Close(ctx) //nolint:errcheck // the test is over
	deep(next, 1)
}
