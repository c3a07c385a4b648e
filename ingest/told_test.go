package ingest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

// A stream that takes no events brings no heartbeats either: what a worker's
// registration says shows what the index lacks, and its publisher is asked for it.
func TestARegistrationShowsWhatTheStreamLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute})
		silent := true
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(_ context.Context, q []byte) ([]byte, error) {
			if silent {
				return nil, context.DeadlineExceeded
			}
			data, _ := src.Answer(q, 1<<20)
			return data, nil
		}})
		defer b.close()
		want := newTruth()
		for id := uint64(1); id <= 4; id++ {
			src.Apply(store(id, id))
			want.apply(1, store(id, id))
		}
		b.feed(1, false, batch(1, 5, store(1, 1), store(2, 2)))
		told := func(incarnation, last uint64) {
			b.partition.changes <- change{worker: 1, told: &Told{Incarnation: incarnation, Last: []event.Position{{ID: last}}}}
			time.Sleep(6 * time.Second)
			synctest.Wait()
		}
		told(5, 4)
		if s := b.partition.rank(1, 0).status(); !s.Is(follow.Following) {
			t.Fatalf("it is given no time: %+v", s)
		}
		told(5, 4)
		if s := b.partition.rank(1, 0).status(); !s.Incomplete || s.LastError() == "" {
			t.Fatalf("what is missing does not show: %+v", s)
		}
		silent = false
		time.Sleep(time.Minute)
		b.feed(1, false, heartbeat(1, 5, event.Position{ID: 4}))
		time.Sleep(time.Second)
		synctest.Wait()
		if s := b.partition.rank(1, 0).status(); s.Incomplete || s.LastError() != "" || digest(t, b.set) != want.digest() {
			t.Fatalf("after its publisher answered: %+v", s)
		}
		// The engine runs anew, and has told nothing of its new run yet.
		silent = true
		told(6, 0)
		told(6, 0)
		if s := b.partition.rank(1, 0).status(); digest(t, b.set) != 0 || !s.Is(follow.Unknown) {
			t.Fatalf("blocks of the run before: %+v", s)
		}
		b.feed(1, false, batch(1, 6, store(1, 9)))
		told(5, 4) // which comes late, and again
		told(5, 4)
		if s := b.partition.rank(1, 0).status(); s.Incarnation != 6 || s.LastID != 1 || s.Incomplete {
			t.Fatalf("a late registration: %+v", s)
		}
	})
}

// A heartbeat of a new run ends the blocks of all ranks of its publisher, named or
// not, and of no other one's.
func TestAHeartbeatOfANewRunEndsAllItsRanks(t *testing.T) {
	b := newPartitionBench(t, nil)
	of := func(dpRank uint32, id uint64) event.Event {
		ev := store(id, 100*uint64(dpRank)+id)
		ev.DPRank = dpRank
		return ev
	}
	b.feed(1, batch(1, 5, of(0, 1), of(1, 1), of(2, 1)))
	b.feed(1, batch(1, 7, of(3, 1))) // a publisher of its own
	b.feed(1, heartbeat(1, 6, event.Position{DPRank: 1, ID: 0}))
	b.finished()
	want := newTruth()
	want.apply(1, of(3, 1))
	if digest(t, b.set) != want.digest() {
		t.Errorf("%+v", b.set.Lookup(testSpace).Ranks())
	}
	b.feed(1, batch(1, 6, of(0, 1)))
	b.feed(1, heartbeat(1, 8)) // there are two publishers: of which one is it?
	b.feed(2, batch(2, 5, of(0, 1), of(1, 1)))
	b.feed(2, heartbeat(2, 6))
	b.finished()
	want.apply(1, of(0, 1))
	if digest(t, b.set) != want.digest() {
		t.Errorf("%+v", b.set.Lookup(testSpace).Ranks())
	}
}
