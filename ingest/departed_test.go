package ingest

import (
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// feedAt is feed with the time at which the stream stored the message.
func (b *laneBench) feedAt(at time.Time, worker uint64, data []byte) {
	b.t.Helper()
	b.number++
	n, err := b.lane.window.add(b.ctx, entry{seq: b.number, bytes: len(data)})
	if err != nil {
		b.t.Fatal(err)
	}
	w := b.lane.works.Get().(*work)
	w.begin(n, worker, data)
	w.stored = at
	b.lane.handle(b.ctx, w)
}

// held returns how many blocks the index has of the worker.
func (b *laneBench) held(worker uint64) (n int) {
	b.settle()
	for _, r := range b.set.Lookup(testSpace).Ranks() {
		if r.Worker == worker {
			n += r.Held[event.Device]
		}
	}
	return n
}

func TestAWorkerThatLeftHoldsNothing(t *testing.T) {
	b := newLaneBench(t, nil)
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	for worker := uint64(1); worker <= 2; worker++ {
		b.feedAt(at(1), worker, batch(worker, 5, store(1, 1), store(2, 2)))
		b.feedAt(at(2), worker, batch(worker, 5, store(4, 4))) // held back: 3 is missing
	}
	b.lane.depart(b.ctx, departure{1, at(10)})
	b.lane.depart(b.ctx, departure{1, at(10)}) // told twice
	if n, other := b.held(1), b.held(2); n != 0 || other != 2 {
		t.Fatalf("it holds %d blocks, the other one %d", n, other)
	}
	if n := b.counter("kvatlas_ingest_departed_workers_total"); n != 1 {
		t.Errorf("%d departures", n)
	}
	if s := b.lane.rank(1, 0).status(); !s.Departed || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	// What was on its way when it left is ignored, and no gap.
	b.feedAt(at(9), 1, batch(1, 5, store(3, 3), store(4, 4), store(5, 5)))
	b.feedAt(at(10), 1, heartbeat(1, 5, event.Position{ID: 6}))
	if n := b.held(1); n != 0 || b.asked.count(Departed) != 0 {
		t.Fatalf("%d blocks, %d asked", n, b.asked.count(Departed))
	}
	// The same incarnation goes on: a full dump first.
	b.feedAt(at(11), 1, batch(1, 5, store(7, 7)))
	b.feedAt(at(12), 1, batch(1, 5, store(8, 8)))
	if n := b.held(1); n != 2 || b.asked.count(Departed) != 1 || b.asked.count(Gap) != 0 {
		t.Fatalf("%d blocks, asked %d times for a dump, %d times for a gap", n, b.asked.count(Departed), b.asked.count(Gap))
	}
	if s := b.lane.rank(1, 0).status(); s.Departed || !s.Incomplete || s.LastID != 8 {
		t.Errorf("%+v", s)
	}
	// Again, and its registration is back before its next event: a new
	// incarnation has told everything since its beginning.
	b.lane.depart(b.ctx, departure{1, at(20)})
	b.lane.depart(b.ctx, departure{worker: 1})
	if n := b.asked.count(Departed); n != 2 {
		t.Fatalf("asked %d times", n)
	}
	b.feedAt(at(21), 1, batch(1, 6, store(1, 1)))
	if s := b.lane.rank(1, 0).status(); s.Incomplete || b.held(1) != 1 || b.asked.count(Departed) != 2 {
		t.Fatalf("%+v, %d blocks", s, b.held(1))
	}
	b.feedAt(at(3), 2, batch(2, 5, store(3, 3)))
	b.finished()
}

// A replica that starts reads what a worker published before it left.
func TestEventsFromBeforeADepartureAreIgnored(t *testing.T) {
	left := time.Unix(1000, 0)
	b := newLaneBench(t, func(c *Config) {
		c.Left = func(sp event.Space, worker uint64) (time.Time, bool) { return left, sp == testSpace && worker == 1 }
	})
	for worker := uint64(1); worker <= 2; worker++ {
		b.feedAt(left.Add(-2*time.Second), worker, batch(worker, 5, store(1, 1), store(2, 2)))
		b.feedAt(left.Add(-time.Second), worker, batch(worker, 5, store(3, 3)))
	}
	if n, other := b.held(1), b.held(2); n != 0 || other != 3 {
		t.Fatalf("it holds %d blocks, the other one %d", n, other)
	}
	if n := b.counter(`kvatlas_ingest_ignored_events_total{reason="worker_left"}`); n != 3 {
		t.Errorf("%d events ignored", n)
	}
	b.feedAt(left.Add(time.Second), 1, batch(1, 5, store(4, 4)))
	b.finished()
	if n := b.held(1); n != 1 || b.asked.count(Departed) != 1 || b.asked.count(Gap) != 0 {
		t.Fatalf("%d blocks, asked %d times for a dump, %d times for a gap", n, b.asked.count(Departed), b.asked.count(Gap))
	}
}

// The index that a replica goes on with may hold blocks of a worker that left
// while it was away.
func TestAWorkerThatLeftSinceTheStartPosition(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	n.fleet(2, 300, nil)
	first := n.open("one", nil, nil)
	n.converged(first)
	first.Close()

	second := &replica{set: first.set, metrics: metrics.NewSet(), asked: &asked{}}
	cfg := n.config("one", second, first.Positions())
	left := time.Now()
	cfg.Left = func(_ event.Space, worker uint64) (time.Time, bool) { return left, worker == 1 }
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	holders := func() (workers []uint64) {
		for _, r := range second.set.Lookup(testSpace).Ranks() {
			workers = append(workers, r.Worker)
		}
		return slices.Compact(workers)
	}
	waittest.For(t, "its blocks are gone", func() bool { return slices.Equal(holders(), []uint64{0}) })
	for _, start := range in.Positions() {
		for _, r := range start.Ranks {
			if r.Worker == 1 {
				t.Errorf("the position of a void stream: %+v", r)
			}
		}
	}
	if !in.WorkerLeft(deadline(t), testSpace, 0, time.Now()) {
		t.Error("the space is not known")
	}
	waittest.For(t, "the other's are gone, too", func() bool { return len(holders()) == 0 })
	if in.WorkerLeft(deadline(t), event.Space{Model: "other", BlockSize: 16}, 1, time.Now()) {
		t.Error("a space without a stream is known")
	}
	in.Close()
	for range 2 * departures { // nobody takes them any more
		in.WorkerLeft(deadline(t), testSpace, 0, time.Now())
	}
}
