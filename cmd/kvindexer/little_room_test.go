package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// Models that start together where there is little room leave some for those that come later,
// and for a kvindexer that starts again.
func TestModelsThatStartTogetherInLittleRoom(t *testing.T) {
	args := []string{"--data-dir", t.TempDir(), "--nats-max-store=4GiB"}
	p := start(t, args...)
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	b := join(t, args[1])
	model := func(i int) {
		pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Space: event.Space{Model: fmt.Sprint("model-", i), BlockSize: 16},
			Worker: uint64(i), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{1}, []uint64{1}); err != nil {
			t.Fatal(err)
		}
		if err := pub.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(n int) {
		t.Helper()
		for i := range n {
			p.answers("POST", "/v1/find_matches", fmt.Sprintf(`{"model":"model-%d","hashes":[1]}`, i), 200, fmt.Sprintf(`"worker_id":"%d"`, i))
		}
	}
	for i := range 6 {
		model(i)
	}
	holds(6)
	_ = p.cmd.Process.Kill()
	p.wait()
	p = start(t, args...)
	p.ready()
	waittest.For(t, "the publishers' connection is back", b.Conn().IsConnected)
	for i := range 2 {
		model(6 + i)
	}
	holds(8)
}

// Who was registered over HTTP is registered again in a store that was wiped.
func TestARegistrationOverHTTPOutlivesAWipedStore(t *testing.T) {
	s := newServed(t)
	p := start(t, "--data-dir", s.dir, "--no-snapshots", "--registry-beat=50ms")
	p.ready()
	p.answers("POST", "/register", s.overHTTP(0, 0), 201, "ok")
	s.host.answers("GET", "/v1/workers", "", 200, `"sources":["http"]`)
	s.stopped(func() {
		if err := os.RemoveAll(filepath.Join(s.dir, "jetstream")); err != nil {
			t.Fatal(err)
		}
	})
	s.host.answers("GET", "/v1/workers", "", 200, `"sources":["http"]`)
	p.answers("GET", "/v1/workers", "", 200, `"sources":["http"]`)
}

// A block that is named before its content is told is not held by that name: neither live nor
// after a restart.
func TestANameThatComesBeforeItsContent(t *testing.T) {
	args := []string{"--data-dir", t.TempDir(), "--no-snapshots"}
	p := start(t, args...)
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	pub, err := publish.Open(ctx, publish.Config{Conn: join(t, args[1]).Conn(), Space: event.Space{Model: "m", BlockSize: 16}, Worker: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range []event.Event{
		{Kind: event.Stored, Tier: event.HostPinned, Engine: []uint64{8}}, // nobody has said what 8 is
		{Kind: event.Stored, Engine: []uint64{8}, Local: []uint64{8}},
		{Kind: event.Stored, Engine: []uint64{9}, Local: []uint64{9}},
		{Kind: event.Stored, Tier: event.HostPinned, Engine: []uint64{9}},
		{Kind: event.Removed, Engine: []uint64{8}},
		{Kind: event.Removed, Engine: []uint64{9}},
	} {
		if err := pub.Publish(ctx, ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := pub.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"live", "restarted"} {
		p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[9]}`, 200, `"device":0,"host_pinned":1`)
		p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[8]}`, 200, `"workers":[]`)
		p.answers("GET", "/metrics", "", 200, `kvatlas_ingest_blocks_total{result="unknown_block"} 1`)
		if what == "live" {
			_ = p.cmd.Process.Kill()
			p.wait()
			p = start(t, args...)
			p.ready()
		}
	}
}
