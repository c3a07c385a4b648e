package ingest

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// TestAStreamGrowsAsItFills has a stream that begins smaller than what comes: its
// publisher enlarges it when it is refused, and a replica before.
func TestAStreamGrowsAsItFills(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, func(c *publish.Config) { c.Stream.FirstBytes = 64 << 10 })
	n.run(p, e, 1000)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	info := func() stream.Info {
		i, err := stream.Get(deadline(t), n.js, stream.Name("default", testSpace))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := info(); i.Size <= 64<<10 || i.MaxBytes != 64<<20 || n.retries("refused") == 0 {
		t.Fatalf("%+v after %d refusals", i, n.retries("refused"))
	}
	r := n.open("one", nil, nil)
	n.converged(r)
	waittest.For(t, "the replica sees to it that there is room", func() bool {
		i := info()
		return i.Bytes < uint64(i.Size)/2
	})
}
