package ingest

import (
	"context"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// This file carries out what follow.Rank says is to be done.

// limits are what following is told of the settings.
func (c *Config) limits(deaf bool) *follow.Limits {
	source := follow.Publisher
	if deaf {
		source = follow.Mute
	}
	return &follow.Limits{
		HoldMessages: c.HoldMessages, HoldBytes: c.HoldBytes, RecoverMessages: c.RecoverMessages,
		GapAsk: c.GapAsk, GapWait: c.GapWait, RecoverMin: c.RecoverMin, RecoverMax: c.RecoverMax,
		DumpMin: c.DumpMin, DumpMax: c.DumpMax, Lease: c.Lease, Source: source,
	}
}

// step gives the rank an input, and does what follows from it.
func (l *partition) step(ctx context.Context, r *rank, f func(k *follow.Rank, s *follow.Step)) {
	s := &l.steps
	at := l.source(r.id.Worker).stream()
	s.Now, s.Created, s.Looks, s.LookEnd, s.Effects = l.now(), at.created, at.looks, at.end, s.Effects[:0]
	held, was := r.follow.Held(), r.follow.State()
	s.Answered = r.recovery != nil && r.recovery.answered.Load()
	f(&r.follow, s)
	r.setEra(r.follow.Era())
	for i := 0; i < len(s.Effects); i++ {
		e := &s.Effects[i]
		if e.Kind == follow.Apply && i+1 < len(s.Effects) && s.Effects[i+1].Kind == follow.Done && s.Effects[i+1].Ref == e.Ref {
			i++ // the message's last events: what is left of it goes with them
			p := e.Ref.(*part)
			p.batch.Events, p.era = e.Events, e.Era
			l.submit(ctx, p)
			continue
		}
		l.carryOut(ctx, r, e)
	}
	clear(s.Effects)
	if n := r.follow.Held() - held; n != 0 {
		l.m.held.Add(float64(n))
	}
	if is := r.follow.State(); is != was {
		l.changed(r, was, is)
	}
	if ticks := r.follow.Ticks(); ticks != r.ticks {
		if r.ticks = ticks; ticks {
			l.ticking[r] = struct{}{}
		} else {
			delete(l.ticking, r)
		}
	}
	r.show()
}

// changed counts and says what others than its reader have to know of a rank's state.
func (l *partition) changed(r *rank, was, is follow.State) {
	if is == follow.Truncated {
		l.m.truncated.Inc()
		l.truncatedRanks.Add(1)
	}
	if was == follow.Truncated {
		l.truncatedRanks.Add(-1)
	}
	who := []any{"worker", r.id.Worker, "dp_rank", r.id.DPRank, "model", l.space.Model}
	if is == follow.Contested {
		l.m.contested.Inc()
		l.cfg.Log.Warn("two processes publish as one rank, which leaves the answers until one of them is silent: give each worker an id of its own", who...)
	}
	if was == follow.Contested {
		l.cfg.Log.Info("one process publishes as the rank again", who...)
	}
}

func (l *partition) carryOut(ctx context.Context, r *rank, e *follow.Effect) {
	switch e.Kind {
	case follow.Apply:
		p := *e.Ref.(*part)
		p.batch.Events, p.era = e.Events, e.Era
		p.work.left.Add(1)
		l.submit(ctx, &p)
	case follow.Clear:
		l.submit(ctx, l.clearing(r, e))
	case follow.Done:
		e.Ref.(*part).work.release()
	case follow.Drop:
		l.m.dropped[e.Reason].Add(e.N)
		if e.Reason == follow.Duplicate {
			r.counts.Duplicates += uint64(e.N)
		}
	case follow.Gap:
		n := e.To - e.From + 1
		l.m.gaps.Inc()
		l.m.missed.Add(int(n))
		r.counts.Gaps++
		r.counts.Missed += n
	case follow.Restart:
		l.m.restarts.Inc()
		r.counts.Restarts++
	case follow.Want:
		l.m.asked[e.Cause].Inc()
		if l.cfg.Recover != nil {
			l.cfg.Recover.Recover(r.id, e.Cause)
		}
	case follow.Ask:
		r.recovery = l.recoveries.start(l, r, e)
	case follow.Cancel:
		r.recovery.cancel()
		r.recovery = nil
	case follow.Commit:
		l.commit(ctx, r.offered)
	}
}

// clearing is the part that empties the rank, of a message, a heartbeat or nothing.
func (l *partition) clearing(r *rank, e *follow.Effect) *part {
	var w *work
	switch of := e.Ref.(type) {
	case *part:
		w = of.work
		w.left.Add(1)
	case *work:
		w = of
		w.left.Add(1)
	default:
		w = l.works.Get().(*work)
		w.begin(r.id.Worker, nil)
	}
	return &part{work: w, rank: r, era: e.Era, batch: event.Batch{
		Space: l.space, Worker: r.id.Worker, Incarnation: r.follow.Incarnation(),
		Events: []event.Event{{Kind: event.Cleared, AllTiers: true, DPRank: r.id.DPRank}},
	}}
}

// commit puts what was offered in the place of what the index has of the rank.
func (l *partition) commit(ctx context.Context, d *dump) {
	l.applying.Add(1)
	if d.err = d.state.Commit(context.WithoutCancel(ctx), l.applying.Done); d.err != nil {
		l.applying.Done()
	} else {
		d.committed = true
	}
}

// submit gives a part to the index and waits for room there, even while the
// partition is asked to stop: what the rank has noted has to be applied, or the
// position after Close would be a lie. It fails once the index is closed.
func (l *partition) submit(ctx context.Context, p *part) {
	kinds := p.rank.counts.count(p.batch.Events)
	for k := event.Stored; k <= event.Cleared; k++ {
		l.m.events[k].Add(kinds[k])
	}
	l.applying.Add(1)
	if err := l.index.Apply(context.WithoutCancel(ctx), &p.batch, p.applied); err != nil {
		l.applying.Done()
		l.skipped(p.rank.id.Worker, []*rank{p.rank}, "index_refused", err)
		p.work.release()
	}
}

// expire lets time pass for the ranks that wait for something.
func (l *partition) expire(ctx context.Context) {
	var of *source
	for r := range l.ticking {
		if at := l.source(r.id.Worker); at != of {
			of = at
			l.steps.Full, l.steps.Read, l.steps.End = at.window.full(), at.window.progress().pos, at.end.Load()
		}
		l.step(ctx, r, (*follow.Rank).Tick)
	}
}

// heartbeat learns up to which id everything was published before.
func (l *partition) heartbeat(ctx context.Context, w *work, b *event.Batch) {
	l.m.heartbeats.Inc()
	l.endRuns(ctx, w, b)
	for _, pos := range b.Last {
		if r := l.rank(b.Worker, pos.DPRank); r != nil {
			l.beat(ctx, r, w, b.Incarnation, pos)
		}
	}
}

func (l *partition) beat(ctx context.Context, r *rank, w *work, incarnation uint64, pos event.Position) {
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) {
		r.heard = s.Now
		k.Heartbeat(s, follow.Heartbeat{Incarnation: incarnation, Last: pos.ID, Incomplete: pos.Incomplete,
			Live: w.live, Seq: w.seqOf(s.Created), Stored: w.stored, Ref: w})
	})
}

// endRuns has a heartbeat of a new run end what the publisher's other ranks held:
// those that it does not name have told nothing yet. They are of that publisher
// if they were of the same run as one that is named; or if nobody is named, and
// the worker was all of one run.
func (l *partition) endRuns(ctx context.Context, w *work, b *event.Batch) {
	if b.Incarnation == 0 {
		return
	}
	named := func(dpRank uint32) bool {
		for i := range b.Last {
			if b.Last[i].DPRank == dpRank {
				return true
			}
		}
		return len(b.Last) == 0
	}
	former, one := uint64(0), true
	for _, r := range l.byWorker[b.Worker] {
		if run := r.follow.Incarnation(); named(r.id.DPRank) {
			one, former = one && (former == 0 || run == former), run
		}
	}
	if former == 0 || former == b.Incarnation || !one {
		return
	}
	for _, r := range l.byWorker[b.Worker] {
		if r.follow.Incarnation() == former && (len(b.Last) == 0 || !named(r.id.DPRank)) {
			l.beat(ctx, r, w, b.Incarnation, event.Position{DPRank: r.id.DPRank})
		}
	}
}

// note is what the index says of a part that it has not applied whole.
type note struct {
	rank            *rank
	era             uint64 // of the part
	parent, refused bool   // an unknown parent; the memory budget
}

// notify gives the partition a note. It is called by the index.
func (l *partition) notify(n note) {
	n.rank.notes.Add(1)
	l.notes.mu.Lock()
	l.notes.list = append(l.notes.list, n)
	l.notes.mu.Unlock()
	select {
	case l.notes.wake <- struct{}{}:
	default:
	}
}

// readNotes handles what the index noted.
func (l *partition) readNotes(ctx context.Context) {
	l.notes.mu.Lock()
	list := l.notes.list
	l.notes.list = nil
	l.notes.mu.Unlock()
	for _, n := range list {
		if n.era == n.rank.follow.Era() {
			l.step(ctx, n.rank, func(k *follow.Rank, s *follow.Step) { k.Noted(s, n.parent, n.refused) })
		}
		n.rank.notes.Add(-1)
	}
}

// recoverTruncated brings one truncated rank up to date: there is room again. It
// reports whether there was one.
func (l *partition) recoverTruncated(ctx context.Context) (was bool) {
	for _, r := range l.mu.ranks {
		if r.follow.State() == follow.Truncated {
			if l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { was = k.Room(s) }); was {
				return true
			}
		}
	}
	return false
}

// distrustPositions takes the position of every rank whose events are in the stream as
// void: it ends there. nil is all streams.
func (l *partition) distrustPositions(ctx context.Context, of *source, last uint64) {
	for _, r := range l.mu.ranks {
		if of == nil || l.source(r.id.Worker) == of {
			l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Voided(s, last) })
		}
	}
}

// recovered takes a page of events that the rank missed. b's memory is its own.
func (l *partition) recovered(ctx context.Context, r *rank, b *event.Batch) {
	l.m.recoveredEvents.Add(len(b.Events))
	w := l.works.Get().(*work)
	w.begin(r.id.Worker, nil)
	p := &part{work: w, rank: r, batch: *b}
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Recovered(s, b.Events, p) })
}

// replace makes the dump the rank's state, in one step for lookups. It reports
// false if the index does not take it; the caller then aborts the replacement.
func (l *partition) replace(ctx context.Context, r *rank, d *dump) bool {
	r.offered = d
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Dump(s, d.Dump) })
	if r.offered = nil; d.committed {
		l.m.dumps.Inc()
		r.counts.Dumps++
		r.show()
	}
	return d.committed
}

// ended notes how the rank's recovery went: nil is well.
func (l *partition) ended(ctx context.Context, r *rank, v *rankRecovery, err error) {
	r.recovery = nil
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) {
		switch vain := k.Ended(s, follow.Result{Err: err, Refused: v.refused, Unplaced: v.unresolved}); {
		case err != nil:
			r.counts.RecoveriesFailed++
		case vain:
			r.counts.RecoveriesInVain++
		default:
			r.counts.Recoveries++
		}
	})
}
