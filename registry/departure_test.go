package registry

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core/coretest"
)

// A worker that was unregistered over HTTP, rank by rank, is known to have left
// by a replica that starts later; so is one that an operator removed, a rank that
// its worker gave up, and one whose key somebody deleted.
func TestWhoStartsLaterKnowsWhoLeft(t *testing.T) {
	w := newWorld(t)
	rank := func(id uint64, n uint32) Worker {
		h := testWorker(id)
		h.Ranks, h.Transport = []uint32{n}, ZMQ
		return h
	}
	register := func(id uint64, n uint32) {
		w.store(httpKey(rank(id, n).Key(), n), record{Version: 1, Worker: rank(id, n)})
	}
	end := func(id uint64, n uint32, seq uint64) Departure {
		w.step(time.Second)
		w.bury(httpKey(rank(id, n).Key(), n), rank(id, n), seq)
		return Departure{At: w.now, Seq: seq, Created: epoch}
	}
	for n := range uint32(2) {
		register(1, n)
		register(2, n)
		register(3, n)
	}
	w.take()
	end(1, 0, 5)
	all := end(1, 1, 9)
	w.expect("updated 1 without [0]; left 1 unregistered")
	half := end(2, 1, 11)
	w.expect("updated 2 without [1]")
	end(3, 0, 12)
	register(3, 0) // and back
	w.store(leaseKey(testWorker(4).Key()), record{
		Version: 1, Worker: testWorker(4), LeaseMS: testLease.Milliseconds(), Announcer: 1,
		Former: []formerRanks{{[]uint32{5, 6}, moment{At: w.now, Stream: epoch, Seq: 13}}},
	})
	former := Departure{At: w.now, Seq: 13, Created: epoch}
	w.announce(testWorker(5), 5)
	w.step(time.Second)
	w.store(leaseKey(testWorker(5).Key()), nil)
	deleted := Departure{At: w.now, Silent: true}
	w.expect("updated 3 without [0]; updated 3; joined 4 without [5 6]; joined 5; left 5 unregistered")

	later := newReplica(t, w)
	for _, l := range []*ledger{w.l, later} {
		for _, c := range []struct {
			id   uint64
			rank uint32
			want Departure // zero: it is there, or was never registered
		}{
			{1, 0, all}, {1, 1, all}, {1, 7, all}, {2, 0, Departure{}}, {2, 1, half}, {2, 7, Departure{}},
			{3, 0, Departure{}}, {3, 1, Departure{}}, {4, 0, Departure{}}, {4, 5, former}, {4, 6, former}, {4, 7, Departure{}},
			{5, 0, deleted}, {5, 7, deleted}, {6, 0, Departure{}},
		} {
			if got, ok := l.left(testWorker(c.id).Key(), c.rank); got != c.want || ok != (c.want != Departure{}) {
				t.Errorf("replica %q, worker %d, rank %d: %+v, want %+v", l.cfg.replica, c.id, c.rank, got, c.want)
			}
		}
	}
}

// A worker whose clock is an hour ahead gives up a rank, and leaves later: what it
// published in between is void, too.
func TestADepartureByAClockThatIsAhead(t *testing.T) {
	w := newWorld(t)
	wk := testWorker(1)
	wk.Ranks = []uint32{0}
	r := &record{Version: 1, Worker: wk, LeaseMS: testLease.Milliseconds(), Announcer: 1,
		Former: []formerRanks{{[]uint32{1}, moment{At: w.now.Add(time.Hour), Stream: epoch, Seq: 10}}}}
	w.store(leaseKey(wk.Key()), r)
	w.step(time.Second)
	w.store(leaseKey(wk.Key()), r.tombstone(moment{At: w.now.Add(time.Hour), Stream: epoch, Seq: 50}))
	w.take()
	for _, l := range []*ledger{w.l, newReplica(t, w)} {
		for rank := range uint32(3) {
			if d, gone := l.left(wk.Key(), rank); !gone || d.Seq != 50 {
				t.Errorf("replica %q, rank %d: left %v %+v, want at 50", l.cfg.replica, rank, gone, d)
			}
		}
	}
}

// A rank that its worker, whose clock is an hour ahead, gave up is registered over HTTP,
// and leaves as that later: the stream says which was last. Of a key that somebody deleted
// it says nothing: who reads it has to look where it ends.
func TestTheLastDepartureOfARankIsTheStreams(t *testing.T) {
	w := newWorld(t)
	wk := testWorker(1)
	wk.Ranks = []uint32{0}
	w.store(leaseKey(wk.Key()), &record{Version: 1, Worker: wk, LeaseMS: testLease.Milliseconds(), Announcer: 1,
		Former: []formerRanks{{[]uint32{1}, moment{At: w.now.Add(time.Hour), Stream: epoch, Seq: 10}}}})
	h := testWorker(1)
	h.Ranks, h.Transport = []uint32{1}, ZMQ
	last := func(what string, want Departure) {
		t.Helper()
		w.take()
		for _, l := range []*ledger{w.l, newReplica(t, w)} {
			if d, gone := l.left(wk.Key(), 1); !gone || d.Seq != want.Seq || !d.Created.Equal(want.Created) || d.Silent != want.Silent {
				t.Errorf("%s, replica %q: left %v %+v, want %+v", what, l.cfg.replica, gone, d, want)
			}
		}
	}
	register := func() {
		w.step(time.Second)
		w.store(httpKey(h.Key(), 1), record{Version: 1, Worker: h})
		w.step(time.Second)
	}
	register()
	w.bury(httpKey(h.Key(), 1), h, 50)
	last("unregistered", Departure{Seq: 50, Created: epoch})
	register()
	w.store(httpKey(h.Key(), 1), nil)
	last("deleted", Departure{Silent: true})
	register()
	w.store(httpKey(h.Key(), 1), (&record{Version: 1, Worker: h}).tombstone(moment{At: w.now, Stream: epoch.Add(time.Second), Seq: 3}))
	last("in a stream that was made again", Departure{Silent: true})
}

// newReplica returns the ledger of one that starts now, with what the bucket has.
func newReplica(t testing.TB, w *world) *ledger {
	t.Helper()
	l := newLedger(ledgerConfig{replica: "later", forget: time.Hour, maxWorkers: 100}, newMeters(metrics.NewSet()), func(Event) {})
	l.begin()
	for _, key := range sortedKeys(w.last) {
		l.apply(w.now, w.last[key])
	}
	l.loaded(w.now)
	return l
}

// registered is what the model of TestDeparturesAgainstAModel knows of a worker.
type registered struct {
	lease []uint32 // ranks; nil: not announced
	http  map[uint32]bool
	left  map[uint32]Departure // of its ranks, the last
}

func (m *registered) covers(rank uint32) bool { return slices.Contains(m.lease, rank) || m.http[rank] }

func (m *registered) there() bool { return m.lease != nil || len(m.http) > 0 }

const modelRanks = 4

// change makes a change at which some ranks may have left.
func (m *registered) change(d Departure, f func()) {
	var before []uint32
	for rank := range uint32(modelRanks) {
		if m.covers(rank) {
			before = append(before, rank)
		}
	}
	f()
	for rank := range uint32(modelRanks) {
		if slices.Contains(before, rank) && !m.covers(rank) {
			m.left[rank] = d
		}
	}
}

// of returns when the rank left; with a worker of which nothing is registered all
// left that it has.
func (m *registered) of(rank uint32) (d Departure, gone bool) {
	switch {
	case m.covers(rank):
		return d, false
	case m.there():
		d, gone = m.left[rank]
		return d, gone
	}
	for _, o := range m.left {
		if o.At.After(d.At) {
			d, gone = o, true
		}
	}
	return d, gone
}

// TestDeparturesAgainstAModel runs random histories of registrations of both
// kinds over the ranks of some workers, of sessions of a replica and of garbage
// that is collected, and compares what that replica and one that starts at any
// moment know of who left with a literal model.
func TestDeparturesAgainstAModel(t *testing.T) {
	for _, seed := range coretest.Seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t)
		w.l.cfg.maxWorkers = 1000
		const workers = 3
		model := map[uint64]*registered{}
		lease := map[uint64]*record{} // as announced, or its tombstone
		for id := range uint64(workers) {
			model[id] = &registered{http: map[uint32]bool{}, left: map[uint32]Departure{}}
		}
		seq := uint64(1)
		announce := func(id uint64, ranks []uint32) {
			wk := testWorker(id)
			wk.Ranks = ranks
			r := &record{Version: 1, Worker: wk, LeaseMS: time.Hour.Milliseconds(), Announcer: 1}
			if old := lease[id]; old != nil {
				stored := w.last[leaseKey(wk.Key())].created
				r.Former = old.former(stored, &wk, func() moment { return moment{At: w.now, Stream: epoch, Seq: seq} })
			}
			lease[id] = r
			w.store(leaseKey(wk.Key()), r)
		}
		check := func(step int, what string) {
			t.Helper()
			later := newReplica(t, w)
			for id, m := range model {
				for rank := range uint32(modelRanks) {
					want, gone := m.of(rank)
					for name, l := range map[string]*ledger{"running": w.l, "later": later} {
						if got, ok := l.left(testWorker(id).Key(), rank); got != want || ok != gone {
							t.Fatalf("seed %d, step %d, after %s: worker %d, rank %d, %s replica: %+v, want %+v", seed, step, what, id, rank, name, got, want)
						}
					}
				}
			}
		}
		for step := range 200 {
			w.step(time.Second)
			seq += rng.Uint64N(3)
			id, rank := rng.Uint64N(workers), rng.Uint32N(modelRanks)
			m, wk := model[id], testWorker(id)
			now := Departure{At: w.now, Seq: seq, Created: epoch}
			h := wk
			h.Ranks, h.Transport = []uint32{rank}, ZMQ
			key := httpKey(h.Key(), rank)
			what := ""
			switch rng.IntN(8) {
			case 0, 1:
				what = fmt.Sprint("HTTP register ", id, rank)
				m.http[rank] = true
				w.store(key, record{Version: 1, Worker: h})
			case 2, 3:
				if what = fmt.Sprint("HTTP unregister ", id, rank); m.http[rank] {
					m.change(now, func() { delete(m.http, rank) })
					w.bury(key, h, seq)
				}
			case 4, 5:
				ranks := rng.Perm(modelRanks)[:1+rng.IntN(modelRanks)]
				slices.Sort(ranks)
				var list []uint32
				for _, r := range ranks {
					list = append(list, uint32(r))
				}
				what = fmt.Sprint("announce ", id, list)
				m.change(now, func() { m.lease = list })
				announce(id, list)
			case 6:
				if what = fmt.Sprint("withdraw ", id); m.lease != nil {
					m.change(now, func() { m.lease = nil })
					lease[id] = lease[id].tombstone(moment{At: w.now, Stream: epoch, Seq: seq})
					w.store(leaseKey(wk.Key()), lease[id])
				}
			default:
				what = "a new session"
				w.load()
			}
			check(step, what)
		}
	}
}

func TestTombstonesOfRanksAreBounded(t *testing.T) {
	r := &record{Worker: testWorker(1)}
	for n := range uint32(1000) {
		wk := testWorker(1)
		wk.Ranks = []uint32{n}
		r = &record{Worker: wk, Former: r.former(epoch, &wk, func() moment { return moment{At: epoch, Stream: epoch, Seq: uint64(n)} })}
	}
	n := 0
	for _, f := range r.Former {
		n += len(f.Ranks)
	}
	if n != maxFormer || r.Former[n-1].Ranks[0] != 998 {
		t.Errorf("%d ranks, the last are %v", n, r.Former[len(r.Former)-1])
	}
	if value, err := json.Marshal(r); err != nil || len(value) > maxValue {
		t.Errorf("%d bytes of at most %d, %v", len(value), maxValue, err)
	}
}
