package ingest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// laneQueue is how many messages a lane's queue holds; then the reader waits.
const laneQueue = 64

// holdTick is how often a lane that holds messages back looks at their age.
const holdTick = 50 * time.Millisecond

// lane decodes and orders the messages of some of a stream's workers. Its
// goroutine is the only user of its fields, but for those that say otherwise.
type lane struct {
	*shared
	queue   chan *work
	holding map[*rank]struct{} // ranks with held parts
	// departures tell of workers that left or are back.
	departures chan departure
	works      sync.Pool // of *work; safe for concurrent use

	mu struct { // the map is written by the lane only
		sync.Mutex
		ranks map[workerRank]*rank
	}
}

type workerRank struct {
	worker uint64
	dpRank uint32
}

// shared is what the lanes and the reader of one stream have in common. All of
// it is safe for concurrent use.
type shared struct {
	cfg      *Config
	m        *meters
	space    event.Space
	index    Applier
	window   *window
	applying sync.WaitGroup
	badLog   *onceASecond
}

func newLane(s *shared) *lane {
	l := &lane{
		shared:  s,
		queue:   make(chan *work, laneQueue),
		holding: make(map[*rank]struct{}),

		departures: make(chan departure, departures),
	}
	l.mu.ranks = make(map[workerRank]*rank)
	l.works.New = func() any { return &work{lane: l} }
	return l
}

// run handles messages until ctx ends.
func (l *lane) run(ctx context.Context) {
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
		case d := <-l.departures:
			l.depart(ctx, d)
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

// handle decodes one message and applies, holds or skips what is in it.
func (l *lane) handle(ctx context.Context, w *work) {
	defer w.release()
	l.m.messages.Inc()
	l.m.bytes.Add(len(w.data))
	l.m.messageBytes.Update(float64(len(w.data)))
	batches, err := w.dec.DecodeAny(w.data)
	if err != nil {
		l.malformed(w.worker, event.Reason(err), err)
		return
	}
	for i := range batches {
		b := &batches[i]
		if b.Worker != w.worker {
			l.malformed(w.worker, "worker_mismatch", fmt.Errorf("message of worker %d on the subject of worker %d", b.Worker, w.worker))
			continue
		}
		if b.Space == (event.Space{}) {
			b.Space = l.space // a format that names none: the subject does
		}
		if b.Space != l.space {
			l.malformed(w.worker, "space_mismatch", fmt.Errorf("message of space %+v in the stream of %+v", b.Space, l.space))
			continue
		}
		if len(b.Events) == 0 {
			l.heartbeat(ctx, w, b)
			continue
		}
		l.m.batchEvents.Update(float64(len(b.Events)))
		cut(b, func(dpRank uint32, b event.Batch) {
			if r := l.rank(b.Worker, dpRank); r != nil {
				w.left.Add(1)
				l.offer(ctx, &part{work: w, rank: r, batch: b})
			}
		})
	}
}

// malformed counts and logs something that is skipped.
func (l *lane) malformed(worker uint64, reason string, err error) {
	l.m.malformed(reason)
	if l.badLog.ok(time.Now()) {
		l.cfg.Log.Warn("message skipped; further ones of this second are only counted",
			"worker", worker, "model", l.space.Model, "reason", reason, "error", err)
	}
	for _, r := range l.ranksOf(worker) {
		r.note(func(s *RankStatus) {
			s.Malformed++
			s.LastError = err.Error()
		})
	}
}

func (l *lane) ranksOf(worker uint64) []*rank {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*rank
	for k, r := range l.mu.ranks {
		if k.worker == worker {
			list = append(list, r)
		}
	}
	return list
}

// rank returns the worker's rank, made if it is new; nil if there are too many.
func (l *lane) rank(worker uint64, dpRank uint32) *rank {
	k := workerRank{worker, dpRank}
	l.mu.Lock()
	r := l.mu.ranks[k]
	full := r == nil && len(l.mu.ranks) >= l.cfg.MaxRanks
	if r == nil && !full {
		r = newRank(RankID{l.space, worker, dpRank})
		if l.cfg.Left != nil {
			if at, ok := l.cfg.Left(l.space, worker); ok {
				r.leftAt, r.void, r.stat.Departed = at, true, true
			}
		}
		l.mu.ranks[k] = r
	}
	l.mu.Unlock()
	if full {
		l.malformed(worker, "too_many_ranks", fmt.Errorf("worker %d, rank %d: already %d ranks", worker, dpRank, l.cfg.MaxRanks))
	}
	return r
}

// offer applies the part, holds it back or drops it.
func (l *lane) offer(ctx context.Context, p *part) {
	r := p.rank
	r.note(func(s *RankStatus) { s.LastSeen = time.Now() })
	if l.ignores(r, p.work) {
		l.m.voided.Add(len(p.batch.Events))
		l.skip(ctx, r, p.batch.Incarnation, p.batch.Events[len(p.batch.Events)-1].ID, p.work)
		p.work.release()
		return
	}
	if !l.adopt(ctx, r, p.batch.Incarnation, p.work) {
		l.m.stale.Add(len(p.batch.Events))
		p.work.release()
		return
	}
	if !r.follows(p.first()) {
		if !r.hold(p) {
			l.duplicates(r, len(p.batch.Events))
			p.work.release()
			return
		}
		p.held = time.Now()
		l.m.held.Inc()
		l.holding[r] = struct{}{}
		for len(r.held) > l.cfg.HoldMessages || r.heldBytes > l.cfg.HoldBytes {
			l.giveUp(ctx, r)
		}
	} else {
		l.apply(ctx, p)
	}
	l.drain(ctx, r)
}

// adopt makes the incarnation the rank's. A new one ends everything that the
// old one held; a message of one that has ended is refused with false.
func (l *lane) adopt(ctx context.Context, r *rank, incarnation uint64, w *work) bool {
	if r.adopted && incarnation == r.incarnation {
		return true
	}
	fresh := !r.adopted
	if !r.reset(incarnation) {
		return false
	}
	for len(r.held) > 0 { // of the old incarnation
		p := r.pop()
		l.m.held.Dec()
		l.m.stale.Add(len(p.batch.Events))
		p.work.release()
	}
	if !fresh {
		l.clear(ctx, r, w)
	}
	r.note(func(s *RankStatus) { s.Incarnation = incarnation })
	return true
}

// clear drops everything that the rank holds, as part of message w: its
// publisher began anew.
func (l *lane) clear(ctx context.Context, r *rank, w *work) {
	l.m.restarts.Inc()
	r.note(func(s *RankStatus) {
		s.Restarts++
		s.Incomplete, s.LastError = false, ""
	})
	w.left.Add(1)
	l.submit(ctx, &part{work: w, rank: r, batch: event.Batch{
		Space: l.space, Worker: r.id.Worker, Incarnation: r.incarnation,
		Events: []event.Event{{Kind: event.Cleared, AllTiers: true, DPRank: r.id.DPRank}},
	}})
}

// drain applies the held parts that continue the stream.
func (l *lane) drain(ctx context.Context, r *rank) {
	for len(r.held) > 0 && r.follows(r.held[0].first()) {
		l.m.held.Dec()
		l.apply(ctx, r.pop())
	}
	if len(r.held) == 0 {
		delete(l.holding, r)
	}
	r.note(func(s *RankStatus) { s.Held, s.LastID = len(r.held), r.last })
}

// giveUp takes what the first held part waits for as lost.
func (l *lane) giveUp(ctx context.Context, r *rank) {
	l.m.held.Dec()
	l.apply(ctx, r.pop())
	l.drain(ctx, r)
}

// expire gives up what was held back for too long, or all of it when it keeps
// the reader from going on.
func (l *lane) expire(ctx context.Context, now time.Time) {
	full := l.window.full()
	for r := range l.holding {
		for len(r.held) > 0 && (full || now.Sub(r.held[0].held) >= l.cfg.HoldFor) {
			l.giveUp(ctx, r)
		}
	}
}

// heartbeat learns up to which id everything was in the stream before.
func (l *lane) heartbeat(ctx context.Context, w *work, b *event.Batch) {
	l.m.heartbeats.Inc()
	for _, pos := range b.Last {
		r := l.rank(b.Worker, pos.DPRank)
		if r == nil {
			continue
		}
		r.note(func(s *RankStatus) { s.LastSeen = time.Now() })
		if l.ignores(r, w) {
			l.skip(ctx, r, b.Incarnation, pos.ID, w)
			continue
		}
		if !l.adopt(ctx, r, b.Incarnation, w) {
			continue
		}
		for pos.ID > 0 && !r.isDuplicate(pos.ID) {
			next, lost := r.next(), pos.ID
			if len(r.held) > 0 {
				lost = min(lost, r.held[0].first()-1)
			}
			l.gap(r, next, lost)
			r.take(lost)
			l.drain(ctx, r)
		}
	}
}

// gap notes that the events from … to are lost.
func (l *lane) gap(r *rank, from, to uint64) {
	n := to - from + 1
	l.m.gaps.Inc()
	l.m.missed.Add(int(n))
	r.note(func(s *RankStatus) {
		s.Gaps++
		s.Missed += n
		s.Incomplete = true
		s.LastError = fmt.Sprintf("events %d to %d are missing", from, to)
	})
	l.m.askGap.Inc()
	l.ask(r, Gap)
}

func (s *shared) ask(r *rank, cause Cause) {
	if s.cfg.Recover != nil {
		s.cfg.Recover.Recover(r.id, cause)
	}
}

// apply hands the part's events to the index: without those that came before,
// and with the gaps among them noted.
func (l *lane) apply(ctx context.Context, p *part) {
	r := p.rank
	events := p.batch.Events
	run := events[:0] // what is left, in place
	var duplicates int
	var n uint64
	complete := false
	for i := range events {
		ev := events[i]
		if r.restarts(ev.ID) {
			if len(run) > 0 {
				q := &part{work: p.work, rank: r, batch: p.batch}
				q.batch.Events = run
				p.work.left.Add(1)
				l.submit(ctx, q)
				run = events[i:i]
			}
			r.reset(0)
			l.clear(ctx, r, p.work)
		}
		if r.isDuplicate(ev.ID) {
			duplicates++
			continue
		}
		if next := r.next(); ev.ID > next {
			l.gap(r, next, ev.ID-1)
			complete = false
		}
		r.take(ev.ID)
		l.m.events[ev.Kind].Inc()
		n++
		run = append(run, ev)
		complete = complete || ev.Kind == event.Cleared && ev.AllTiers
	}
	l.duplicates(r, duplicates)
	r.note(func(s *RankStatus) {
		s.LastID = r.last
		s.Events += n
		if complete { // whatever was missed is cleared
			s.Incomplete = false
		}
	})
	if len(run) == 0 {
		p.work.release()
		return
	}
	p.batch.Events = run
	l.submit(ctx, p)
}

// duplicates counts events that came before.
func (l *lane) duplicates(r *rank, n int) {
	if n > 0 {
		l.m.duplicates.Add(n)
		r.note(func(s *RankStatus) { s.Duplicates += uint64(n) })
	}
}

// submit gives a part to the index and waits for room there, even while the
// lane is asked to stop: what rank.take has noted has to be applied, or the
// position after Close would be a lie. It fails once the index is closed.
func (l *lane) submit(ctx context.Context, p *part) {
	l.applying.Add(1)
	if err := l.index.Apply(context.WithoutCancel(ctx), &p.batch, p.applied); err != nil {
		l.applying.Done()
		l.malformed(p.rank.id.Worker, "index_refused", err)
		p.work.release()
	}
}
