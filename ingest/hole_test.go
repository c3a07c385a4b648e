package ingest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A delivery that somebody else got, as one that is lost between the server and
// here, is noticed by the numbers of deliveries, and everything from there on is
// read again: no event is missed.
func TestALostDeliveryIsReadAgain(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 10)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.converged(r)
	taken := 0
	waittest.For(t, "a hole is noticed", func() bool {
		if c, err := n.js.Consumer(deadline(t), stream.Name("default", testSpace), "replica_one"); err == nil {
			batch, err := c.Fetch(3, jetstream.FetchMaxWait(50*time.Millisecond))
			n.run(p, e, 50)
			if err == nil {
				for range batch.Messages() {
					taken++
				}
			}
		}
		return r.counter(`kvatlas_ingest_reader_resets_total{reason="hole"}`) > 0
	})
	n.run(p, e, 50)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.converged(r)
	t.Logf("%d deliveries taken away, %d holes noticed", taken, r.counter(`kvatlas_ingest_reader_resets_total{reason="hole"}`))
}
