package ingest

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// largeServer is a server that takes larger messages than others.
func largeServer(t *testing.T) *nats.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		MaxPayload: 32 << 20, MaxPending: 128 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(waittest.Patience) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// TestAMessageLargerThanAPull has a message as large as its server takes among
// ordinary ones.
func TestAMessageLargerThanAPull(t *testing.T) {
	n := newNATSBench(t, largeServer(t))
	p, e := n.worker(1, nil)
	n.run(p, e, 20)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	large := event.Event{ID: 1, Kind: event.Stored, Tier: event.Device}
	for range 1 << 20 {
		large.Engine, large.Local = append(large.Engine, rng.Uint64()), append(large.Local, rng.Uint64())
	}
	data := event.AppendBatch(nil, &event.Batch{Space: testSpace, Worker: 2, Incarnation: 1, Events: []event.Event{large}})
	if len(data) <= pullBytes {
		t.Fatalf("%d bytes are not many", len(data))
	}
	if _, err := n.js.Publish(deadline(t), stream.Subject("default", testSpace, 2), data); err != nil {
		t.Fatal(err)
	}
	n.run(p, e, 20)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.drained(r)
	stats := r.set.Lookup(testSpace).Stats()
	if stats.Outcome.Stored < len(large.Engine) {
		t.Errorf("%+v", stats.Outcome)
	}
}

// TestAStreamThatWasIdleIsNotStalled: it is not since a stream was read to its end that it gets
// nothing, but since it was seen to have more. The looks are far apart where --discover-every
// is, or the server is late.
func TestAStreamThatWasIdleIsNotStalled(t *testing.T) {
	const after = 10 * time.Second
	var i idle
	now := time.Now()
	at := func(d time.Duration, read, end uint64, stalled bool) {
		t.Helper()
		i.look(now.Add(d), read, read, end)
		if err := i.stalled(now.Add(d), after, read, read); err != nil != stalled {
			t.Errorf("after %v, read to %d of %d: %v", d, read, end, err)
		}
	}
	at(0, 5, 5, false)
	at(time.Minute, 5, 6, false) // its next message is on its way
	at(time.Minute+after-1, 5, 7, false)
	at(time.Minute+after, 5, 7, true)
	at(2*time.Minute, 6, 7, false) // it gets on
	at(2*time.Minute+after, 6, 7, true)
	at(3*time.Minute, 7, 7, false)
	at(4*time.Minute, 7, 8, false)
}

// TestAReaderThatGetsNothingSaysSo has a server that gives a reader nothing of a
// stream that grows, as when its consumer is paused: readiness ends, and comes
// back with a new consumer.
func TestAReaderThatGetsNothingSaysSo(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 10)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := n.config("one", r, nil)
	cfg.StallAfter = 200 * time.Millisecond
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	n.converged(r)
	waittest.For(t, "ready", func() bool { return in.Ready() == nil })
	if _, err := n.js.PauseConsumer(deadline(t), stream.Name("default", testSpace), "replica_one", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	unready := make(chan bool)
	go func() {
		for in.Ready() == nil {
			runtime.Gosched()
		}
		close(unready)
	}()
	n.run(p, e, 10)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-unready:
	case <-time.After(waittest.Patience):
		t.Fatal("ready, although it gets nothing")
	}
	n.converged(r)
	waittest.For(t, "ready again", func() bool { return in.Ready() == nil })
	if r.counter(`kvatlas_ingest_reader_resets_total{reason="idle"}`) == 0 {
		t.Error("it has got on without a new consumer")
	}
}
