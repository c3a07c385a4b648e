package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/publish"
)

// A stream that nobody publishes into is deleted after what the setting says, and read again
// when somebody does. The least that the setting takes is a minute.
func TestStreamsThatNobodyPublishesInto(t *testing.T) {
	if s := os.Getenv("KVATLAS_TEST_SCALE"); s == "" || s == "1" {
		t.Skip("takes more than a minute; make nightly runs it")
	}
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--delete-streams-after=1m", "--registry-beat=200ms")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	nc := join(t, dir).Conn()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	space := event.Space{Model: "m", BlockSize: 16}
	store := func(worker uint64) {
		t.Helper()
		pub, err := publish.Open(ctx, publish.Config{Conn: nc, Space: space, Worker: worker, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{1}, []uint64{1}); err != nil {
			t.Fatal(err)
		}
		p.workerIs(worker, "unregistered false true")
		if err := pub.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	name := stream.Name("default", space)
	store(1)
	s, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	idle := time.Now()
	for {
		if _, err = js.Stream(ctx, name); err != nil {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			t.Fatal("nobody publishes, and the stream is there")
		}
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) || time.Since(idle) < 50*time.Second {
		t.Fatalf("after %v: %v", time.Since(idle), err)
	}
	p.answers("GET", "/readyz", "", 200, "ready")
	store(2)
}
