package ingest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// partitionQueue is how many messages a partition's queue holds; then the reader waits.
const partitionQueue = 64

// partitionInbox is how many pages of recovered events, and the like, wait for a
// partition; then recoveries wait.
const partitionInbox = 16

// holdTick is how often a partition that holds messages back looks at their age.
const holdTick = 50 * time.Millisecond

// partition decodes and orders the messages of some of a stream's workers. Its
// goroutine is the only user of its fields, but for those that say otherwise.
type partition struct {
	*shared
	queue     chan *work
	changes   chan change                    // of who is there
	inbox     chan func(ctx context.Context) // what others have the partition do
	holding   map[*rank]struct{}             // ranks with held parts
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

// shared is what the partitions and the reader of one stream have in common. All of
// it is safe for concurrent use.
type shared struct {
	cfg      *Config
	m        *meters
	space    event.Space
	index    Applier
	window   *window
	applying sync.WaitGroup
	badLog   *onceASecond
	// recoveries gets back what ranks missed; nil: nobody does.
	recoveries *recoveries
	now        func() time.Time
	created    atomic.Pointer[time.Time] // when the space's stream was made; nil: none is read
}

// streamCreated returns when the stream was made that is read; zero: none is.
func (s *shared) streamCreated() (at time.Time) {
	if c := s.created.Load(); c != nil {
		at = *c
	}
	return at
}

func newPartition(s *shared) *partition {
	if s.now == nil {
		s.now = time.Now
	}
	l := &partition{
		shared:  s,
		queue:   make(chan *work, partitionQueue),
		inbox:   make(chan func(context.Context), partitionInbox),
		stopped: make(chan struct{}),
		holding: make(map[*rank]struct{}),
		changes: make(chan change, changesQueued),

		byWorker:  make(map[uint64][]*rank),
		malformed: make(map[uint64]struct{}),
	}
	l.mu.ranks = make(map[workerRank]*rank)
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
		if len(l.holding) > 0 {
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
		case now := <-tick:
			l.expire(ctx, now)
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
				w.left.Add(1)
				l.offer(ctx, &part{work: w, rank: r, batch: b})
			}
		})
	}
	for i := range bad { // after the others: a hole between them is known by itself
		l.unusable(ctx, w, &bad[i])
	}
}

// rank returns the worker's rank, made if it is new; nil if there are too many.
func (l *partition) rank(worker uint64, dpRank uint32) *rank {
	k := workerRank{worker, dpRank}
	l.mu.Lock()
	r := l.mu.ranks[k]
	full := r == nil && len(l.mu.ranks) >= l.cfg.MaxRanks && !l.makeRoomLocked()
	if r == nil && !full {
		r = newRank(RankID{l.space, worker, dpRank})
		if d, left := l.departure(r.id); left {
			r.left, r.departed, r.stat.Departed = d, true, true
		}
		_, r.suspect = l.malformed[worker]
		l.mu.ranks[k] = r
		l.byWorker[worker] = append(l.byWorker[worker], r)
	}
	l.mu.Unlock()
	if full {
		l.skipped(worker, nil, "too_many_ranks", fmt.Errorf("worker %d, rank %d: already %d ranks", worker, dpRank, l.cfg.MaxRanks))
	}
	return r
}

// offer applies the part, holds it back or drops it.
func (l *partition) offer(ctx context.Context, p *part) {
	r := p.rank
	r.note(func(s *RankStatus) { s.LastSeen = time.Now() })
	if l.beforeDeparture(ctx, p) {
		p.work.release()
		return
	}
	if !l.setIncarnation(ctx, r, p.batch.Incarnation, p.work) {
		l.m.stale.Add(len(p.batch.Events))
		p.work.release()
		return
	}
	first := p.first()
	l.noteReturn(ctx, r, max(first, 1)-1, !r.hasPosition && first <= 1 || r.restarts(first))
	r.seq = max(r.seq, p.work.seq)
	if r.follows(p.first()) {
		l.apply(ctx, p, false)
	} else {
		l.wait(ctx, p)
	}
	l.drain(ctx, r)
}

// wait holds the part back until its predecessor comes. A live message comes in
// order: what is missing then is lost, as it is where a bad message came.
func (l *partition) wait(ctx context.Context, p *part) {
	r := p.rank
	p.held = l.now()
	if !r.hold(p) {
		l.duplicates(r, len(p.batch.Events))
		p.work.release()
		return
	}
	l.m.held.Inc()
	l.holding[r] = struct{}{}
	full := len(r.held) > l.cfg.HoldMessages || r.heldBytes > l.cfg.HoldBytes
	known := p.work.live || r.suspect // what is missing will not come by itself
	if cause := r.gapCause(p.work.live); r.active == nil && (full || known) && l.mayRecover(r, cause) {
		l.missing(ctx, r, cause, r.held[0].first()-1)
	}
	switch {
	case r.active != nil:
		if len(r.held) > l.cfg.RecoverMessages || r.heldBytes > l.cfg.HoldBytes {
			l.spill(ctx, r)
		}
	case known:
		l.applyHeld(ctx, r)
	default:
		for len(r.held) > l.cfg.HoldMessages || r.heldBytes > l.cfg.HoldBytes {
			l.acceptLoss(ctx, r)
		}
	}
}

// setIncarnation makes the incarnation the rank's. A new one ends everything that the
// old one held; a message of one that has ended is refused with false.
func (l *partition) setIncarnation(ctx context.Context, r *rank, incarnation uint64, w *work) bool {
	if r.hasIncarnation && incarnation == r.incarnation {
		r.setUnconfirmed(false)
		return true
	}
	if r.unconfirmed {
		// Older than what the publisher said, or it began anew once more: it is
		// asked again, now and then.
		switch {
		case slices.Contains(r.ended, incarnation):
			l.askIncarnation(ctx, r)
		case r.active == nil && l.mayRecover(r, Void):
			r.needsDump = true
			l.recover(ctx, r, Retry)
		}
		return false
	}
	fresh := !r.hasIncarnation
	if !r.reset(incarnation) {
		l.askIncarnation(ctx, r)
		return false
	}
	l.cancel(r)
	l.discard(r, all)
	if !fresh {
		l.clear(ctx, r, w)
	}
	return true
}

// clear drops everything that the rank holds, as part of message w: its
// publisher began anew.
func (l *partition) clear(ctx context.Context, r *rank, w *work) {
	l.m.restarts.Inc()
	r.anew()
	l.markComplete(r)
	r.note(func(s *RankStatus) { s.Restarts++ })
	w.left.Add(1)
	l.submit(ctx, &part{work: w, rank: r, batch: event.Batch{
		Space: l.space, Worker: r.id.Worker, Incarnation: r.incarnation,
		Events: []event.Event{{Kind: event.Cleared, AllTiers: true, DPRank: r.id.DPRank}},
	}})
}

// drain applies the held parts that continue the stream.
func (l *partition) drain(ctx context.Context, r *rank) {
	for len(r.held) > 0 && r.follows(r.held[0].first()) {
		l.m.held.Dec()
		l.apply(ctx, r.pop(), false)
	}
	if len(r.held) == 0 {
		delete(l.holding, r)
	}
	r.note(func(s *RankStatus) { s.Held, s.LastID = len(r.held), r.last })
}

// acceptLoss takes what the first held part waits for as lost.
func (l *partition) acceptLoss(ctx context.Context, r *rank) {
	l.m.held.Dec()
	l.apply(ctx, r.pop(), true)
	l.drain(ctx, r)
}

// apply hands the part's events to the index, without those that came before.
// With a gap among them the rest waits for its recovery; over says to go on
// all the same.
func (l *partition) apply(ctx context.Context, p *part, over bool) {
	r := p.rank
	events := p.batch.Events
	run := events[:0] // what is left, in place
	var duplicates int
	var n uint64
	var kinds [event.Cleared + 1]uint64
	complete, hole := false, false
	lossy := r.publisherIncomplete
	var rest *part // what comes after a gap
	for i := range events {
		ev := events[i]
		if r.begins(ev.ID) {
			run = l.flush(ctx, p, run, events[i:i])
			l.beginAnew(ctx, p)
		}
		if r.isDuplicate(ev.ID) {
			duplicates++
			continue
		}
		if next := r.next(); ev.ID > next {
			hole = true
			if !over && (r.active != nil || l.mayRecover(r, Gap)) {
				rest = &part{work: p.work, rank: r, batch: p.batch}
				rest.batch.Events = events[i:]
				p.work.left.Add(1)
				break
			}
			l.passOver(ctx, r, next, ev.ID-1)
			complete = false
		}
		r.advance(ev.ID)
		kinds[ev.Kind]++
		n++
		if ev.Kind == event.Cleared && ev.AllTiers {
			run = l.flush(ctx, p, run, events[i:i])
			r.anew()
			complete = true
		}
		lossy = ev.Incomplete
		ev.Incomplete = ev.Incomplete || r.mayInfer() && !complete
		run = append(run, ev)
	}
	l.duplicates(r, duplicates)
	for k := event.Stored; k <= event.Cleared; k++ {
		l.m.events[k].Add(int(kinds[k]))
	}
	r.note(func(s *RankStatus) {
		s.LastID = r.last
		s.Events += n
		s.Stored += kinds[event.Stored]
		s.Removed += kinds[event.Removed]
		s.Cleared += kinds[event.Cleared]
	})
	if complete { // whatever was missed before is cleared
		r.needsDump, r.partial = false, false
		if !r.awaits() {
			l.cancel(r)
			l.markComplete(r)
		}
	}
	r.setPublisherIncomplete(lossy)
	if n > 0 && !hole {
		l.unsuspect(r)
	}
	if len(run) == 0 {
		p.work.release()
	} else {
		p.batch.Events = run
		l.submit(ctx, p)
	}
	if rest != nil {
		if r.active == nil {
			l.missing(ctx, r, Gap, rest.first()-1)
		}
		l.wait(ctx, rest)
	}
}

// flush hands the run of events to the index before the rest of the part, and
// returns an empty one.
func (l *partition) flush(ctx context.Context, p *part, run, empty []event.Event) []event.Event {
	if len(run) == 0 {
		return empty
	}
	q := &part{work: p.work, rank: p.rank, batch: p.batch}
	q.batch.Events = run
	p.work.left.Add(1)
	l.submit(ctx, q)
	return empty
}

// beginAnew begins a run of a wire without incarnations, with the part: what was
// held before it is of the last one.
func (l *partition) beginAnew(ctx context.Context, p *part) {
	r := p.rank
	fresh := !r.hasPosition
	l.cancel(r)
	r.reset(0)
	l.discard(r, func(q *part) bool { return q.work.live || q.work.number <= p.work.number })
	if !fresh {
		l.clear(ctx, r, p.work)
	}
}

// duplicates counts events that came before.
func (l *partition) duplicates(r *rank, n int) {
	if n > 0 {
		l.m.duplicates.Add(n)
		r.note(func(s *RankStatus) { s.Duplicates += uint64(n) })
	}
}

// submit gives a part to the index and waits for room there, even while the
// partition is asked to stop: what rank.advance has noted has to be applied, or the
// position after Close would be a lie. It fails once the index is closed.
func (l *partition) submit(ctx context.Context, p *part) {
	l.applying.Add(1)
	p.era = p.rank.era
	if err := l.index.Apply(context.WithoutCancel(ctx), &p.batch, p.applied); err != nil {
		l.applying.Done()
		l.skipped(p.rank.id.Worker, []*rank{p.rank}, "index_refused", err)
		p.work.release()
	}
}
