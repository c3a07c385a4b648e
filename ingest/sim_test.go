package ingest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/shard"
)

// simulation is a fleet and one replica in fake time: what the history tests step
// by hand runs here with its clocks, so that answers can be slow, waits end and
// workers leave.
type simulation struct {
	*fakeTime
	seed    uint64
	rng     *rand.Rand
	workers []*simWorker
	link    struct {
		sync.Mutex
		rng *rand.Rand
	}
	did map[string]int
}

// simWorker is a worker with its publisher.
type simWorker struct {
	*publisher
	live   bool
	source *recovery.Source
	truth  map[uint32]*rankTruth
	late   []simMessage // sent, and not arrived
	gone   bool
	beat   time.Time

	link struct { // guarded by the simulation's link
		silent bool
		delay  time.Duration
	}
}

type simMessage struct {
	data   []byte
	stored time.Time
}

// rankTruth is what a rank holds, and the digest after each of its events.
type rankTruth struct {
	oracle *core.Oracle
	after  map[[2]uint64]uint64 // by incarnation and id
}

func (r *rankTruth) digest(worker uint64, dpRank uint32) uint64 {
	return r.oracle.Digest(shard.SpaceHash(testSpace), func(core.Holder) (uint64, uint32) { return worker, dpRank })
}

func (s *simulation) newSource(w *simWorker) {
	w.source = recovery.NewSource(recovery.Config{
		Space: testSpace, Worker: w.worker, Incarnation: w.incarnation,
		Ring: 1 + s.rng.IntN(60), RingBytes: 1 << 20, KeepDump: 10 * time.Second,
	})
}

// answer is what the worker's publisher does with a request: some are lost, some
// take long.
func (s *simulation) answer(w *simWorker) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, request []byte) ([]byte, error) {
		s.link.Lock()
		lost, limit := w.link.silent || s.link.rng.IntN(15) == 0, 300+s.link.rng.IntN(3000)
		delay := w.link.delay
		if delay > 0 {
			delay = time.Duration(s.link.rng.Int64N(int64(delay)))
		}
		src := w.source
		s.link.Unlock()
		if lost {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		data, _ := src.Answer(request, limit)
		if data == nil {
			return nil, nats.ErrNoResponders
		}
		return data, nil
	}
}

// apply makes the event true.
func (w *simWorker) apply(ev event.Event) {
	r := w.truth[ev.DPRank]
	if r == nil {
		r = &rankTruth{core.NewOracle(), map[[2]uint64]uint64{}}
		w.truth[ev.DPRank] = r
	}
	switch ev.Kind {
	case event.Stored:
		r.oracle.Store(0, &ev, false)
	case event.Removed:
		r.oracle.Remove(0, &ev, false)
	case event.Cleared:
		r.oracle.Clear(0, ev.Tier, ev.AllTiers)
	}
	r.after[[2]uint64{w.incarnation, ev.ID}] = r.digest(w.worker, ev.DPRank)
}

// send has the worker publish a message, with which anything may happen.
func (s *simulation) send(w *simWorker) {
	var evs []event.Event
	for range 1 + s.rng.IntN(4) {
		ev := w.step()
		w.ids[ev.DPRank]++
		ev.ID = w.ids[ev.DPRank]
		w.apply(ev)
		w.source.Apply(ev)
		if s.rng.IntN(60) > 0 {
			evs = append(evs, ev)
		}
	}
	msg := batch(w.worker, w.incarnation, evs...)
	switch k := s.rng.IntN(30); {
	case k == 0:
		s.did["lost"]++
		return
	case k == 1 && len(evs) > 0:
		s.did["spoilt"]++
		forms := spoil(msg)
		msg = forms[slices.Sorted(maps.Keys(forms))[s.rng.IntN(len(forms))]]
	}
	w.late = append(w.late, simMessage{msg, time.Now()})
	if w.live || s.rng.IntN(5) > 0 {
		s.arrive(w)
	}
}

// arrive delivers what the worker has sent, in a stream in any order.
func (s *simulation) arrive(w *simWorker) {
	late := w.late
	w.late = nil
	if !w.live {
		s.rng.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	}
	for _, m := range late {
		for range 1 + s.rng.IntN(12)/11 {
			s.feedAt(w.worker, w.live, m.data, m.stored)
		}
	}
}

func (s *simulation) heartbeat(w *simWorker) {
	w.beat = time.Now()
	s.arrive(w)
	s.feedAt(w.worker, w.live, w.heartbeat(), w.beat)
}

// restart begins a new run of the worker's engine.
func (s *simulation) restart(w *simWorker) {
	s.did["restarts"]++
	if s.rng.IntN(2) == 0 {
		s.arrive(w)
	}
	w.late = nil
	w.engine.restart()
	w.incarnation, w.ids = w.rng.Uint64()|1, map[uint32]uint64{}
	for n := range w.truth {
		w.truth[n].oracle = core.NewOracle()
	}
	s.link.Lock()
	defer s.link.Unlock()
	s.newSource(w)
}

// leave has the worker leave the fleet, or come back.
func (s *simulation) leave(w *simWorker) {
	s.did["left"]++
	w.gone = true
	if w.live {
		w.late = nil
	}
	s.partition.changes <- change{worker: w.worker, left: Departure{At: time.Now()}}
	synctest.Wait()
}

// elapse lets fake time pass: a simulation runs in a bubble.
func (s *simulation) elapse(d time.Duration) { <-time.After(d) }

func (s *simulation) comeBack(w *simWorker) {
	s.elapse(time.Millisecond)
	w.gone = false
	if s.rng.IntN(2) == 0 {
		s.restart(w)
	}
	s.partition.changes <- change{worker: w.worker, back: true}
	synctest.Wait()
}

// shown returns the digest of what the index has of the rank.
func (s *simulation) shown(worker uint64, dpRank uint32) uint64 {
	dumped, err := s.set.Lookup(testSpace).DumpRank(context.Background(), shard.RankID{Worker: worker, DPRank: dpRank})
	if err != nil {
		s.t.Fatal(err)
	}
	o := core.NewOracle()
	restore := core.Restorer{Index: o}
	for i := range dumped {
		restore.Add(&dumped[i].Event, dumped[i].Copies)
	}
	restore.Finish()
	r := rankTruth{oracle: o}
	return r.digest(worker, dpRank)
}

// check verifies that what is shown as fresh is: the state after the event that
// the rank's status names.
func (s *simulation) check() {
	s.t.Helper()
	synctest.Wait()
	s.partition.applying.Wait()
	synctest.Wait()
	for _, w := range s.workers {
		for dpRank, truth := range w.truth {
			s.partition.mu.Lock()
			r := s.partition.mu.ranks[workerRank{w.worker, dpRank}]
			s.partition.mu.Unlock()
			if r == nil {
				continue
			}
			st := r.status()
			if st.Incomplete || st.Recovering {
				continue
			}
			s.did["checked"]++
			want := truth.after[[2]uint64{st.Incarnation, st.LastID}]
			if st.Departed {
				want = 0
			}
			if have := s.shown(w.worker, dpRank); have != want {
				s.t.Fatalf("seed %d, at %v: worker %d, rank %d (live %v) shows another state than after event %d: %+v",
					s.seed, time.Since(s.begun), w.worker, dpRank, w.live, st.LastID, st)
			}
		}
	}
}

// run does the history, has faults end, and waits until the replica has what the
// workers have.
func (s *simulation) run() {
	for range 100 + s.rng.IntN(200) {
		s.elapse(time.Duration(s.rng.Int64N(int64(300 * time.Millisecond))))
		w := s.workers[s.rng.IntN(len(s.workers))]
		if w.gone {
			if s.rng.IntN(6) == 0 {
				s.comeBack(w)
			}
			continue
		}
		if time.Since(w.beat) > 5*time.Second {
			s.heartbeat(w)
		}
		switch s.rng.IntN(50) {
		case 0:
			s.restart(w)
		case 1:
			s.leave(w)
		case 2, 3:
			s.link.Lock()
			w.link.silent = s.rng.IntN(3) == 0
			w.link.delay = time.Duration(s.rng.IntN(3)) * time.Second
			s.link.Unlock()
		case 4:
			s.elapse(time.Duration(s.rng.IntN(20)) * time.Second)
		default:
			s.send(w)
		}
		if s.rng.IntN(4) == 0 {
			s.check()
		}
	}
	s.link.Lock()
	for _, w := range s.workers {
		w.link.silent, w.link.delay = false, 0
	}
	s.link.Unlock()
	for _, w := range s.workers {
		if w.gone {
			s.comeBack(w)
		}
	}
	for begun := time.Now(); ; s.elapse(5 * time.Second) {
		for _, w := range s.workers {
			s.heartbeat(w)
		}
		s.check()
		if s.whole() {
			s.did["seconds"] += int(time.Since(begun) / time.Second)
			return
		}
		if time.Since(begun) > 30*time.Minute {
			for _, r := range s.partition.mu.ranks {
				s.t.Logf("%+v", r.status())
			}
			s.t.Fatalf("seed %d: not as the workers are after %v", s.seed, time.Since(begun))
		}
	}
}

func (s *simulation) whole() bool {
	for _, w := range s.workers {
		for n, id := range w.ids {
			st := s.partition.rank(w.worker, n).status()
			if st.LastID != id || st.Incomplete || st.Recovering || st.Incarnation != w.incarnation {
				return false
			}
		}
	}
	return true
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{seed: seed, rng: rand.New(rand.NewPCG(seed, 51)), did: map[string]int{}}
	s.link.rng = rand.New(rand.NewPCG(seed, 52))
	ask := map[uint64]func(context.Context, []byte) ([]byte, error){}
	for i := range 1 + s.rng.IntN(4) {
		w := &simWorker{publisher: &publisher{engine: newEngine(uint64(i), 1+s.rng.IntN(3), seed), ids: map[uint32]uint64{}},
			live: s.rng.IntN(2) == 0, truth: map[uint32]*rankTruth{}}
		w.incarnation = s.rng.Uint64() | 1
		s.newSource(w)
		ask[w.worker] = s.answer(w)
		s.workers = append(s.workers, w)
	}
	s.fakeTime = newFakeTime(t, ask)
	s.cfg.Recoveries = 1 + s.rng.IntN(3)
	s.cfg.RecoverMessages = 1 + s.rng.IntN(30)
	s.cfg.HoldMessages = 4 + s.rng.IntN(20)
	return s
}

// Whatever happens on the way, nothing is shown as fresh that is not, and in the
// end the index is what the workers hold.
func TestNothingStaleIsShownAsFresh(t *testing.T) {
	all := map[string]int{}
	for seed := range uint64(150 * scale(t)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulation(t, seed)
				defer s.close()
				s.run()
				for k, n := range s.did {
					all[k] += n
				}
				for _, name := range []string{"dumps_total", "recovered_events_total", "gaps_total", "overflow_events_total"} {
					all[name] += int(s.counter("kvatlas_ingest_" + name))
				}
			})
		})
	}
	t.Log(all)
}
