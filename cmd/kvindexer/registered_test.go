package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// A publisher that registers its worker needs nothing else: the worker is listed
// while the publisher lives, and leaves with its blocks when it is closed, or
// when its lease ends because it died, or because it was to be back and is not.
func TestPublishersThatRegisterTheirWorkers(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--registry-beat=200ms")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	open := func(worker uint64, b *broker.Broker, transport publish.Transport, r publish.Registration) *publish.Publisher {
		t.Helper()
		r.Worker = registry.Worker{Ranks: []uint32{0}, TotalBlocks: 500}
		pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Space: event.Space{Model: "m", BlockSize: 16}, Worker: worker, Transport: transport,
			Heartbeat: 50 * time.Millisecond, Registration: &r, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Registered(); err != nil {
			t.Error(err)
		}
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{worker}, []uint64{1}); err != nil {
			t.Fatal(err)
		}
		p.workerIs(worker, "live false true of 500")
		return pub
	}
	b := join(t, dir)
	stays := open(1, b, publish.JetStream, publish.Registration{})
	closed := open(2, b, publish.JetStream, publish.Registration{Lease: time.Hour})
	core := open(3, b, publish.CoreNATS, publish.Registration{Lease: time.Hour})
	kept := open(4, b, publish.JetStream, publish.Registration{Lease: 2 * time.Second, Keep: true})
	other := join(t, dir)
	died := open(5, other, publish.JetStream, publish.Registration{Lease: 2 * time.Second})

	for _, pub := range []*publish.Publisher{closed, core} {
		if err := pub.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := pub.Close(ctx); err != nil {
			t.Errorf("once more: %v", err)
		}
	}
	p.workerIs(2, "gone false false")
	p.workerIs(3, "gone false false")
	if err := kept.Close(ctx); err != nil {
		t.Error(err)
	}
	p.workerIs(4, "lost false false of 500")
	other.Conn().Close()
	p.workerIs(5, "lost false false of 500")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := died.Close(ended); err == nil {
		t.Error("nobody was told that the worker goes")
	}
	p.workerIs(1, "live false true of 500")
	p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, 200, `"workers":[{"worker_id":"1",`)
	if err := stays.Registered(); err != nil {
		t.Error(err)
	}
	if err := stays.Close(ctx); err != nil {
		t.Error(err)
	}
	p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, 200, `"workers":[]`)
}

// What cannot be registered does not publish either.
func TestAPublisherThatCannotRegister(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir)
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	b := join(t, dir)
	for _, r := range []publish.Registration{{Lease: time.Nanosecond}, {Worker: registry.Worker{Role: "cook"}}} {
		if pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Space: event.Space{Model: "m", BlockSize: 16}, Worker: 1, Registration: &r}); err == nil {
			t.Errorf("%+v is taken", r)
			_ = pub.Close(ctx)
		}
	}
	p.workerIs(1, "absent")
}
