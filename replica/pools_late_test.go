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

// What a worker says of a pool before it is registered is about the pool: also the removals, which nobody says again.
func TestAWorkerThatIsHeardBeforeItsRegistration(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	server, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // the test is over
	key := event.Space{Model: "m", BlockSize: 4}
	cfg, err := declared(t, "--data-dir", dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = quiet
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer r.Close(ctx) //nolint:errcheck // the test is over
	pubs := make(map[uint64]*publish.Publisher)
	say := func(worker uint64, events ...event.Event) {
		t.Helper()
		if pubs[worker] == nil {
			pub, err := publish.Open(ctx, publish.Config{Conn: server.Conn(), Space: key, Worker: worker, Heartbeat: -1, Log: quiet})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { pub.Close(context.Background()) }) //nolint:errcheck // the test is over
			pubs[worker] = pub
		}
		for _, ev := range events {
			if err := pubs[worker].Publish(ctx, ev); err != nil {
				t.Fatal(err)
			}
		}
		if err := pubs[worker].Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	register := func(worker uint64) {
		t.Helper()
		here, err := registry.Register(ctx, registry.Worker{
			ID: worker, Model: key.Model, BlockSize: key.BlockSize, Transport: registry.JetStream, Incarnation: pubs[worker].Incarnation(),
			Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:9"}, Pools: []event.Pool{{Name: "store"}},
		}, registry.AnnounceConfig{Conn: server.Conn(), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { here.Close(context.Background()) }) //nolint:errcheck // the test is over
	}
	until := func(what string, f func() bool) {
		t.Helper()
		waittest.Until(t, func() error {
			if !f() {
				return fmt.Errorf("not yet: %s", what)
			}
			return nil
		})
	}
	deep := func(want uint32) func() bool {
		return func() bool {
			var found shard.Result
			if sp := r.set.Lookup(key); sp != nil {
				sp.Find([]uint64{1, 2, 3}, &found)
			}
			p := found.Pools()
			return len(p) == 1 && p[0].Depth == want
		}
	}
	read := func(worker, events uint64) func() bool {
		return func() bool {
			for _, rank := range r.ingest.Load().Ranks() {
				if rank.Worker == worker {
					return rank.LastID == events
				}
			}
			return false
		}
	}
	names := []uint64{11, 12, 13}
	say(1, event.Event{Kind: event.Stored, Engine: names, Local: []uint64{1, 2, 3}}, event.Event{Kind: event.Stored, Engine: names, Tier: event.External})
	register(1)
	until("the first has filled the pool", deep(3))
	say(2, event.Event{Kind: event.Removed, Engine: names[2:], Tier: event.External})
	until("the second is read", read(2, 1))
	if !deep(3)() {
		t.Error("one that names no pool has changed it")
	}
	register(2)
	until("the second is registered", deep(2))
}
