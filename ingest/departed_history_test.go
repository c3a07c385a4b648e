package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/shard"
)

// leavers is a seeded run of workers that leave and come back, in part or as a
// whole, of the stream that they publish to, of what the registry says of them,
// and of replicas that are there all the time, start from a snapshot, or read all
// of the stream.
type leavers struct {
	t       *testing.T
	rng     *rand.Rand
	workers []*leaver
	stream  []message                // [i] has the sequence i+1
	left    map[workerRank]Departure // of ranks that are not registered
	clock   atomic.Int64
	// late are departures that the running replicas have not heard of.
	late     []change
	replicas []*leaversReplica
	kept     *leaversSnapshot
}

// leaver is a worker. One that is mute answers nobody, and says itself what it
// holds; of one that answers, a replica may ask for all of it.
type leaver struct {
	*publisher
	kept atomic.Pointer[recovery.Source] // a recovery may ask while the engine begins anew
	mute bool
	live bool // core NATS
	// back holds the ranks that are there, left or not: they were registered or
	// published something since.
	back map[uint32]bool
}

type leaversReplica struct {
	*leavers
	name      string
	partition *partition
	set       *shard.Set
	ctx       context.Context
	stop      context.CancelFunc
	running   sync.WaitGroup
	number    uint64
}

type leaversSnapshot struct {
	seq   int
	ranks []RankPosition
	held  map[workerRank][]shard.Dumped
}

var leaversBegan = time.Unix(1000, 0)

func newLeavers(t *testing.T, seed uint64) *leavers {
	h := &leavers{t: t, rng: rand.New(rand.NewPCG(seed, 21)), left: map[workerRank]Departure{}}
	h.clock.Store(leaversBegan.Add(time.Hour).UnixNano())
	for i := range uint64(4) {
		w := &leaver{publisher: &publisher{engine: newEngine(i, 2, seed), ids: map[uint32]uint64{}}, mute: i == 1, live: i == 2, back: map[uint32]bool{0: true, 1: true}}
		w.incarnation = h.rng.Uint64() | 1
		if i == 1 && seed%2 == 0 {
			w.incarnation = 0 // of a wire that has none
		}
		h.newSource(w)
		h.workers = append(h.workers, w)
	}
	h.start("first", nil)
	return h
}

func (h *leavers) newSource(w *leaver) {
	w.kept.Store(recovery.NewSource(recovery.Config{
		Space: testSpace, Worker: w.worker, Incarnation: w.incarnation, Ring: 1, RingBytes: 1 << 20, KeepDump: time.Second, Now: h.now,
	}))
}

func (h *leavers) now() time.Time { return time.Unix(0, h.clock.Load()) }

// ask is the recoverers'.
func (h *leavers) ask(_ context.Context, subject string, request []byte) ([]byte, error) {
	for _, w := range h.workers {
		if !w.mute && subject == stream.RecoverSubject("default", testSpace, w.worker) {
			if data, _ := w.kept.Load().Answer(request, 1<<16); data != nil {
				return data, nil
			}
		}
	}
	return nil, errLost
}

// start starts a replica from a snapshot, nil: from the beginning of the stream.
func (h *leavers) start(name string, from *leaversSnapshot) *leaversReplica {
	set := shard.New(shard.Config{Shards: 2})
	index, err := set.Open(testSpace)
	if err != nil {
		h.t.Fatal(err)
	}
	r := &leaversReplica{leavers: h, name: name, set: set}
	r.ctx, r.stop = context.WithCancel(context.Background())
	cfg := &Config{
		Namespace: "default", HoldMessages: 8, HoldBytes: 1 << 20, GapWait: time.Hour, GapAsk: time.Hour, MaxRanks: 100, MaxWorkerRanks: 100,
		MaxMessages: 1 << 20, MaxBytes: 1 << 30, Metrics: metrics.NewSet(), Log: slog.New(slog.DiscardHandler), Recoveries: 2,
		RecoverMessages: 20, RecoverAttempts: 8, RecoverTimeout: time.Minute, RecoverMin: 10 * time.Microsecond, RecoverMax: time.Millisecond,
		RecoverLimit: time.Hour, RecoverRate: 1 << 30, DumpMin: time.Millisecond, DumpMax: time.Second,
		Left: func(_ event.Space, worker uint64, rank uint32) (Departure, bool) {
			d, left := h.left[workerRank{worker, rank}]
			return d, left
		},
	}
	m := newMeters(cfg.Metrics)
	c := newRecoveries(r.ctx, cfg, m, &r.running)
	c.ask, c.now = h.ask, h.now
	c.after = func(d time.Duration) <-chan time.Time { // on the clock that silences end by, or a rank of which nobody knows would silence its worker
		h.clock.Add(int64(d))
		return time.After(0)
	}
	r.partition = newPartition(&shared{cfg: cfg, m: m, space: testSpace, index: index, badLog: new(onceASecond), recoveries: c,
		now: h.now})
	r.partition.source(0).reads(leaversBegan)
	h.replicas = append(h.replicas, r)
	seq := 0
	if from != nil {
		seq = from.seq
		for k, held := range from.held {
			state, err := index.Replace(r.ctx, shard.RankID{Worker: k.worker, DPRank: k.dpRank})
			if err == nil {
				err = fill(r.ctx, state, held)
			}
			if err == nil {
				err = state.Commit(r.ctx, func() {})
			}
			if err != nil {
				h.t.Fatal(err)
			}
		}
		for _, pos := range from.ranks {
			r.partition.resume(r.ctx, pos, r.partition.source(pos.Worker))
		}
	}
	for ; seq < len(h.stream); seq++ {
		r.feed(seq)
	}
	return r
}

// feed hands over the message at an index of the stream.
func (r *leaversReplica) feed(i int) { r.handle(r.stream[i], uint64(i)+1, false) }

func (r *leaversReplica) handle(m message, seq uint64, live bool) {
	r.number++
	n, err := r.partition.source(0).window.add(r.ctx, entry{seq: r.number, bytes: len(m.data)})
	if err != nil {
		r.t.Fatal(err)
	}
	w := r.partition.works.Get().(*work)
	w.begin(m.worker, m.data)
	w.source, w.number = r.partition.source(0), n
	w.seq, w.stream, w.live = seq, leaversBegan, live
	w.stored = r.now().Add(time.Hour) // of a server whose clock is ahead of the bucket's
	r.partition.handle(r.ctx, w)
	r.pump()
}

func (r *leaversReplica) pump() {
	for {
		select {
		case f := <-r.partition.inbox:
			f(r.ctx)
		case <-r.partition.notes.wake:
			r.partition.readNotes(r.ctx)
		default:
			return
		}
	}
}

// settle waits until no recovery is under way and everything is applied.
func (r *leaversReplica) settle() {
	for {
		r.pump()
		r.partition.applying.Wait()
		active := false
		for _, k := range r.partition.mu.ranks {
			active = active || k.recovery != nil
		}
		if !active {
			return
		}
		select {
		case f := <-r.partition.inbox:
			f(r.ctx)
		case <-r.partition.notes.wake:
			r.partition.readNotes(r.ctx)
		}
	}
}

// send has a message of the worker reach everybody.
func (h *leavers) send(w *leaver, data []byte) {
	m := message{w.worker, data}
	if !w.live {
		h.stream = append(h.stream, m)
	}
	for _, r := range h.replicas {
		if w.live {
			r.handle(m, 0, true)
		} else {
			r.feed(len(h.stream) - 1)
		}
	}
}

func (h *leavers) publish(w *leaver) {
	var evs []event.Event
	for range 1 + h.rng.IntN(3) {
		ev := w.step()
		w.ids[ev.DPRank]++
		ev.ID = w.ids[ev.DPRank]
		w.kept.Load().Apply(ev)
		w.back[ev.DPRank] = true
		evs = append(evs, ev)
	}
	h.send(w, batch(w.worker, w.incarnation, evs...))
}

// leave has ranks of the worker leave: all, if none is given.
func (h *leavers) leave(w *leaver, ranks []uint32) {
	h.clock.Add(int64(time.Second))
	d := Departure{At: h.now(), Seq: uint64(len(h.stream)), Created: leaversBegan}
	gone := ranks
	if ranks == nil {
		gone = []uint32{0, 1}
	}
	for _, n := range gone {
		h.left[workerRank{w.worker, n}] = d
		w.back[n] = false
	}
	h.late = append(h.late, change{worker: w.worker, ranks: ranks, left: d})
	if !w.mute && !w.live && h.rng.IntN(2) == 0 {
		h.publish(w) // before anybody hears of it
	}
	h.tell()
}

// register has ranks of the worker be there again.
func (h *leavers) register(w *leaver, ranks []uint32) {
	for _, n := range ranks {
		delete(h.left, workerRank{w.worker, n})
		w.back[n] = true
	}
	h.late = append(h.late, change{worker: w.worker, ranks: ranks, back: true})
	h.tell()
}

// tell has everybody hear of the changes. Who starts later cannot know that a
// worker without a stream has published something since it left, unless it is
// registered again: such do that now.
func (h *leavers) tell() {
	for _, w := range h.workers {
		for n, back := range w.back {
			k := workerRank{w.worker, n}
			if _, left := h.left[k]; left && back && w.live {
				delete(h.left, k)
				h.late = append(h.late, change{worker: w.worker, ranks: []uint32{n}, back: true})
			}
		}
	}
	for _, c := range h.late {
		for _, r := range h.replicas {
			r.partition.applyChange(r.ctx, c)
			r.pump()
		}
	}
	h.late = nil
}

func (h *leavers) restart(w *leaver) {
	w.restart()
	w.ids = map[uint32]uint64{}
	if w.incarnation != 0 {
		w.incarnation = h.rng.Uint64() | 1
	}
	h.newSource(w)
}

// keep takes a snapshot of the first replica.
func (h *leavers) keep() {
	r := h.replicas[0]
	r.settle()
	s := &leaversSnapshot{seq: len(h.stream), held: map[workerRank][]shard.Dumped{}}
	for _, k := range r.partition.positions(r.partition.source(0)) {
		s.ranks = append(s.ranks, k.RankPosition)
		held, err := r.partition.index.(*shard.Space).DumpRank(r.ctx, shard.RankID{Worker: k.Worker, DPRank: k.DPRank})
		if err != nil {
			h.t.Fatal(err)
		}
		s.held[workerRank{k.Worker, k.DPRank}] = held
	}
	h.kept = s
}

func (r *leaversReplica) close() {
	r.stop()
	r.running.Wait()
	r.partition.applying.Wait()
	r.set.Close()
}

// check compares every replica with what the workers that are there hold, after
// a few heartbeats.
func (h *leavers) check(what string) {
	h.t.Helper()
	h.tell()
	var wrong error
	for round := range 3 {
		h.clock.Add(int64(5 * time.Second))
		for _, w := range h.workers {
			if round > 0 || w.live { // what core NATS was late with shows by heartbeats only
				h.send(w, w.heartbeat())
			}
		}
		wrong = nil
		for _, r := range h.replicas {
			r.settle()
			for _, w := range h.workers {
				for n := range uint32(2) {
					wrong = errors.Join(wrong, r.compare(w, n))
				}
			}
		}
		if wrong == nil {
			return
		}
	}
	h.t.Fatalf("after %s: %v", what, wrong)
}

// compare compares what the replica has of a rank with what the rank has.
func (r *leaversReplica) compare(w *leaver, n uint32) error {
	want := map[uint64]bool{}
	if w.back[n] {
		for _, hash := range w.ranks[n].held {
			want[hash] = true
		}
	}
	held, err := r.partition.index.(*shard.Space).DumpRank(r.ctx, shard.RankID{Worker: w.worker, DPRank: n})
	if err != nil {
		return err
	}
	got, wrong := 0, 0
	for _, d := range held {
		for i, hash := range d.Event.Engine {
			if d.Copies[i] == 0 {
				continue
			}
			if got++; !want[hash] {
				wrong++
			}
		}
	}
	st := r.partition.rank(w.worker, n).status()
	switch {
	case wrong > 0, got != len(want) && !w.mute: // of a mute one is lost what it held when it left
		return fmt.Errorf("replica %s has %d blocks of worker %d, rank %d, %d of them wrongly, want %d: %+v", r.name, got, w.worker, n, wrong, len(want), st)
	case !w.live && (st.Gaps > 0 || st.Held > 0):
		return fmt.Errorf("replica %s, worker %d, rank %d: a gap where nothing was lost: %+v", r.name, w.worker, n, st)
	}
	return nil
}

func TestWhoeverLeavesAndReturnsIsAsTheModelSays(t *testing.T) {
	did := map[int]int{}
	for seed := range uint64(racetest.Few(12 * scale(t))) {
		h := newLeavers(t, seed)
		for step := range 120 {
			w := h.workers[h.rng.IntN(len(h.workers))]
			ranks := []uint32{uint32(h.rng.IntN(2))}
			what, kind := "", h.rng.IntN(14)
			switch kind {
			default:
				what = fmt.Sprint("events of ", w.worker)
				h.publish(w)
			case 0:
				what = fmt.Sprint("a heartbeat of ", w.worker)
				h.send(w, w.heartbeat())
			case 1:
				what = fmt.Sprint("worker ", w.worker, " leaves")
				h.leave(w, nil)
			case 2:
				what = fmt.Sprint("rank ", ranks[0], " of worker ", w.worker, " leaves")
				h.leave(w, ranks)
			case 3:
				if w.mute {
					break // who starts later knows more of it than who saw it leave
				}
				what = fmt.Sprint("ranks of worker ", w.worker, " are registered")
				if h.rng.IntN(2) == 0 {
					ranks = []uint32{0, 1}
				}
				h.register(w, ranks)
			case 4:
				if w.mute && min(w.ids[0], w.ids[1]) < 2 {
					break // without incarnations, the first event once more may be a copy
				}
				what = fmt.Sprint("worker ", w.worker, " restarts")
				h.restart(w)
				for w.mute && len(w.ids) < 2 { // nobody hears of it before its next events
					h.publish(w)
				}
				h.send(w, w.heartbeat())
			case 5:
				what = "a snapshot"
				h.tell()
				h.keep()
			case 6:
				what = "a start from a snapshot"
				if h.kept == nil {
					break
				}
				h.tell()
				h.start(what, h.kept)
			case 7:
				what = "a start from nothing"
				h.tell()
				h.start(what, nil)
			}
			if what != "" {
				did[kind]++
			}
			h.check(fmt.Sprint("seed ", seed, ", step ", step, ", ", what))
			if len(h.replicas) > 3 {
				h.replicas[1].close()
				h.replicas = append(h.replicas[:1], h.replicas[2:]...)
			}
		}
		for _, r := range h.replicas {
			r.close()
		}
	}
	for kind := range 8 {
		if did[kind] == 0 {
			t.Errorf("nothing of kind %d has happened", kind)
		}
	}
}
