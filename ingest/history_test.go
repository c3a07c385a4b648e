package ingest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/shard"
)

// scale multiplies the histories of long tests: KVATLAS_TEST_SCALE.
func scale(t testing.TB) int {
	t.Helper()
	s := os.Getenv("KVATLAS_TEST_SCALE")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("KVATLAS_TEST_SCALE=%q: give a whole number from 1 on", s)
	}
	return n
}

// seeds is how many histories a test has of n at scale 1. Under the race detector it is a
// tenth: make test runs those whose name says EndsEqual or Stale without it, too.
func seeds(t testing.TB, n int) uint64 {
	t.Helper()
	if race.Enabled {
		n = (n + 9) / 10
	}
	return uint64(n * scale(t))
}

// history is a seeded run of publishers, a link with faults, and one replica
// that is stepped by hand: a partition on a real index. Only recoveries run beside
// it, as they do beside a partition.
type history struct {
	t    *testing.T
	seed uint64
	live bool // core NATS instead of a stream
	rng  *rand.Rand
	tr   *truth

	workers   []*sender
	set       *shard.Set
	partition *partition
	metrics   *metrics.Set
	stop      context.CancelFunc
	ctx       context.Context
	running   sync.WaitGroup
	number    uint64
	clock     atomic.Int64 // of the partition and the publishers, in ns

	stored []message // JetStream: what the stream has

	link struct { // of recovery requests
		sync.Mutex
		rng     *rand.Rand
		sources map[string]*recovery.Source
		down    bool
	}
	found tally
}

// tally is what a history did.
type tally struct {
	published, dropped, spoilt, copies, restarts, replicas int
	gaps, recovered, dumps, overflow, failed               uint64
	exact, grouped                                         int // answers of hybrid models, and ranks that could reuse something
}

type message struct {
	worker uint64
	data   []byte
}

// sender is a worker with its publisher.
type sender struct {
	*publisher
	kept  *recovery.Source
	late  []message       // sent, and not arrived
	lacks map[uint32]bool // ranks of which the replica was not given everything
}

func (h *history) newSender(s *sender) {
	s.kept = recovery.NewSource(recovery.Config{
		Space: testSpace, Worker: s.worker, Incarnation: s.incarnation,
		Ring: 1 + h.rng.IntN(40), RingBytes: 1 << 20, KeepDump: 10 * time.Second, Now: h.now,
	})
	s.lacks = map[uint32]bool{}
	h.link.Lock()
	defer h.link.Unlock()
	h.link.sources[stream.RecoverSubject("default", testSpace, s.worker)] = s.kept
}

var errLost = errors.New("no answer")

// ask is the recoverer's: requests and answers are lost now and then.
func (h *history) ask(ctx context.Context, subject string, request []byte) ([]byte, error) {
	h.link.Lock()
	lost := h.link.down || h.link.rng.IntN(10) == 0
	src := h.link.sources[subject]
	limit := 300 + h.link.rng.IntN(3000)
	h.link.Unlock()
	if err := ctx.Err(); err != nil || lost || src == nil {
		return nil, errLost
	}
	data, _ := src.Answer(request, limit)
	if data == nil {
		return nil, errLost
	}
	return data, nil
}

func (h *history) now() time.Time { return time.Unix(0, h.clock.Load()) }

func newHistory(t *testing.T, seed uint64, live bool) *history {
	h := &history{t: t, seed: seed, live: live, rng: rand.New(rand.NewPCG(seed, 11)), tr: newTruth()}
	h.link.rng = rand.New(rand.NewPCG(seed, 12))
	h.link.sources = map[string]*recovery.Source{}
	for i := range 1 + h.rng.IntN(3) {
		s := &sender{publisher: &publisher{engine: newEngine(uint64(i), 1+h.rng.IntN(2), seed), ids: map[uint32]uint64{}}}
		s.incarnation, s.hybrid = h.rng.Uint64()|1, (seed+uint64(i))%3 == 1
		h.newSender(s)
		h.workers = append(h.workers, s)
	}
	h.openReplica(shard.New(shard.Config{Shards: 1 + h.rng.IntN(3)}), nil)
	return h
}

func (h *history) openReplica(set *shard.Set, start []RankPosition) {
	h.set, h.metrics = set, metrics.NewSet()
	h.ctx, h.stop = context.WithCancel(context.Background())
	index, err := set.Open(testSpace)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range h.workers {
		if s.hybrid {
			index.SetCacheGroups(s.worker, simGroups)
		}
	}
	cfg := &Config{
		Namespace: "default", HoldMessages: 8, HoldBytes: 1 << 20, GapWait: time.Hour, GapAsk: time.Hour, MaxRanks: 100, MaxWorkerRanks: 100,
		MaxMessages: 1 << 20, MaxBytes: 1 << 30, Metrics: h.metrics, Log: slog.New(slog.DiscardHandler),
		Recoveries: 2, RecoverMessages: 1 + h.rng.IntN(20), RecoverAttempts: 3, RecoverTimeout: time.Minute,
		RecoverMin: 1, RecoverMax: time.Microsecond, RecoverLimit: time.Hour, RecoverRate: 1 << 30,
		DumpMin: time.Second, DumpMax: 5 * time.Minute,
	}
	m := newMeters(h.metrics)
	c := newRecoveries(h.ctx, cfg, m, &h.running)
	c.ask = h.ask
	c.now, c.seed = h.now, h.seed
	c.after = func(d time.Duration) <-chan time.Time { // on the clock that silences end by
		h.clock.Add(int64(d))
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	}
	h.partition = newPartition(&shared{cfg: cfg, m: m, space: testSpace, index: index, badLog: new(onceASecond), recoveries: c,
		now: h.now})
	for _, pos := range start {
		h.partition.resume(h.ctx, pos, h.partition.source(pos.Worker))
	}
}

// closeReplica stops the replica in the middle and returns its position.
func (h *history) closeReplica() (positions []RankPosition) {
	h.stop()
	h.running.Wait()
	h.partition.applying.Wait()
	h.partition.readNotes(h.ctx)
	for _, k := range h.partition.positions(h.partition.source(0)) {
		positions = append(positions, k.RankPosition)
	}
	for _, r := range h.partition.mu.ranks {
		h.add(r.status())
	}
	h.found.overflow += h.metrics.GetOrCreateCounter("kvatlas_ingest_overflow_events_total").Get()
	h.found.recovered += h.metrics.GetOrCreateCounter("kvatlas_ingest_recovered_events_total").Get()
	return positions
}

func (h *history) add(s RankStatus) {
	h.found.gaps += s.Gaps
	h.found.dumps += s.Dumps
	h.found.failed += s.RecoveriesFailed
}

// restartReplica goes on from its position, or with nothing.
func (h *history) restartReplica() {
	h.found.replicas++
	positions := h.closeReplica()
	set := h.set
	if h.rng.IntN(2) == 0 {
		set.Close()
		set, positions = shard.New(shard.Config{Shards: 1 + h.rng.IntN(3)}), nil
	}
	h.openReplica(set, positions)
	for _, s := range h.workers {
		s.lacks = map[uint32]bool{}
	}
	if len(h.stored) > 0 {
		h.partition.distrustPositions(h.ctx, h.partition.source(0), 1<<40) // a stream is read once more, from its start
	}
	for _, m := range h.stored {
		h.feed(m)
	}
}

// feed hands the replica one message.
func (h *history) feed(m message) {
	w := h.partition.works.Get().(*work)
	w.begin(m.worker, m.data)
	if !h.live {
		h.number++
		n, err := h.partition.source(0).window.add(h.ctx, entry{seq: h.number, bytes: len(m.data)})
		if err != nil {
			h.t.Fatal(err)
		}
		w.source, w.number = h.partition.source(0), n
	}
	w.live = h.live
	h.partition.handle(h.ctx, w)
	h.pump()
}

// pump does what the partition's goroutine would do meanwhile.
func (h *history) pump() {
	for {
		select {
		case f := <-h.partition.inbox:
			f(h.ctx)
		case <-h.partition.notes.wake:
			h.partition.readNotes(h.ctx)
		default:
			return
		}
	}
}

// send has the worker publish a message, which the link may lose, delay or
// deliver twice.
func (h *history) send(s *sender) {
	var evs []event.Event
	for range 1 + h.rng.IntN(4) {
		ev := s.step()
		s.ids[ev.DPRank]++
		ev.ID = s.ids[ev.DPRank]
		h.tr.apply(s.worker, ev)
		s.kept.Apply(ev)
		h.found.published++
		if h.rng.IntN(40) == 0 {
			h.lost(s, ev) // dropped by the publisher: its number shows
			continue
		}
		evs = append(evs, ev)
	}
	m := message{s.worker, batch(s.worker, s.incarnation, evs...)}
	if h.rng.IntN(12) == 0 {
		for _, ev := range evs {
			h.lost(s, ev)
		}
		return
	}
	if h.rng.IntN(30) == 0 { // it comes, and cannot be used
		for _, ev := range evs {
			h.lost(s, ev)
		}
		h.found.spoilt++
		forms := spoil(m.data)
		m.data = forms[slices.Sorted(maps.Keys(forms))[h.rng.IntN(len(forms))]]
	}
	s.late = append(s.late, m)
	if h.live || h.rng.IntN(4) > 0 || len(s.late) > 6 {
		h.arrive(s)
	}
}

func (h *history) lost(s *sender, ev event.Event) {
	h.found.dropped++
	s.lacks[ev.DPRank] = true
}

// arrive delivers what the worker sent; in a stream messages of its window may
// have changed places.
func (h *history) arrive(s *sender) {
	late := s.late
	s.late = nil
	h.rng.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	for _, m := range late {
		for copies := 1 + max(0, h.rng.IntN(8)-6); copies > 0; copies-- {
			if !h.live {
				h.stored = append(h.stored, m)
			}
			h.feed(m)
			h.found.copies++
		}
		h.found.copies--
	}
}

func (h *history) heartbeat(s *sender) {
	h.arrive(s)
	m := message{s.worker, s.heartbeat()}
	h.feed(m)
}

// restartWorker begins a new run of an engine.
func (h *history) restartWorker(s *sender) {
	h.found.restarts++
	if h.rng.IntN(2) == 0 {
		h.arrive(s)
	}
	s.late = nil
	s.restarted(h.tr)
	h.newSender(s)
}

// run does the history and has the replica converge.
func (h *history) run() {
	for range 60 + h.rng.IntN(140) {
		h.clock.Add(int64(50 * time.Millisecond))
		s := h.workers[h.rng.IntN(len(h.workers))]
		switch h.rng.IntN(60) {
		case 0:
			h.restartWorker(s)
		case 1, 2, 3:
			h.heartbeat(s)
		case 4:
			h.restartReplica()
		case 5:
			h.link.Lock()
			h.link.down = !h.link.down
			h.link.Unlock()
		default:
			h.send(s)
		}
	}
	h.link.Lock()
	h.link.down = false
	h.link.Unlock()
	h.converge()
}

// maxRounds bounds the heartbeats that converging takes: few of them are lost.
const maxRounds = 1000

// converge lets heartbeats pass until the replica has what the workers have:
// nothing else tells of a last message that is lost.
func (h *history) converge() {
	deadline := time.Now().Add(time.Minute)
	for round := 0; ; round++ {
		h.clock.Add(int64(5 * time.Second)) // a dump that nobody fetches any more keeps other ranks waiting for two of these
		for _, s := range h.workers {
			h.heartbeat(s)
		}
		settled := true
		for settled {
			h.pump()
			h.partition.applying.Wait()
			active := false
			for _, r := range h.partition.mu.ranks {
				active = active || r.recovery != nil
			}
			if !active {
				break
			}
			select {
			case f := <-h.partition.inbox:
				f(h.ctx)
			case <-h.partition.notes.wake:
				h.partition.readNotes(h.ctx)
			case <-time.After(time.Until(deadline)):
				settled = false
			}
		}
		if settled && h.whole() {
			break
		}
		if round == maxRounds || time.Now().After(deadline) {
			for _, r := range h.partition.mu.ranks {
				h.t.Logf("%+v, active %v", r.status(), r.recovery != nil)
			}
			for _, s := range h.workers {
				h.t.Logf("worker %d, incarnation %d: %v", s.worker, s.incarnation, s.ids)
			}
			h.t.Fatalf("seed %d: not converged in %d rounds, settled %v", h.seed, round, settled)
		}
	}
	if have, want := digest(h.t, h.set), h.tr.digest(); have != want {
		for _, r := range h.partition.mu.ranks {
			h.t.Logf("%+v, active %v", r.status(), r.recovery != nil)
		}
		h.t.Fatalf("seed %d: digest %x, the oracle's %x", h.seed, have, want)
	}
	h.askGroups()
	// Whatever was lost shows.
	for _, s := range h.workers {
		for dpRank := range s.lacks {
			r := h.partition.rank(s.worker, dpRank)
			if st := r.status(); st.Gaps+st.Requests == 0 {
				h.t.Errorf("seed %d: a loss of worker %d, rank %d does not show: %+v", h.seed, s.worker, dpRank, st)
			}
		}
	}
}

// askGroups asks for prompts of which hybrid models' workers hold something.
func (h *history) askGroups() {
	var ask [][]uint64
	for _, s := range h.workers {
		for n, c := range s.ranks {
			for _, name := range c.held {
				if s.hybrid && len(ask) < 50 {
					ask = append(ask, h.tr.answers[shard.RankID{Worker: s.worker, DPRank: uint32(n)}].Chain(name))
				}
			}
		}
	}
	exact, some := h.tr.answers.check(h.t, h.set.Lookup(testSpace), ask)
	h.found.exact += exact
	h.found.grouped += some
}

// whole reports whether every rank is where its worker is.
func (h *history) whole() bool {
	for _, s := range h.workers {
		for n, id := range s.ids {
			st := h.partition.rank(s.worker, n).status()
			if st.LastID != id || st.Incomplete || st.Held > 0 {
				return false
			}
		}
	}
	return true
}

// Whatever is lost, doubled or delayed on the way, whoever restarts, and
// whenever a dump is taken: the index ends equal to the oracle fed with what
// happened, and each loss shows.
func TestEveryHistoryEndsEqualToTheOracle(t *testing.T) {
	for _, mode := range []string{"jetstream", "core"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var all tally
			for seed := range seeds(t, 500) {
				h := newHistory(t, seed, mode == "core")
				h.run()
				h.closeReplica()
				h.set.Close()
				all.sum(h.found)
			}
			t.Logf("%+v", all)
			if all.gaps == 0 || all.dumps == 0 || all.recovered == 0 || all.overflow == 0 || all.failed == 0 || all.copies == 0 || all.spoilt == 0 || all.exact == 0 || all.grouped == 0 {
				t.Error("the histories do not reach everything")
			}
		})
	}
}

// An incarnation that a replica takes as ended, because it met messages of
// others after it, is taken up again once its publisher answers.
func TestAnIncarnationIsNotOverWhileItsPublisherAnswers(t *testing.T) {
	for _, live := range []bool{false, true} {
		h := newHistory(t, 1, live)
		h.link.down = true
		for range 20 {
			for _, s := range h.workers {
				h.send(s)
			}
		}
		for _, s := range h.workers {
			h.arrive(s)
			for n := range s.ids {
				ev := store(1, 7)
				ev.DPRank = n
				h.feed(message{s.worker, batch(s.worker, s.incarnation+1, ev)})
				if st := h.partition.rank(s.worker, n).status(); st.Incarnation != s.incarnation+1 {
					t.Fatalf("incarnation %d, not the last one seen, %d", st.Incarnation, s.incarnation+1)
				}
			}
		}
		h.link.down = false
		h.converge()
		h.closeReplica()
		h.set.Close()
	}
}

func (a *tally) sum(b tally) {
	a.published += b.published
	a.dropped += b.dropped
	a.spoilt += b.spoilt
	a.copies += b.copies
	a.restarts += b.restarts
	a.replicas += b.replicas
	a.gaps += b.gaps
	a.recovered += b.recovered
	a.dumps += b.dumps
	a.overflow += b.overflow
	a.failed += b.failed
	a.exact += b.exact
	a.grouped += b.grouped
}
