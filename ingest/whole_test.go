package ingest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

// When a rank is whole, and when it is not. Random histories found these
// (TestNothingStaleIsShownAsFresh).

func clearAll(id uint64) event.Event { return event.Event{Kind: event.Cleared, AllTiers: true, ID: id} }

// A worker that clears everything is known from there on, though nobody answers
// what was missing before.
func TestAClearEndsARecoveryInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(ctx context.Context, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		defer b.close()
		b.feed(1, false, batch(1, 5, store(1, 1)))
		b.feed(1, false, []byte("rubbish"))
		if s := b.partition.rank(1, 0).status(); !s.Is(follow.Recovering) {
			t.Fatalf("%+v", s)
		}
		b.feed(1, false, batch(1, 5, clearAll(2), store(3, 3)))
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.partition.rank(1, 0).status(); s.Incomplete || s.Is(follow.Recovering) || s.LastID != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// heldIndex says what it did only when it is let.
type heldIndex struct {
	Applier
	say chan func()
}

func (x *heldIndex) Apply(ctx context.Context, b *event.Batch, done func(core.Outcome)) error {
	return x.Applier.Apply(ctx, b, func(out core.Outcome) { x.say <- func() { done(out) } })
}

// What the index says late of events before a clear, or in the same message, is of
// no account for what follows.
func TestWhatWasMissingBeforeAClearIsOfNoAccount(t *testing.T) {
	b := newPartitionBench(t, nil)
	index := &heldIndex{b.partition.index, make(chan func(), 10)}
	b.partition.index = index
	orphan := func(id uint64) event.Event {
		ev := store(id, id)
		ev.HasParent, ev.Parent = true, 99
		return ev
	}
	b.feed(1, batch(1, 5, orphan(1)))
	b.feed(1, batch(1, 5, orphan(2), clearAll(3), store(4, 4)))
	for range 3 { // the second message in two parts
		select {
		case said := <-index.say:
			said()
		case <-time.After(10 * time.Second):
			t.Fatal("what is before a clear, and what follows it, is applied as one")
		}
	}
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Incomplete || s.UnknownParents != 2 || b.asked.count(UnknownParent) != 0 {
		t.Errorf("asked %d times: %+v", b.asked.count(UnknownParent), s)
	}
	b.feed(1, batch(1, 5, clearAll(5), orphan(6)))
	(<-index.say)()
	b.finished()
	if s := b.partition.rank(1, 0).status(); !s.Incomplete {
		t.Errorf("%+v", s)
	}
}

// Of a publisher that does not know what the rank held before it began, a dump is
// not all, whatever follows it.
func TestAPartOfADumpIsNoWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute,
			Resume: []event.Position{{ID: 7}}})
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(_ context.Context, q []byte) ([]byte, error) {
			data, _ := src.Answer(q, 1<<20)
			return data, nil
		}})
		defer b.close()
		src.Apply(store(8, 8))
		b.feed(1, true, batch(1, 5, store(8, 8)))
		b.feed(1, true, []byte("rubbish"))
		src.Apply(store(9, 9))
		b.feed(1, true, batch(1, 5, store(9, 9)))
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.partition.rank(1, 0).status(); !s.Incomplete || s.LastID != 9 || s.Dumps != 1 {
			t.Errorf("%+v", s)
		}
		for range 2 { // asked for in vain, then not at once again: what follows shows that nothing was in it
			b.feed(1, true, []byte("rubbish"))
		}
		src.Apply(store(10, 10))
		b.feed(1, true, batch(1, 5, store(10, 10)))
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.partition.rank(1, 0).status(); !s.Incomplete || s.Is(follow.Recovering) || s.LastID != 10 {
			t.Errorf("after another bad message: %+v", s)
		}
		src.Apply(clearAll(11))
		b.feed(1, true, batch(1, 5, clearAll(11)))
		if s := b.partition.rank(1, 0).status(); s.Incomplete {
			t.Errorf("after a clear: %+v", s)
		}
	})
}

// A publisher that does not answer is not asked again for what finds no room: it is
// applied.
func TestWhatNobodyWouldGiveAgainIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(ctx context.Context, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		defer b.close()
		b.cfg.RecoverMessages = 3
		b.partition.steps.Limits = b.cfg.limits(false)
		b.feed(1, true, batch(1, 5, store(1, 1)))
		for id := uint64(3); id <= 5; id++ {
			b.feed(1, true, batch(1, 5, store(id, id)))
		}
		b.feed(1, true, batch(1, 5, removal(6, 1)))
		want := newTruth()
		for id := uint64(3); id <= 5; id++ {
			want.apply(1, store(id, id))
		}
		if s := b.partition.rank(1, 0).status(); s.LastID != 6 || !s.Incomplete || digest(t, b.set) != want.digest() {
			t.Errorf("%+v", s)
		}
		if n := b.counter("kvatlas_ingest_overflow_events_total"); n != 0 {
			t.Errorf("%d events dropped", n)
		}
	})
}

// On a wire without incarnations a restart among what is ignored is a restart, too.
func TestARestartIsSeenAmongIgnoredMessages(t *testing.T) {
	for _, from := range []uint64{3, 1, 5} { // after the last that is ignored, in another run, after some that are lost
		b := newPartitionBench(t, nil)
		for id := uint64(1); id <= 9; id++ {
			b.feedSeq(1, 1, batch(1, 0, store(id, id)))
		}
		b.partition.applyChange(b.ctx, change{worker: 1, left: leftAt(10)})
		b.feedSeq(5, 1, batch(1, 0, store(1, 11), store(2, 12)))
		b.feedSeq(11, 1, batch(1, 0, store(from, 13)))
		b.finished()
		if s := b.partition.rank(1, 0).status(); s.LastID != from || s.Incomplete != (from > 1) || b.held(1) != 1 {
			t.Errorf("%d blocks, %+v", b.held(1), s)
		}
	}
}

// A replica that starts when a run without incarnation has told of one event sees
// that the next one begins.
func TestARestartAfterOneEventIsSeenByAReplicaThatStarts(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.partition.resume(b.ctx, RankPosition{Worker: 1, Position: follow.Position{LastID: 1}}, b.partition.source(1))
	b.feed(1, batch(1, 0, store(1, 11)))
	b.feed(1, batch(1, 0, store(2, 12)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Restarts != 1 || s.LastID != 2 || b.held(1) != 2 {
		t.Errorf("%d blocks, %+v", b.held(1), s)
	}
	// What the position does not tell: of a run from 0 on the second event is a copy.
	b.feed(2, batch(2, 0, store(0, 10), store(1, 11)))
	b.finished()
	for _, p := range b.partition.positions(b.partition.source(0)) {
		if p.Incomplete != (p.Worker == 2) {
			t.Errorf("%+v", p)
		}
	}
}

// Another process of the worker's id answers once, and is gone without a message:
// the worker itself is not taken for over, for good.
func TestARivalThatOnlyAnswersDoesNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := func(incarnation uint64) *recovery.Source {
			return recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: incarnation, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute})
		}
		own, rival := source(5), source(6)
		answers := rival
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(_ context.Context, q []byte) ([]byte, error) {
			data, _ := answers.Answer(q, 1<<20)
			return data, nil
		}})
		defer b.close()
		rival.Apply(store(1, 11))
		for id := uint64(1); id <= 3; id++ {
			if own.Apply(store(id, id)); id != 2 { // it is lost
				b.feed(1, true, batch(1, 5, store(id, id)))
			}
		}
		if s := b.partition.rank(1, 0).status(); s.Incarnation != 6 || s.Dumps != 1 {
			t.Fatalf("%+v", s)
		}
		answers = own
		for range 5 {
			time.Sleep(time.Minute)
			b.feed(1, true, heartbeat(1, 5, event.Position{ID: 3}))
		}
		want := newTruth()
		for id := uint64(1); id <= 3; id++ {
			want.apply(1, store(id, id))
		}
		if s := b.partition.rank(1, 0).status(); s.Incarnation != 5 || s.LastID != 3 || s.Incomplete || digest(t, b.set) != want.digest() {
			t.Errorf("%+v", s)
		}
	})
}
