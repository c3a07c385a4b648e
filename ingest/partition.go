package ingest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// partitionQueue is how many messages a partition's queue holds; then the reader waits.
const partitionQueue = 64

// partitionInbox is how many pages of recovered events, and the like, wait for a
// partition; then recoveries wait.
const partitionInbox = 16

// holdTick is how often a partition that holds messages back looks at their age.
const holdTick = 50 * time.Millisecond

// partition decodes and orders the messages of some of a space's workers. Its
// goroutine is the only user of its fields, but for those that say otherwise.
type partition struct {
	*shared
	queue     chan *work
	changes   chan change                    // of who is there
	inbox     chan func(ctx context.Context) // what others have the partition do
	ticking   map[*rank]struct{}             // ranks that wait for something
	steps     follow.Step                    // the one under way, for its memory
	byWorker  map[uint64][]*rank             // the ranks
	malformed map[uint64]struct{}            // workers of which a message was bad, and of any rank
	swept     time.Time                      // when room for ranks was last looked for
	works     sync.Pool                      // of *work; safe for concurrent use

	// notes are what the index said and is not read yet; wake holds one token.
	notes struct {
		mu   sync.Mutex
		list []note
		wake chan struct{}
	}
	truncatedRanks atomic.Int64
	stopped        chan struct{} // closed when run has ended

	mu struct { // the map is written by the partition only
		sync.Mutex
		ranks map[workerRank]*rank
	}
}

type workerRank struct {
	worker uint64
	dpRank uint32
}

// shared is what the partitions of a space and the readers of its streams have in common.
// All of it is safe for concurrent use.
type shared struct {
	cfg      *Config
	m        *meters
	space    event.Space
	index    Applier
	applying sync.WaitGroup
	badLog   *onceASecond
	contact  *contact // nil in tests: nobody keeps it
	// recoveries gets back what ranks missed; nil: nobody does.
	recoveries *recoveries
	now        func() time.Time
	divided    atomic.Pointer[error] // see otherwise
	sources
	takingUp sync.Mutex // held by a reader that takes up a snapshot
}

// otherwise says that the space is divided otherwise now: what is known of its ranks is of
// before. nil if it is not.
func (s *shared) otherwise() error {
	if why := s.divided.Load(); why != nil {
		return *why
	}
	return nil
}

func newPartition(s *shared) *partition {
	if s.now == nil {
		s.now = time.Now
	}
	if s.all.Load() == nil {
		s.divide(1, s.cfg)
	}
	l := &partition{
		shared:  s,
		queue:   make(chan *work, partitionQueue),
		inbox:   make(chan func(context.Context), partitionInbox),
		stopped: make(chan struct{}),
		ticking: make(map[*rank]struct{}),
		changes: make(chan change, changesQueued),

		byWorker:  make(map[uint64][]*rank),
		malformed: make(map[uint64]struct{}),
	}
	l.mu.ranks = make(map[workerRank]*rank)
	l.steps.Limits = s.cfg.limits(s.recoveries == nil)
	l.notes.wake = make(chan struct{}, 1)
	l.works.New = func() any { return &work{partition: l} }
	return l
}

// run handles messages until ctx ends.
func (l *partition) run(ctx context.Context) {
	defer close(l.stopped)
	ticker := time.NewTicker(holdTick)
	defer ticker.Stop()
	for {
		var tick <-chan time.Time
		if len(l.ticking) > 0 {
			tick = ticker.C
		}
		select {
		case w := <-l.queue:
			l.handle(ctx, w)
		case c := <-l.changes:
			l.applyChange(ctx, c)
		case f := <-l.inbox:
			f(ctx)
		case <-l.notes.wake:
			l.readNotes(ctx)
		case <-tick:
			l.expire(ctx)
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// do has the running partition call f and returns when it has, or has stopped.
func (l *partition) do(f func(l *partition)) {
	done := make(chan struct{})
	select {
	case l.inbox <- func(context.Context) { f(l); close(done) }:
		select {
		case <-done:
		case <-l.stopped:
		}
	case <-l.stopped:
	}
}

// look has the partition call f, or calls it once the partition has stopped.
func (l *partition) look(f func()) {
	called := false
	l.do(func(*partition) { f(); called = true })
	if !called {
		f()
	}
}

// handle decodes one message and applies, holds or skips what is in it.
func (l *partition) handle(ctx context.Context, w *work) {
	defer w.release()
	l.m.messages.Inc()
	l.m.bytes.Add(len(w.data))
	l.m.messageBytes.Update(float64(len(w.data)))
	batches, err := w.dec.DecodeAny(w.data)
	bad := w.dec.Bad()
	if err != nil && len(bad) == 0 {
		bad = []event.Bad{{Err: err}}
	}
	for i := range batches {
		b := &batches[i]
		if b.Space == (event.Space{}) {
			b.Space = l.space // a format that names none: the subject does
		}
		if err := l.refuses(w, b); err != nil {
			l.unusable(ctx, w, &event.Bad{Err: err})
			continue
		}
		l.m.filtered.Add(b.Filtered)
		if len(b.Events) == 0 {
			l.heartbeat(ctx, w, b)
			continue
		}
		l.m.batchEvents.Update(float64(len(b.Events)))
		splitByRank(b, func(dpRank uint32, b event.Batch) {
			if r := l.rank(b.Worker, dpRank); r != nil {
				l.offer(ctx, &part{work: w, rank: r, batch: b})
			}
		})
	}
	for i := range bad { // after the others: a hole between them is known by itself
		l.unusable(ctx, w, &bad[i])
	}
}

// rank returns the worker's rank, made if it is new; nil if there is no room for it.
func (l *partition) rank(worker uint64, dpRank uint32) *rank {
	if r := l.mu.ranks[workerRank{worker, dpRank}]; r != nil {
		return r
	}
	if reason, err := l.refusesRank(worker, dpRank); err != nil {
		l.skipped(worker, nil, reason, fmt.Errorf("worker %d, rank %d: %w", worker, dpRank, err))
		return nil
	}
	r := &rank{id: RankID{l.space, worker, dpRank}, extra: !l.registered(worker, dpRank)}
	r.follow = follow.New(l.seed(&r.id))
	r.stat.RankID, r.stat.FirstSeen = r.id, l.now()
	l.byWorker[worker] = append(l.byWorker[worker], r)
	l.mu.Lock()
	l.mu.ranks[workerRank{worker, dpRank}] = r
	l.mu.Unlock()
	l.step(context.Background(), r, func(k *follow.Rank, s *follow.Step) {
		if d, left := l.departure(r.id); left {
			k.Leave(s, d)
		}
		if _, bad := l.malformed[worker]; bad {
			k.Unusable(s, 0, false, errMalformed)
		}
	})
	return r
}

// extraRanks is how many ranks are followed of a worker that it is registered without: one
// that it has given up may publish on, or its registration comes late.
const extraRanks = 64

// registered reports whether the rank is one that its worker is registered with, if that is.
func (l *partition) registered(worker uint64, dpRank uint32) bool {
	return l.cfg.Registered == nil || l.cfg.Registered(l.space, worker, dpRank)
}

// refusesRank returns why a rank is not followed; nil if it is.
func (l *partition) refusesRank(worker uint64, dpRank uint32) (reason string, err error) {
	extra := 0
	for _, r := range l.byWorker[worker] {
		if r.extra {
			extra++
		}
	}
	switch n := len(l.byWorker[worker]); {
	case extra >= extraRanks && !l.registered(worker, dpRank):
		return "too_many_ranks", fmt.Errorf("the worker has %d ranks already that it is registered without", extra)
	case n >= l.cfg.MaxWorkerRanks:
		return "too_many_ranks", fmt.Errorf("the worker has %d ranks already", n)
	case len(l.mu.ranks) >= l.cfg.MaxRanks && !l.makeRoom():
		return "too_many_ranks", fmt.Errorf("already %d ranks", l.cfg.MaxRanks)
	}
	return "", nil
}

// offer gives the part to its rank.
func (l *partition) offer(ctx context.Context, p *part) {
	w, r := p.work, p.rank
	w.left.Add(1)
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) {
		r.heard = s.Now
		k.Message(s, follow.Message{Incarnation: p.batch.Incarnation, Events: p.batch.Events,
			Live: w.live, Seq: w.seqOf(s.Created), Stored: w.stored, Ref: p})
	})
}

// seed returns the seed of the chance in the rank's waits.
func (l *partition) seed(id *RankID) uint64 {
	if l.recoveries == nil {
		return 0
	}
	return rankSeed(l.recoveries.seed, id)
}
