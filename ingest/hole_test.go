package ingest

import (
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
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

// So are deliveries that are lost and that no other one follows, of a server whose heartbeats come.
func TestTheLastDeliveryIsLost(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	worker := uint64(0)
	publish := func() { // by one that is gone then, so that no heartbeat of its follows
		worker++
		p, e := n.worker(worker, nil)
		n.run(p, e, 1)
		if err := p.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := n.config("one", r, nil)
	cfg.patience = 100 * time.Millisecond
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	n.converged(r)
	waittest.For(t, "the last message goes to somebody else", func() bool {
		c, err := n.js.Consumer(deadline(t), stream.Name("default", testSpace), "replica_one")
		if err != nil {
			return false // it begins again, as the one before went on
		}
		batch, err := c.Fetch(1, jetstream.FetchMaxWait(200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		publish()
		taken := uint64(0)
		for msg := range batch.Messages() {
			md, err := msg.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			taken = md.Sequence.Stream
		}
		info, err := stream.Get(deadline(t), n.js, stream.Name("default", testSpace))
		return err == nil && taken == info.LastSeq
	})
	n.converged(r)
}
