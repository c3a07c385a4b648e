package ingest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

// spoil returns ways to make a message unusable, by the reason that is counted.
func spoil(msg []byte) map[string][]byte {
	version, tail := slices.Clone(msg), append(slices.Clone(msg), 0)
	version[3]++
	return map[string][]byte{"format": {0xff, 0x00}, "version": version, "truncated": msg[:len(msg)-1], "malformed": tail}
}

func removal(id, block uint64) event.Event {
	return event.Event{Kind: event.Removed, ID: id, Engine: []uint64{block}}
}

// Where nobody can be asked, what follows a message that cannot be used is
// applied at once, removals above all, and the rank shows that it lacks something
// from that message on; another rank of the worker is in order again with its
// next event.
func TestABadMessageHidesNothing(t *testing.T) {
	for reason := range spoil(batch(1, 5, store(4, 4))) {
		b := newPartitionBench(t, nil)
		other := store(1, 9)
		other.DPRank = 1
		b.feed(1, batch(1, 5, store(1, 1), store(2, 2), store(3, 3), other))
		b.feed(1, spoil(batch(1, 5, store(4, 4)))[reason])
		for dpRank := range uint32(2) {
			if s := b.partition.rank(1, dpRank).status(); !s.Incomplete || s.Malformed != 1 || s.LastError() == "" {
				t.Errorf("%s, rank %d: a bad message does not show: %+v", reason, dpRank, s)
			}
		}
		other = removal(2, 9)
		other.DPRank = 1
		b.feed(1, batch(1, 5, removal(5, 2), other))
		b.finished()
		want := newTruth()
		want.apply(1, store(1, 1))
		want.apply(1, store(3, 3))
		if digest(t, b.set) != want.digest() {
			t.Errorf("%s: the removal after it is not applied", reason)
		}
		if s := b.partition.rank(1, 0).status(); s.LastID != 5 || s.Gaps != 1 || s.Missed != 1 || !s.Incomplete || s.Held != 0 {
			t.Errorf("%s: %+v", reason, s)
		}
		if s := b.partition.rank(1, 1).status(); s.Gaps != 0 || s.Incomplete {
			t.Errorf("%s: the other rank: %+v", reason, s)
		}
		if n := b.counter(`kvatlas_ingest_malformed_total{reason="` + reason + `"}`); n != 1 {
			t.Errorf("counted %d times as %s", n, reason)
		}
		if n := b.asked.count(Unusable); n != 2 {
			t.Errorf("%s: %d recoveries asked for, want one for each rank", reason, n)
		}
	}
}

// The first message of a worker is bad: its ranks are not known yet.
func TestABadFirstMessageHidesNothing(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, []byte("rubbish"))
	b.feed(1, batch(1, 5, store(3, 3)))
	b.feed(2, batch(2, 5, store(3, 3)))
	b.settle()
	if s := b.partition.rank(1, 0).status(); s.LastID != 3 || !s.Incomplete {
		t.Errorf("%+v", s)
	}
	if s := b.partition.rank(2, 0).status(); s.Held != 1 {
		t.Errorf("another worker: %+v", s)
	}
}

// The first message of a new run is bad.
func TestABadFirstMessageOfARunHidesNothing(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1)))
	b.feed(1, []byte("rubbish"))
	b.feed(1, batch(1, 6, store(2, 2)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != 2 || !s.Incomplete || s.Restarts != 1 {
		t.Errorf("%+v", s)
	}
}

// Nobody answers what a bad message may have been: the rank is in order again with
// its next event, whether that comes before it is known that nobody answers or after.
func TestASuspicionEndsWithTheNextEvent(t *testing.T) {
	for _, after := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := newFakeTime(t, nil)
			defer b.close()
			b.feed(1, false, batch(1, 5, store(1, 1)))
			b.feed(1, false, []byte("rubbish"))
			time.Sleep(after)
			if s := b.partition.rank(1, 0).status(); !s.Incomplete || s.Requests == 0 {
				t.Errorf("%+v", s)
			}
			b.feed(1, false, batch(1, 5, store(2, 2)))
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := b.partition.rank(1, 0).status(); s.Incomplete || s.Is(follow.Recovering) || s.Gaps > 0 {
				t.Errorf("after %v: %+v", after, s)
			}
		})
	}
}

// What waits already when a bad message comes, waits no longer.
func TestABadMessageEndsAWait(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1)))
	b.feed(1, batch(1, 5, store(3, 3)))
	if s := b.partition.rank(1, 0).status(); s.Held != 1 {
		t.Fatalf("%+v", s)
	}
	b.feed(1, []byte("rubbish"))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != 3 || s.Held != 0 || !s.Incomplete {
		t.Errorf("%+v", s)
	}
}

// A message that says it is another worker's is none of this one's. Still, a
// hole after it is not waited for.
func TestARefusedMessageIsNotWaitedFor(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1)))
	b.feed(1, batch(2, 5, store(2, 2)))
	if s := b.partition.rank(1, 0).status(); s.Incomplete || s.Malformed != 1 {
		t.Errorf("%+v", s)
	}
	b.feed(1, batch(1, 5, store(3, 3)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != 3 || !s.Incomplete {
		t.Errorf("%+v", s)
	}
}

// RouterEvents: a bad one in the middle, in the end, alone, and of an unknown rank.
func TestABadRouterEventHidesNothing(t *testing.T) {
	ev := func(id int, data string) string {
		return fmt.Sprintf(`{"worker_id":1,"event":{"event_id":%d,"data":%s,"dp_rank":3}}`, id, data)
	}
	stored := func(id int) string {
		return ev(id, fmt.Sprintf(`{"stored":{"parent_hash":null,"blocks":[{"block_hash":%d,"tokens_hash":%d}]}}`, id, id))
	}
	removed := func(id, block int) string { return ev(id, fmt.Sprintf(`{"removed":{"block_hashes":[%d]}}`, block)) }
	bad := func(id int) string { return ev(id, `{"moved":{}}`) }
	for name, msgs := range map[string][]string{
		"in the middle":  {"[" + stored(1) + "," + stored(2) + "]", "[" + stored(3) + "," + bad(4) + "," + removed(5, 1) + "]"},
		"in the end":     {"[" + stored(1) + "," + stored(2) + "," + stored(3) + "," + bad(4) + "]", removed(5, 1)},
		"alone":          {"[" + stored(1) + "," + stored(2) + "," + stored(3) + "]", bad(4), removed(5, 1)},
		"broken in form": {"[" + stored(1) + "," + stored(2) + "," + stored(3) + "]", bad(4)[:40], removed(5, 1)},
		"no event":       {"[" + stored(1) + "," + stored(2) + "," + stored(3) + "]", `[{"worker_id":1}]`, removed(5, 1)},
	} {
		b := newPartitionBench(t, nil)
		for _, m := range msgs {
			b.feed(1, []byte(m))
		}
		b.finished()
		want := newTruth()
		for _, id := range []uint64{2, 3} {
			ev := store(id, id)
			ev.DPRank = 3
			want.apply(1, ev)
		}
		s := b.partition.rank(1, 3).status()
		if digest(t, b.set) != want.digest() || s.LastID != 5 || s.Malformed != 1 || !s.Incomplete {
			t.Errorf("%s: %+v", name, s)
		}
		if n := b.counter(`kvatlas_ingest_malformed_total{reason="malformed"}`) + b.counter(`kvatlas_ingest_malformed_total{reason="truncated"}`); n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
	}
}

// A publisher that can be asked is asked as soon as a message of it cannot be
// used: while no time passes, the index is what the worker holds.
func TestABadMessageIsAskedForAtOnce(t *testing.T) {
	for _, live := range []bool{false, true} {
		for _, later := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				src := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute})
				b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(_ context.Context, q []byte) ([]byte, error) {
					data, _ := src.Answer(q, 1<<20)
					return data, nil
				}})
				defer b.close()
				tr := newTruth()
				send := func(evs ...event.Event) []byte {
					for _, ev := range evs {
						src.Apply(ev)
						tr.apply(1, ev)
					}
					return batch(1, 5, evs...)
				}
				b.feed(1, live, send(store(1, 1), store(2, 2)))
				b.feed(1, live, send(store(3, 3), removal(4, 1))[:50])
				if later {
					b.feed(1, live, send(removal(5, 2)))
				}
				s := b.partition.rank(1, 0).status()
				if digest(t, b.set) != tr.digest() || s.Incomplete || s.Recoveries == 0 || s.Malformed != 1 {
					t.Errorf("live %v, later events %v: %+v", live, later, s)
				}
			})
		}
	}
}

// A hole of unknown cause is asked for soon, and hides later events no longer than
// GapWait however slow the answer is: what is applied then shows as incomplete
// until the answer comes.
func TestAHoleHidesLaterEventsForABoundedTime(t *testing.T) {
	for name, answer := range map[string]struct {
		after  time.Duration
		hidden time.Duration
	}{
		"at once": {0, 250 * time.Millisecond},
		"slowly":  {time.Second, 1250 * time.Millisecond},
		"never":   {time.Hour, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			src := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute})
			slow := answer.after
			b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(ctx context.Context, q []byte) ([]byte, error) {
				select {
				case <-time.After(slow):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				data, _ := src.Answer(q, 1<<20)
				return data, nil
			}})
			defer b.close()
			for id, ev := range []event.Event{store(1, 1), store(2, 2), removal(3, 1)} {
				src.Apply(ev)
				if id != 1 {
					b.feed(1, false, batch(1, 5, ev))
				}
			}
			begun := time.Now()
			for b.partition.rank(1, 0).status().LastID < 3 && time.Since(begun) < time.Hour {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			if d := time.Since(begun); d < answer.hidden || d > answer.hidden+2*holdTick {
				t.Errorf("%s: a removal was hidden for %v, want %v", name, d, answer.hidden)
			}
			if s := b.partition.rank(1, 0).status(); s.Incomplete != (slow == time.Hour) {
				t.Errorf("%s: %+v", name, s)
			}
			slow = 0
			b.feed(1, false, heartbeat(1, 5, event.Position{ID: 3}))
			time.Sleep(30 * time.Second)
			b.feed(1, false, heartbeat(1, 5, event.Position{ID: 3}))
			synctest.Wait()
			want := newTruth()
			want.apply(1, store(2, 2))
			if s := b.partition.rank(1, 0).status(); s.Incomplete || digest(t, b.set) != want.digest() {
				t.Errorf("%s: in the end: %+v", name, s)
			}
		})
	}
}

// A recovery that has taken a dump and then cannot get the events after it lets
// go of what waits for them: the rank is not whole then, although the events come
// in the end.
func TestWhatIsPassedOverAfterADumpIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 1, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: time.Minute})
		var b *fakeTime
		asked := 0
		b = newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){1: func(ctx context.Context, q []byte) ([]byte, error) {
			if asked++; asked > 1 { // the dump is fast
				time.Sleep(11 * time.Second)
			}
			data, _ := src.Answer(q, 1<<20)
			return data, nil
		}})
		defer b.close()
		b.cfg.RecoverTimeout = time.Minute
		for _, ev := range []event.Event{store(1, 1), store(2, 2)} {
			src.Apply(ev)
		}
		b.feed(1, true, batch(1, 5, store(2, 2))) // it is met for the first time: a dump is asked for
		for _, ev := range []event.Event{removal(3, 1), store(4, 4)} {
			src.Apply(ev)
		}
		b.feed(1, true, batch(1, 5, store(4, 4)))
		time.Sleep(10*time.Second + 2*holdTick)
		synctest.Wait()
		if s := b.partition.rank(1, 0).status(); s.LastID != 4 || s.Dumps != 1 || !s.Is(follow.Recovering) {
			t.Fatalf("%+v", s)
		}
		time.Sleep(2 * time.Second) // the events are there
		synctest.Wait()
		want := newTruth()
		for _, ev := range []event.Event{store(1, 1), store(2, 2), removal(3, 1), store(4, 4)} {
			want.apply(1, ev)
		}
		if s := b.partition.rank(1, 0).status(); !s.Incomplete && digest(t, b.set) != want.digest() {
			t.Errorf("it shows what it does not hold: %+v", s)
		}
	})
}
