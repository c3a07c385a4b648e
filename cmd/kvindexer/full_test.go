package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// A stream that is full, or whose disk is, takes no events and brings none. What it lacks
// is got from publishers past it; a worker that nobody answers for is stale, and shown so.
func TestAFullStream(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--registry-beat=200ms", "--gap-wait=1s", "--no-snapshots")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	space := event.Space{Model: "m", BlockSize: 16}
	nc := join(t, dir).Conn()
	pub, err := publish.Open(ctx, publish.Config{Conn: nc, Space: space, Worker: 1, Heartbeat: 50 * time.Millisecond, BatchEvents: 8,
		Stream: publish.StreamConfig{MaxBytes: 64 << 10}, MaxPending: 16 << 10, StreamWait: 200 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 6000
	for id := range uint64(blocks) {
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{id + 1}, []uint64{id + 1}); err != nil {
			t.Fatal(err)
		}
	}
	waittest.Until(t, func() error { // the stream takes 64 KiB, the worker holds more
		_, data, err := p.ask("GET", "/v1/workers", "")
		if err == nil && !strings.Contains(data, fmt.Sprintf(`"blocks":%d,`, blocks)) {
			err = fmt.Errorf("not %d blocks: %.300s", blocks, data)
		}
		return err
	})
	if n := p.metric("kvatlas_ingest_stale_ranks"); n != "0" {
		t.Errorf("%s ranks are stale", n)
	}
	// Of a worker that registers and does not answer nobody knows what the stream lacks.
	a, err := registry.Register(ctx, registry.Worker{ID: 2, Model: "m", BlockSize: 16, Ranks: []uint32{0}, Transport: registry.JetStream, Incarnation: 5},
		registry.AnnounceConfig{Conn: nc, Lease: 3 * time.Second, Positions: func() []event.Position { return []event.Position{{ID: 50}} }})
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		if n := p.metric("kvatlas_ingest_stale_ranks"); n != "1" {
			return fmt.Errorf("%s ranks are stale", n)
		}
		return nil
	})
	p.answers("GET", "/readyz?verbose", "", 200, "1 ranks are stale")
	if err := a.Close(ctx); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	_ = pub.Close(ended) // the stream does not take the rest
}
