package ingest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// TestEverySpaceStandsAlone has streams that are not read among others, before
// and after the start: a space that the index has no room for, and metadata that
// name none.
func TestEverySpaceStandsAlone(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	space := func(i int) event.Space {
		return event.Space{Model: fmt.Sprintf("m%d", i), BlockSize: testSpace.BlockSize}
	}
	ensure := func(from, to int) {
		for i := from; i < to; i++ {
			if _, err := stream.Ensure(deadline(t), n.js, "default", space(i), stream.Config{MaxBytes: 1 << 20}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ensure(0, 6)
	nameless := stream.Name("default", space(2))
	s, err := n.js.Stream(deadline(t), nameless)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.Metadata["kvatlas.block_size"] = "many"
	if _, err := n.js.UpdateStream(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	set := shard.New(shard.Config{MaxSpaces: 7})
	t.Cleanup(set.Close)
	check := func(r *replica, streams, refused int) {
		t.Helper()
		waittest.For(t, "every stream is read or refused", func() bool {
			return len(r.Streams()) == streams && len(r.Refused()) == refused
		})
		if !strings.Contains(strings.Join(r.Refused(), "\n"), nameless) {
			t.Errorf("refused: %q", r.Refused())
		}
		waittest.For(t, "ready", func() bool { return r.Ready() == nil })
	}
	r := n.open("early", set, nil)
	check(r, 5, 1)
	ensure(6, 9)
	check(r, 7, 2)
	again := shard.New(shard.Config{MaxSpaces: 3})
	t.Cleanup(again.Close)
	check(n.open("late", again, nil), 3, 6)
	if n := r.counter("kvatlas_ingest_refused_streams_total"); n != 2 {
		t.Errorf("%d refusals counted", n)
	}
}
