package ingest

import (
	"context"
	"encoding/json"
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
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
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
	ask    map[uint64]func(context.Context, []byte) ([]byte, error)
	stored []simStored // in the stream, from sequence 1 on
	made   time.Time   // the stream
	did    map[string]int
}

type simStored struct {
	worker uint64
	simMessage
}

// simWorker is a worker with its publisher.
type simWorker struct {
	*publisher
	live   bool
	source *recovery.Source // nil: it publishes RouterEvents, and answers nobody
	truth  map[uint32]*rankTruth
	late   []simMessage // sent, and not arrived
	gone   bool
	left   map[uint32]Departure // of ranks that are not registered
	beat   time.Time
	run    uint64       // of one whose events name no incarnation
	rival  *simWorker   // another process of the same id; nil: none
	rivals []*simWorker // all that there were

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
	oracle  *core.Oracle
	grouped *groups.Oracle       // of cache groups besides full attention
	after   map[[2]uint64]uint64 // by incarnation and id
}

func (r *rankTruth) digest(worker uint64, dpRank uint32) uint64 {
	id := shard.SpaceHash(testSpace)
	return r.grouped.Digest(id, worker, dpRank) + r.oracle.Digest(id, func(core.Holder) (uint64, uint32) { return worker, dpRank })
}

// newSource begins a publisher; resume says that the engine goes on, of which the
// publisher does not know what it holds.
func (s *simulation) newSource(w *simWorker, resume bool) {
	cfg := recovery.Config{
		Space: testSpace, Worker: w.worker, Incarnation: w.incarnation, Dumps: 1 + s.rng.IntN(2),
		Ring: 1 + s.rng.IntN(60), RingBytes: 1 << 20, KeepDump: 10 * time.Second,
	}
	if resume {
		for n, id := range w.ids {
			cfg.Resume = append(cfg.Resume, event.Position{DPRank: n, ID: id})
		}
	}
	s.link.Lock()
	defer s.link.Unlock()
	w.source = recovery.NewSource(cfg)
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
		if w.rival != nil && s.link.rng.IntN(2) == 0 {
			src = w.rival.source // who answers first is taken
		}
		s.link.Unlock()
		if src == nil {
			return nil, nats.ErrNoResponders
		}
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
		r = &rankTruth{core.NewOracle(), groups.NewOracle(), map[[2]uint64]uint64{}}
		w.truth[ev.DPRank] = r
	}
	switch {
	case ev.Group > 0:
		r.grouped.Apply(&ev, false)
	case ev.Kind == event.Stored:
		r.oracle.Store(0, &ev, false)
	case ev.Kind == event.Removed:
		r.oracle.Remove(0, &ev, false)
	case ev.Kind == event.Cleared:
		r.grouped.Apply(&ev, false)
		r.oracle.Clear(0, ev.Tier, ev.AllTiers)
	}
	r.after[[2]uint64{w.incarnation + w.run, ev.ID}] = r.digest(w.worker, ev.DPRank)
}

// send has the worker publish a message, with which anything may happen.
func (s *simulation) send(w *simWorker) {
	var evs []event.Event
	for range 1 + s.rng.IntN(4) {
		ev := w.publish(w.step())
		if s.rng.IntN(60) > 0 || w.source == nil && ev.ID == 1 {
			evs = append(evs, ev)
		}
	}
	msg := w.encode(evs)
	k := s.rng.IntN(30)
	if w.source == nil && slices.ContainsFunc(evs, func(ev event.Event) bool { return ev.ID == 1 }) {
		k = 2 // nothing else tells of a restart
	}
	switch {
	case k == 0:
		s.did["lost"]++
		return
	case k == 1 && len(evs) > 0:
		s.did["spoilt"]++
		forms := spoil(batch(w.worker, w.incarnation, evs...))
		msg = forms[slices.Sorted(maps.Keys(forms))[s.rng.IntN(len(forms))]]
	}
	w.late = append(w.late, simMessage{msg, time.Now()})
	if w.live || w.source == nil || s.rng.IntN(5) > 0 {
		s.arrive(w)
	}
}

// publish makes the event the worker's next.
func (w *simWorker) publish(ev event.Event) event.Event {
	w.ids[ev.DPRank]++
	ev.ID = w.ids[ev.DPRank]
	w.apply(ev)
	if w.source != nil {
		w.source.Apply(ev)
	}
	return ev
}

// encode returns the events as the worker publishes them.
func (w *simWorker) encode(evs []event.Event) []byte {
	if w.source != nil {
		return batch(w.worker, w.incarnation, evs...)
	}
	list := make([]any, 0, len(evs))
	for _, ev := range evs {
		var data any = "cleared"
		switch ev.Kind {
		case event.Stored:
			blocks := make([]any, len(ev.Engine))
			for i := range blocks {
				blocks[i] = map[string]any{"block_hash": ev.Engine[i], "tokens_hash": ev.Local[i]}
			}
			stored := map[string]any{"blocks": blocks, "parent_hash": nil}
			if ev.HasParent {
				stored["parent_hash"] = ev.Parent
			}
			data = map[string]any{"stored": stored}
		case event.Removed:
			data = map[string]any{"removed": map[string]any{"block_hashes": ev.Engine}}
		}
		list = append(list, map[string]any{"worker_id": w.worker, "event": map[string]any{"event_id": ev.ID, "data": data, "dp_rank": ev.DPRank}})
		if w.rng.IntN(40) == 0 { // that nobody knows, of no id or of the next
			list = append(list, map[string]any{"worker_id": w.worker, "event": map[string]any{"event_id": ev.ID, "data": "moved", "dp_rank": ev.DPRank}})
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return b
}

// arrive delivers what the worker has sent, in a stream in any order.
func (s *simulation) arrive(w *simWorker) {
	late := w.late
	w.late = nil
	if !w.live && w.source != nil {
		s.rng.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	}
	for _, m := range late {
		copies := 1
		if w.source != nil {
			copies += s.rng.IntN(12) / 11
		}
		for range copies {
			s.deliver(w, m)
		}
	}
}

func (s *simulation) deliver(w *simWorker, m simMessage) {
	if !w.live {
		s.stored = append(s.stored, simStored{w.worker, m})
	}
	s.feedAt(w.worker, w.live, m.data, m.stored)
}

func (s *simulation) heartbeat(w *simWorker) {
	w.beat = time.Now()
	s.arrive(w)
	if w.source != nil {
		s.deliver(w, simMessage{w.heartbeat(), w.beat})
	}
}

// restart begins a new run of the worker's engine.
func (s *simulation) restart(w *simWorker) {
	s.did["restarts"]++
	if s.rng.IntN(2) == 0 {
		s.arrive(w)
	}
	w.late = nil
	w.engine.restart()
	for n := range w.truth {
		w.truth[n].oracle, w.truth[n].grouped = core.NewOracle(), groups.NewOracle()
	}
	if w.ids = map[uint32]uint64{}; w.source != nil {
		w.incarnation = w.rng.Uint64() | 1
		s.newSource(w, false)
		return
	}
	w.run++
}

// reopen ends the replica and begins it anew: from where it was, or from what a
// stream has that was trimmed.
func (s *simulation) reopen() {
	s.did["reopened"]++
	old := s.fakeTime
	old.stop()
	pos, positions := old.partition.source(0).window.progress().pos, old.partition.positions(old.partition.source(0))
	if s.rng.IntN(2) == 0 {
		old.set.Close()
		old.set, positions = nil, nil
		pos = uint64(s.rng.IntN(len(s.stored) + 1))
		if s.rng.IntN(2) == 0 {
			pos = 0
		}
	}
	s.fakeTime = newFakeTimeOn(s.t, s.ask, old.set)
	s.begun = old.begun
	s.settings()
	s.partition.do(func(l *partition) { // as a reader does
		for _, k := range positions {
			l.resume(context.Background(), k.RankPosition, l.source(k.Worker))
		}
	})
	s.partition.source(0).window.restart(pos, time.Time{})
	s.readFrom(pos)
}

// leave has the worker leave the fleet, or come back.
func (s *simulation) leave(w *simWorker) {
	s.did["left"]++
	w.gone = s.rng.IntN(3) > 0 // else its publisher does not know
	if w.live && w.gone {
		w.late = nil
	}
	c := change{worker: w.worker, left: s.departs()}
	for n := range w.engine.ranks {
		w.left[uint32(n)] = c.left
	}
	s.partition.changes <- c
	synctest.Wait()
}

// dispute begins another process of the worker's id, or ends it.
func (s *simulation) dispute(w *simWorker) {
	if w.source == nil {
		return // nothing would tell them apart
	}
	s.link.Lock()
	defer s.link.Unlock()
	if w.rival != nil {
		w.rival = nil
		return
	}
	s.did["rivals"]++
	o := &simWorker{publisher: &publisher{engine: newEngine(w.worker, len(w.engine.ranks), s.rng.Uint64()), ids: map[uint32]uint64{}},
		live: w.live, truth: map[uint32]*rankTruth{}}
	o.incarnation = s.rng.Uint64() | 1
	o.source = recovery.NewSource(recovery.Config{Space: testSpace, Worker: w.worker, Incarnation: o.incarnation, Dumps: 1, Ring: 20, RingBytes: 1 << 20, KeepDump: 10 * time.Second})
	w.rival, w.rivals = o, append(w.rivals, o)
}

// departs is a departure of this moment.
func (s *simulation) departs() Departure {
	off := time.Duration(s.rng.Int64N(int64(time.Hour))) - time.Hour/2 // whose clock it was
	d := Departure{At: time.Now().Add(off), Seq: uint64(len(s.stored)), Created: s.made}
	if s.rng.IntN(3) == 0 {
		d.Seq, d.Created, d.Silent = 0, time.Time{}, true
	}
	return d
}

// leaveRank has one rank of the worker leave the fleet, or come back; its publisher
// does not know.
func (s *simulation) leaveRank(w *simWorker) {
	n := uint32(s.rng.IntN(len(w.engine.ranks)))
	c := change{worker: w.worker, ranks: []uint32{n}}
	if _, c.back = w.left[n]; c.back {
		delete(w.left, n)
	} else {
		s.did["rank left"]++
		c.left = s.departs()
		w.left[n] = c.left
	}
	s.elapse(time.Millisecond)
	s.partition.changes <- c
	synctest.Wait()
}

// rollBack restores the stream from a backup, or makes it anew, and has the replica
// read it from its start, as a reader does.
func (s *simulation) rollBack() {
	s.did["rolled back"]++
	s.stored = s.stored[:s.rng.IntN(len(s.stored)+1)]
	if s.rng.IntN(3) == 0 {
		s.made, s.stored = time.Now(), nil
	}
	s.partition.source(0).reads(s.made)
	s.partition.do(func(l *partition) {
		l.distrustPositions(context.Background(), l.source(0), uint64(len(s.stored)))
	})
	s.partition.source(0).window.restart(0, time.Time{})
	s.readFrom(0)
	for _, w := range s.workers {
		if w.source == nil { // nothing else tells what of it is lost
			s.restart(w)
		}
	}
}

// readFrom gives the replica what the stream has after a sequence.
func (s *simulation) readFrom(pos uint64) {
	s.number = pos
	for _, m := range s.stored[pos:] {
		s.feedAt(m.worker, false, m.data, m.simMessage.stored)
	}
}

// elapse lets fake time pass: a simulation runs in a bubble.
func (s *simulation) elapse(d time.Duration) { <-time.After(d) }

func (s *simulation) comeBack(w *simWorker) {
	s.elapse(time.Millisecond)
	w.gone, w.left = false, map[uint32]Departure{}
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
	restore, grouped := core.Restorer{Index: o}, groups.NewOracle()
	for i := range dumped {
		if dumped[i].Event.Group > 0 {
			grouped.Apply(&dumped[i].Event, false)
		} else {
			restore.Add(&dumped[i].Event, dumped[i].Copies)
		}
	}
	restore.Finish()
	r := rankTruth{oracle: o, grouped: grouped}
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
			if st.Incomplete || st.Is(follow.Recovering) {
				continue
			}
			s.did["checked"]++
			have, right := s.shown(w.worker, dpRank), false
			for run := range w.run + 1 {
				right = right || have == truth.after[[2]uint64{st.Incarnation + run, st.LastID}]
			}
			for _, o := range w.rivals {
				if t := o.truth[dpRank]; t != nil && o.incarnation == st.Incarnation {
					right = have == t.after[[2]uint64{st.Incarnation, st.LastID}]
				}
			}
			if st.Is(follow.Departed) {
				right = have == 0
			}
			if !right {
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
		case 5:
			s.reopen()
		case 7, 8:
			s.leaveRank(w)
		case 10:
			s.dispute(w)
		case 9:
			if s.rng.IntN(3) == 0 {
				s.rollBack()
			}
		case 6:
			if w.source != nil {
				s.did["resumed"]++
				s.newSource(w, true)
			}
		case 4:
			s.elapse(time.Duration(s.rng.IntN(20)) * time.Second)
		default:
			s.send(w)
			if w.rival != nil {
				s.send(w.rival)
				if s.rng.IntN(10) == 0 {
					s.heartbeat(w.rival)
				}
			}
		}
		if s.partition.source(0).endsAt(s.made, uint64(len(s.stored))); s.rng.IntN(4) == 0 {
			s.check()
		}
	}
	s.link.Lock()
	for _, w := range s.workers {
		w.link.silent, w.link.delay, w.rival = false, 0, nil
	}
	s.link.Unlock()
	for _, w := range s.workers {
		if w.gone || len(w.left) > 0 {
			s.comeBack(w)
		}
	}
	for _, w := range s.workers { // what nobody can tell any more ends with a clear
		var evs []event.Event
		for n := range w.engine.ranks {
			*w.engine.ranks[n] = cache{}
			evs = append(evs, w.publish(event.Event{Kind: event.Cleared, AllTiers: true, DPRank: uint32(n)}))
		}
		for range 5 {
			evs = append(evs, w.publish(w.step()))
		}
		w.late = append(w.late, simMessage{w.encode(evs), time.Now()})
	}
	for begun := time.Now(); ; s.elapse(5 * time.Second) {
		for _, w := range s.workers {
			s.heartbeat(w)
		}
		s.check()
		if s.lacks() == "" {
			s.did["seconds"] += int(time.Since(begun) / time.Second)
			return
		}
		if time.Since(begun) > 30*time.Minute {
			s.t.Fatalf("seed %d: not as the workers are after %v: %s", s.seed, time.Since(begun), s.lacks())
		}
	}
}

// lacks says which rank is not as its worker is.
func (s *simulation) lacks() string {
	for _, w := range s.workers {
		for n, id := range w.ids {
			st := s.partition.rank(w.worker, n).status()
			if st.LastID != id || st.Incomplete || st.Is(follow.Recovering) || st.Incarnation != w.incarnation {
				return fmt.Sprintf("incarnation %d, event %d: %+v", w.incarnation, id, st)
			}
		}
	}
	return ""
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{seed: seed, ask: map[uint64]func(context.Context, []byte) ([]byte, error){}, rng: rand.New(rand.NewPCG(seed, 51)), did: map[string]int{}}
	s.link.rng = rand.New(rand.NewPCG(seed, 52))
	for i := range 1 + s.rng.IntN(4) {
		w := &simWorker{publisher: &publisher{engine: newEngine(uint64(i), 1+s.rng.IntN(3), seed), ids: map[uint32]uint64{}},
			live: s.rng.IntN(2) == 0, truth: map[uint32]*rankTruth{}, left: map[uint32]Departure{}}
		if s.rng.IntN(5) > 0 {
			w.incarnation, w.hybrid = s.rng.Uint64()|1, (seed+uint64(i))%3 == 1
			s.newSource(w, false)
		} else {
			w.live = false // who sends RouterEvents names no space
		}
		s.ask[w.worker] = s.answer(w)
		s.workers = append(s.workers, w)
	}
	s.fakeTime, s.made = newFakeTime(t, s.ask), time.Unix(1000, 0)
	s.settings()
	return s
}

func (s *simulation) settings() {
	s.cfg.RecoverMessages = 1 + s.rng.IntN(30)
	s.cfg.HoldMessages = 4 + s.rng.IntN(20)
	s.partition.steps.Limits = s.cfg.limits(false)
	s.cfg.Left = func(_ event.Space, worker uint64, n uint32) (Departure, bool) {
		d, gone := s.workers[worker].left[n]
		return d, gone
	}
	s.partition.source(0).reads(s.made)
	s.partition.source(0).endsAt(s.made, uint64(len(s.stored)))
}

// Whatever happens on the way, nothing is shown as fresh that is not, and in the
// end the index is what the workers hold.
func TestNothingStaleIsShownAsFresh(t *testing.T) {
	all := map[string]int{}
	for seed := range seeds(t, 150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulation(t, seed)
				defer func() { s.close() }()
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
