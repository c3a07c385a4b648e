package main

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// TestTheDocumentedPermissionsSuffice runs a publisher and an indexer with the
// permissions of docs/security.md: everything works, the server refuses
// nothing that they ask for, and refuses what they have no need of.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	nats := natstest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	pub := nats.Connect("publisher-7")
	w := registry.Worker{ID: 7, Model: "m", BlockSize: 16, Ranks: []uint32{0}, Transport: registry.JetStream, HashScheme: registry.Scheme(16)}
	p, err := publish.Open(ctx, publish.Config{Conn: pub, Space: w.Space(), Worker: w.ID, Heartbeat: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := registry.Register(ctx, w, registry.AnnounceConfig{Conn: pub, Lease: time.Second, Positions: p.Positions, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store := func(hashes ...uint64) {
		t.Helper()
		if err := p.Publish(ctx, event.Event{Kind: event.Stored, Engine: hashes, Local: hashes}); err != nil {
			t.Fatal(err)
		}
	}
	store(1, 2, 3)
	x := start(t, "--nats="+nats.URL("indexer"), "--snapshot-interval=1s")
	const find = `{"model":"m","hashes":[1,2,3,4]}`
	holds := func(want string) { t.Helper(); x.answers("POST", "/v1/find_matches", find, 200, want) }
	holds(`"longest":3`)
	store(1, 2, 3, 4)
	holds(`"longest":4`)
	// The end takes a snapshot, and the next start is from it.
	x.signal(syscall.SIGTERM)
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	x = start(t, "--nats="+nats.URL("indexer"))
	holds(`"longest":4`)
	// The publisher ends first: one that lives is asked for all it holds again.
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := a.Close(ctx); err != nil { // its blocks leave the index
		t.Error(err)
	}
	holds(`"workers":[]`)
	nats.Sufficed()

	nats.Denied(pub, "kvatlas.default.x.8", "kvatlas.default.x.8.live", "$KV.kvatlas_default_registry.drain.7", "$KV.kvatlas_default_registry.lease.x.8",
		"$JS.API.STREAM.PURGE.KV_kvatlas_default_registry", "$JS.API.STREAM.DELETE.KV_kvatlas_default_registry", "$JS.API.CONSUMER.CREATE.KV_kvatlas_default_registry")
	indexer := nats.Connect("indexer")
	nats.Denied(indexer, "kvatlas.default.x.7", "kvatlas.default.x.7.live", "kvatlas-route.default.x", "$JS.API.STREAM.DELETE.KV_kvatlas_default_registry", "other")
	nats.Deaf(pub, "kvatlas.default.>", "kvatlas-route.default.>", "$KV.>")
	nats.Deaf(indexer, "kvatlas-route.default.>", ">")
}
