package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// Two publishers with one id are noticed, shown and logged, whether they register or
// not; the worker leaves the answers until one of them has been silent for a lease.
func TestTwoPublishersWithOneID(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--registry-beat=200ms", "--conflict-lease=1500ms")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 3*waittest.Patience)
	defer cancel()
	open := func(worker, block uint64, transport publish.Transport, r *publish.Registration) *publish.Publisher {
		t.Helper()
		pub, err := publish.Open(ctx, publish.Config{Conn: join(t, dir).Conn(), Space: event.Space{Model: "m", BlockSize: 16}, Worker: worker,
			Transport: transport, Heartbeat: 100 * time.Millisecond, Registration: r, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{block}, []uint64{block}); err != nil {
			t.Fatal(err)
		}
		return pub
	}
	const none = `"workers":[]`
	find := func(block, want string) {
		t.Helper()
		p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[`+block+`]}`, 200, want)
	}
	// A restart is none of two.
	first := open(1, 10, publish.JetStream, nil)
	find("10", `"worker_id":"1"`)
	if err := first.Close(ctx); err != nil {
		t.Error(err)
	}
	first = open(1, 11, publish.JetStream, nil)
	find("11", `"worker_id":"1"`)
	find("10", none)
	if n := p.metric("kvatlas_ingest_contested_ranks_total"); n != "0" {
		t.Fatalf("a restart counts as %s of two processes", n)
	}

	second := open(1, 12, publish.JetStream, nil)
	p.answers("GET", "/v1/workers", "", 200, `"conflict":"two processes publish as it`)
	p.answers("GET", "/v1/workers", "", 200, `"state":"contested"`)
	p.answers("GET", "/readyz?verbose", "", 200, "1 ranks are in conflict")
	p.waitLog("two processes publish as one rank, which leaves the answers until one of them is silent: give each worker an id of its own", "worker")
	find("11", none)
	find("12", none)
	if n := p.metric("kvatlas_ingest_contested_ranks"); n != "1" {
		t.Errorf("%s ranks are contested", n)
	}
	if err := second.Close(ctx); err != nil { // the older one is left
		t.Error(err)
	}
	find("11", `"worker_id":"1"`)
	find("12", none)
	if err := first.Close(ctx); err != nil {
		t.Error(err)
	}

	// Registered, without a stream: the newer one is left.
	registration := func() *publish.Registration {
		return &publish.Registration{Worker: registry.Worker{Ranks: []uint32{0}}, Lease: 500 * time.Millisecond, Keep: true}
	}
	first = open(2, 20, publish.CoreNATS, registration())
	find("20", `"worker_id":"2"`)
	second = open(2, 21, publish.CoreNATS, registration())
	p.answers("GET", "/v1/workers", "", 200, `"conflict":"two processes publish as it`)
	find("20", none)
	find("21", none)
	if err := first.Close(ctx); err != nil {
		t.Error(err)
	}
	find("21", `"worker_id":"2"`)
	if err := second.Close(ctx); err != nil {
		t.Error(err)
	}
}
