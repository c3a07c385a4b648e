package ingest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// held returns how many blocks the index has of the worker.
func (b *partitionBench) held(worker uint64) (n int) {
	b.settle()
	for _, r := range b.set.Lookup(testSpace).Ranks() {
		if r.Worker == worker {
			n += r.Held[event.Device]
		}
	}
	return n
}

func TestAWorkerThatLeftHoldsNothing(t *testing.T) {
	b := newPartitionBench(t, nil)
	for worker := uint64(1); worker <= 2; worker++ {
		b.feedSeq(1, worker, batch(worker, 5, store(1, 1), store(2, 2)))
		b.feedSeq(2, worker, batch(worker, 5, store(4, 4))) // held back: 3 is missing
	}
	b.partition.applyChange(b.ctx, change{worker: 1, left: leftAt(10)})
	b.partition.applyChange(b.ctx, change{worker: 1, left: leftAt(10)}) // told twice
	if n, other := b.held(1), b.held(2); n != 0 || other != 2 {
		t.Fatalf("it holds %d blocks, the other one %d", n, other)
	}
	if n := b.counter("kvatlas_ingest_departed_workers_total"); n != 1 {
		t.Errorf("%d departures", n)
	}
	if s := b.partition.rank(1, 0).status(); !s.Is(follow.Departed) || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	// What was on its way when it left is ignored, and no gap.
	b.feedSeq(9, 1, batch(1, 5, store(3, 3), store(4, 4), store(5, 5)))
	b.feedSeq(10, 1, heartbeat(1, 5, event.Position{ID: 6}))
	if n := b.held(1); n != 0 || b.asked.count(Departed) != 0 {
		t.Fatalf("%d blocks, %d asked", n, b.asked.count(Departed))
	}
	// The same incarnation goes on: a full dump first.
	b.feedSeq(11, 1, batch(1, 5, store(7, 7)))
	b.feedSeq(12, 1, batch(1, 5, store(8, 8)))
	if n := b.held(1); n != 2 || b.asked.count(Departed) != 1 || b.asked.count(Gap) != 0 {
		t.Fatalf("%d blocks, asked %d times for a dump, %d times for a gap", n, b.asked.count(Departed), b.asked.count(Gap))
	}
	if s := b.partition.rank(1, 0).status(); s.Is(follow.Departed) || !s.Incomplete || s.LastID != 8 {
		t.Errorf("%+v", s)
	}
	// Again, and its registration is back before its next event: a new
	// incarnation has told everything since its beginning.
	b.partition.applyChange(b.ctx, change{worker: 1, left: leftAt(20)})
	b.partition.applyChange(b.ctx, change{worker: 1, ranks: []uint32{0}, back: true})
	if n := b.asked.count(Departed); n != 2 {
		t.Fatalf("asked %d times", n)
	}
	b.feedSeq(21, 1, batch(1, 6, store(1, 1)))
	if s := b.partition.rank(1, 0).status(); s.Incomplete || b.held(1) != 1 || b.asked.count(Departed) != 2 {
		t.Fatalf("%+v, %d blocks", s, b.held(1))
	}
	b.feedSeq(3, 2, batch(2, 5, store(3, 3)))
	b.finished()
}

// A replica that starts reads what a worker published before it left.
func TestEventsFromBeforeADepartureAreIgnored(t *testing.T) {
	b := newPartitionBench(t, func(c *Config) {
		c.Left = func(sp event.Space, worker uint64, _ uint32) (Departure, bool) {
			return leftAt(10), sp == testSpace && worker == 1
		}
	})
	for worker := uint64(1); worker <= 2; worker++ {
		b.feedSeq(8, worker, batch(worker, 5, store(1, 1), store(2, 2)))
		b.feedSeq(9, worker, batch(worker, 5, store(3, 3)))
	}
	if n, other := b.held(1), b.held(2); n != 0 || other != 3 {
		t.Fatalf("it holds %d blocks, the other one %d", n, other)
	}
	if n := b.counter(`kvatlas_ingest_ignored_events_total{reason="worker_left"}`); n != 3 {
		t.Errorf("%d events ignored", n)
	}
	b.feedSeq(11, 1, batch(1, 5, store(4, 4)))
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
	cfg.Left = func(_ event.Space, worker uint64, _ uint32) (Departure, bool) {
		return Departure{At: left}, worker == 1
	}
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
	if !in.WorkerLeft(deadline(t), testSpace, 0, nil, Departure{At: time.Now()}) {
		t.Error("the space is not known")
	}
	waittest.For(t, "the other's are gone, too", func() bool { return len(holders()) == 0 })
	if in.WorkerLeft(deadline(t), event.Space{Model: "other", BlockSize: 16}, 1, nil, Departure{At: time.Now()}) {
		t.Error("a space without a stream is known")
	}
	in.Close()
	for range 2 * changesQueued { // nobody takes them any more
		in.WorkerLeft(deadline(t), testSpace, 0, nil, Departure{At: time.Now()})
	}
}

// testStream is when the stream was made that a bench reads.
var testStream = time.Unix(5000, 0)

// leftAt is a departure when the stream ended at a sequence.
func leftAt(seq uint64) Departure {
	return Departure{At: time.Unix(1000, int64(seq)), Seq: seq, Created: testStream}
}

// feedSeq is feed with the message's sequence in the stream that is read.
func (b *partitionBench) feedSeq(seq, worker uint64, data []byte) {
	b.t.Helper()
	b.number++
	n, err := b.partition.source(0).window.add(b.ctx, entry{seq: b.number, bytes: len(data)})
	if err != nil {
		b.t.Fatal(err)
	}
	w := b.partition.works.Get().(*work)
	w.begin(worker, data)
	w.source, w.number = b.partition.source(0), n
	w.seq, w.stored, w.stream = seq, time.Now(), b.partition.source(0).stream().created
	b.partition.handle(b.ctx, w)
}

// What a replica reads of a rank that left is void up to where the stream was
// then, whatever the clocks say; what follows is no gap and waits for nothing,
// although much of its stream was never seen. A heartbeat is not an event.
func TestTheStreamAfterADeparture(t *testing.T) {
	created := time.Unix(5000, 0)
	left := Departure{At: time.Now().Add(time.Hour), Seq: 10, Created: created}
	for _, c := range []struct {
		name    string
		created time.Time
		void    []uint64 // sequences
		later   uint64   // one that is from after it
	}{
		{"the same stream", created, []uint64{3, 10}, 11},
		{"one made later", created.Add(time.Second), nil, 1},
		{"one made before", created.Add(-time.Second), []uint64{11, 12}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newPartitionBench(t, func(cfg *Config) {
				cfg.Left = func(_ event.Space, _ uint64, rank uint32) (Departure, bool) { return left, rank == 0 }
			})
			b.partition.source(0).reads(c.created)
			if c.later > 0 { // the reader of one made before is not told that
				b.partition.source(0).endsAt(c.created, 1)
			}
			for i, seq := range c.void {
				b.feedSeq(seq, 1, batch(1, 5, store(uint64(90+i), seq)))
			}
			b.feedSeq(20, 1, heartbeat(1, 5, event.Position{ID: 91}))
			b.feedSeq(20, 1, heartbeat(1, 5, event.Position{ID: 91}))
			s := b.partition.rank(1, 0).status()
			if n := b.held(1); n != 0 || s.Gaps+s.Events > 0 || !s.Is(follow.Departed) || b.asked.count(Departed) != 0 {
				t.Fatalf("%d blocks, %+v", n, s)
			}
			if c.later == 0 {
				return
			}
			for id := uint64(100); id < 103; id++ {
				b.feedSeq(c.later+id-100, 1, batch(1, 5, store(id, id)))
			}
			b.finished() // nothing is held
			s = b.partition.rank(1, 0).status()
			if n := b.held(1); n != 3 || s.Gaps > 0 || s.Is(follow.Departed) || !s.Incomplete || b.asked.count(Departed) != 1 || b.asked.count(Gap) != 0 {
				t.Fatalf("%d blocks, %d asked, %+v", n, b.asked.count(Departed), s)
			}
		})
	}
}

// A heartbeat that tells of events that nobody saw shows that the worker is back,
// and any does where nobody told that it left.
func TestHeartbeatsAfterADeparture(t *testing.T) {
	for _, silent := range []bool{false, true} {
		b := newPartitionBench(t, nil)
		left := leftAt(1)
		left.Silent = silent
		b.feedSeq(1, 1, batch(1, 5, store(1, 1), store(2, 2)))
		b.partition.applyChange(b.ctx, change{worker: 1, left: left})
		b.feedSeq(2, 1, heartbeat(1, 5, event.Position{ID: 2}))
		if n := b.asked.count(Departed); n != 0 && !silent || n != 1 && silent {
			t.Fatalf("silent %v: the same heartbeat, asked %d times", silent, n)
		}
		b.feedSeq(3, 1, heartbeat(1, 5, event.Position{ID: 3}))
		if n := b.asked.count(Departed); n != 1 || b.held(1) != 0 {
			t.Fatalf("silent %v: a later one, asked %d times", silent, n)
		}
		b.finished()
	}
}

// Nothing asks the publisher of a rank that left for what it holds, whatever it
// waited for before.
func TestNothingIsAskedOfARankThatLeft(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1)))
	r := b.partition.rank(1, 0)
	b.partition.step(b.ctx, r, func(k *follow.Rank, s *follow.Step) { k.Noted(s, false, true) })
	if b.partition.truncatedRanks.Load() != 1 {
		t.Fatal("the rank is not truncated")
	}
	b.partition.applyChange(b.ctx, change{worker: 1, left: Departure{At: time.Now()}})
	if b.partition.recoverTruncated(b.ctx) || b.partition.truncatedRanks.Load() != 0 {
		t.Error("a rank that left waits for memory")
	}
	b.partition.distrustPositions(b.ctx, b.partition.source(0), 1<<40) // the stream was made anew
	b.partition.notify(note{rank: r, era: r.follow.Era(), parent: true})
	b.settle()
	if b.asked.counts != nil {
		t.Errorf("asked: %v", b.asked.counts)
	}
	b.finished()
}

// One of a worker's ranks leaves: the other one stays, and the stream of the
// first is void.
func TestARankLeaves(t *testing.T) {
	b := newPartitionBench(t, nil)
	for n := range uint32(2) {
		ev := store(1, uint64(n))
		ev.DPRank = n
		b.feed(1, batch(1, 5, ev))
	}
	b.partition.applyChange(b.ctx, change{worker: 1, ranks: []uint32{1}, left: Departure{At: time.Now()}})
	if n := b.held(1); n != 1 || b.partition.rank(1, 0).follow.Gone() || !b.partition.rank(1, 1).follow.Gone() {
		t.Fatalf("%d blocks", n)
	}
	b.partition.applyChange(b.ctx, change{worker: 1, ranks: []uint32{0}, back: true})
	if !b.partition.rank(1, 1).follow.Gone() || b.asked.counts != nil {
		t.Error("another rank's registration brings it back")
	}
	b.partition.applyChange(b.ctx, change{worker: 1, ranks: []uint32{0, 1}, back: true})
	if b.partition.rank(1, 1).follow.Gone() || b.asked.count(Departed) != 1 {
		t.Error("its own does not")
	}
	b.finished()
}

// Ranks that left make room for others, and are void all the same when something
// of before comes.
func TestRanksThatLeftMakeRoom(t *testing.T) {
	now := time.Unix(1000, 0)
	gone := map[uint64]bool{}
	left := leftAt(10)
	b := newPartitionBench(t, func(c *Config) {
		c.MaxRanks = 3
		c.Left = func(_ event.Space, worker uint64, _ uint32) (Departure, bool) { return left, gone[worker] }
	})
	b.partition.now = func() time.Time { return now }
	tell := func(seq, worker, id uint64) { b.feedSeq(seq, worker, batch(worker, 5, store(id, id))) }
	for w := uint64(1); w <= 4; w++ {
		tell(w, w, 1)
	}
	if b.held(3) != 1 || b.held(4) != 0 {
		t.Fatal("the bound does not hold")
	}
	for w := uint64(1); w <= 2; w++ {
		gone[w] = true
		b.partition.applyChange(b.ctx, change{worker: w, left: left})
	}
	tell(11, 4, 1) // it is not looked again so soon
	now = now.Add(sweepEvery)
	tell(12, 4, 1)
	tell(9, 1, 2)
	tell(13, 2, 2) // one too many
	if b.held(4) != 1 || b.held(1) != 0 || len(b.partition.mu.ranks) != 3 || len(b.partition.byWorker) != 3 || !b.partition.rank(1, 0).follow.Gone() {
		t.Fatalf("%d ranks of %d workers, %d and %d blocks", len(b.partition.mu.ranks), len(b.partition.byWorker), b.held(4), b.held(1))
	}
	b.finished()
}

// lacking is a snapshot that has nothing of ranks, and something of a pool.
type lacking struct {
	start Start
	pool  event.Event
}

func (s lacking) Start() Start { return s.start }
func (s lacking) Close()       {}
func (s lacking) Rank(_ context.Context, id shard.RankID) (list []shard.Dumped, err error) {
	if id.Pool() {
		list = []shard.Dumped{{Event: s.pool, Copies: slices.Repeat([]uint32{1}, len(s.pool.Engine))}}
	}
	return list, nil
}

// A replica that was away while workers left takes up a snapshot that does not
// have them, or says that they left: they are gone, but for one that shows that it
// lives. What the snapshot has of a pool is there.
func TestASnapshotThatIsTakenUpLacksRanks(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	var pubs []*publish.Publisher
	for id := range uint64(4) {
		p, e := n.worker(id, nil)
		n.run(p, e, 100)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		pubs = append(pubs, p)
	}
	first := n.open("one", nil, nil)
	n.converged(first)
	first.Close()
	name := stream.Name("default", testSpace)
	before := first.Positions()
	for _, id := range []int{1, 3} { // these die
		if err := pubs[id].Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
		for rank := range uint32(2) {
			n.truth.apply(uint64(id), event.Event{Kind: event.Cleared, AllTiers: true, DPRank: rank})
		}
	}
	waittest.For(t, "heartbeats", func() bool {
		s, err := n.js.Stream(deadline(t), name)
		return err == nil && s.CachedInfo().State.LastSeq > before[name].Seq+5
	})
	s, err := n.js.Stream(deadline(t), name)
	if err != nil {
		t.Fatal(err)
	}
	at := before[name]
	at.Seq, at.Stored = s.CachedInfo().State.LastSeq, time.Time{}
	at.Ranks = slices.DeleteFunc(slices.Clone(at.Ranks), func(p RankPosition) bool { return p.Worker == 1 || p.Worker == 2 })
	for i := range at.Ranks {
		at.Ranks[i].Departed = at.Ranks[i].Worker == 3
		at.Ranks[i].Left = time.Unix(7, 0)
	}
	if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(at.Seq)); err != nil {
		t.Fatal(err)
	}
	second := &replica{set: first.set, metrics: metrics.NewSet(), asked: &asked{}}
	cfg := n.config("one", second, before)
	cfg.Left = func(_ event.Space, worker uint64, _ uint32) (Departure, bool) {
		return Departure{At: time.Unix(7, 0)}, worker == 3 && second.counter(`kvatlas_ingest_departed_workers_total`) > 0
	}
	pool := shard.RankID{Worker: event.WorkerID("store"), DPRank: event.PoolRank}
	said := event.Event{Kind: event.Stored, DPRank: pool.DPRank, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}
	n.truth.apply(pool.Worker, said)
	at.Pools = append(at.Pools, pool)
	reloads := 0
	cfg.FindSnapshot = func(context.Context, Trimmed) (Snapshot, error) { reloads++; return lacking{at, said}, nil }
	if second.Ingest, err = Open(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	n.sameAsTruth(second)
	if reloads != 1 || second.asked.count(Departed) == 0 {
		t.Errorf("%d snapshots taken up, asked %d times", reloads, second.asked.count(Departed))
	}
}
