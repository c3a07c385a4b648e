package ingest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// A stream that takes no events, for longer than publishers are set to wait: nobody who
// publishes is held up, and replicas ask the publishers. Once it takes events again all go
// on as if nothing had been.
func TestAStreamThatRefusesEventsIsPassedBy(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	same := func(r *replica) {
		t.Helper()
		waittest.For(t, "the replica holds what the worker does", func() bool {
			for _, k := range r.Ranks() {
				if k.Incomplete || k.Held > 0 {
					return false
				}
			}
			return digest(t, r.set) == n.truth.digest()
		})
	}
	r := n.open("one", nil, nil)
	p, e := n.worker(1, func(c *publish.Config) {
		c.Stream.MaxBytes, c.MaxPending, c.Heartbeat, c.StreamWait = 64<<10, 16<<10, 50*time.Millisecond, 200*time.Millisecond
	})
	n.run(p, e, 5000)
	if n.retries("refused") == 0 {
		t.Fatal("everything fitted")
	}
	refused := func() bool { return n.metrics.GetOrCreateGauge("kvatlas_publish_refused_streams", nil).Get() == 1 }
	if !refused() {
		t.Error("the stream does not count as one that refuses events")
	}
	same(r)
	n.run(p, e, 100)
	same(r)
	late := n.open("two", nil, nil) // it has of the stream what it took
	same(late)

	s, err := n.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	for flushed := false; !flushed; {
		if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(r.Streams()[0].Position+1)); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		flushed = p.Flush(soon) == nil
		cancel()
	}
	waittest.For(t, "the stream takes events", func() bool { return !refused() })
	n.run(p, e, 100)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	same(r)
	same(late)
}
