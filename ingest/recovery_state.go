package ingest

import (
	"context"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/shard"
)

// This file is the partition's side of a recovery. A rank that recovers holds its
// events back; its recovery's goroutine posts what it gets to the partition, which
// applies it in order, and then what was held.

// recoveryState is a rank's state between what it missed and its recovery. Its partition
// owns it.
type recoveryState struct {
	active *rankRecovery // nil: none under way
	// needsDump says that the index is not known to have what the worker has: a
	// dump is due.
	needsDump bool
	// publisherIncomplete says that the publisher itself lacks something for good: its stream
	// is incomplete, and asking it brings no more.
	publisherIncomplete bool
	// partial says that the rank's state is of a dump of a publisher that does not
	// know all that the rank holds.
	partial bool
	// truncated says that the memory budget refused blocks: nothing is asked
	// for until there is room again.
	truncated bool
	// unconfirmed says that a dump brought an incarnation of which no message has come
	// yet. One of another incarnation is older, most likely: incarnations have
	// no order, but a publisher answers for the newest.
	unconfirmed bool
	// suspect says that a message came which cannot be used, and may have been the
	// rank's: what is missing is known to be lost.
	suspect   bool
	overflow  uint64 // highest id of the events that found no room while recovering
	missingTo uint64 // event up to which something is missing, of the next recovery
	missedTo  uint64 // events up to it are counted as missed already
	// retry puts off recoveries after one that was in vain, dumps those that
	// need a dump after one. An engine that begins anew changes neither.
	retry, dumps pace.Pace
}

// note is what the index says of a part that it has not applied whole.
type note struct {
	rank            *rank
	era             uint64 // of the part
	parent, refused bool   // an unknown parent; the memory budget
}

// notify gives the partition a note. It is called by the index.
func (l *partition) notify(n note) {
	l.notes.mu.Lock()
	l.notes.list = append(l.notes.list, n)
	l.notes.mu.Unlock()
	select {
	case l.notes.wake <- struct{}{}:
	default:
	}
}

// readNotes handles what the index's goroutines noted.
func (l *partition) readNotes(ctx context.Context) {
	l.notes.mu.Lock()
	list := l.notes.list
	l.notes.list = nil
	l.notes.mu.Unlock()
	for _, n := range list {
		r := n.rank
		if n.era != r.era {
			continue
		}
		if n.refused {
			l.truncate(ctx, r)
		}
		if !n.parent || r.publisherIncomplete {
			continue // of a stream whose publisher is incomplete the publisher has no more
		}
		r.needsDump = true
		if r.active == nil && l.isTime(r, UnknownParent) {
			if l.recover(ctx, r, UnknownParent); r.active == nil { // there is nobody to ask
				l.putOffDumps(r)
			}
		}
	}
}

// putOffDumps puts the rank's next dump off.
func (l *partition) putOffDumps(r *rank) {
	now := l.now()
	r.dumps.Later(now, now, l.cfg.DumpMin, l.cfg.DumpMax, l.seed(r))
}

// putOff puts the rank's next recovery off, after one that began at began.
func (l *partition) putOff(r *rank, began time.Time) {
	least := 4 * l.cfg.RecoverMin // it was tried several times already
	r.retry.Later(began, l.now(), least, max(least, l.cfg.RecoverMax), l.seed(r))
}

// seed is of the chance in the rank's waits.
func (l *partition) seed(r *rank) uint64 {
	if l.recoveries == nil {
		return 0
	}
	return rankSeed(l.recoveries.seed, &r.id)
}

// truncate marks a rank whose blocks were refused. Refusing must not cause
// requests: the rank is brought up to date when there is room again.
func (l *partition) truncate(ctx context.Context, r *rank) {
	if !r.truncated {
		l.m.truncated.Inc()
		l.truncatedRanks.Add(1)
	}
	r.truncated, r.needsDump = true, true
	r.note(func(s *RankStatus) { s.Truncated, s.Incomplete = true, true })
	l.cancel(r)
	l.applyHeld(ctx, r)
}

// recoverTruncated brings one truncated rank up to date: there is room again. It
// reports whether there was one.
func (l *partition) recoverTruncated(ctx context.Context) bool {
	for _, r := range l.mu.ranks {
		if r.truncated && r.active == nil && l.isTime(r, Room) {
			r.truncated = false
			l.truncatedRanks.Add(-1)
			r.note(func(s *RankStatus) { s.Truncated = false })
			l.recover(ctx, r, Room)
			return true
		}
	}
	return false
}

// distrustPositions takes every rank's state as not known: its position means nothing.
func (l *partition) distrustPositions(ctx context.Context) {
	for _, r := range l.mu.ranks {
		r.needsDump, r.seq = true, 0
		r.setUnconfirmed(r.hasIncarnation)
		l.recover(ctx, r, Void)
	}
}

// mayRecover reports whether asking for the rank is possible and allowed now.
func (l *partition) mayRecover(r *rank, cause Cause) bool {
	return l.recoveries != nil && !r.truncated && l.isTime(r, cause)
}

// isTime reports whether a recovery was not in vain, or long enough ago.
func (l *partition) isTime(r *rank, cause Cause) bool {
	now := l.now()
	return r.retry.Ready(now) && (!r.dumpFor(cause) || r.dumps.Ready(now))
}

// dumpFor reports whether events alone cannot bring the rank up to date.
func (r *rank) dumpFor(cause Cause) bool {
	return r.needsDump || cause != Gap && cause != Retry && cause != Unusable
}

// recover begins the rank's recovery, if there is none under way. What cannot
// be recovered now is tried again at the rank's heartbeats.
func (l *partition) recover(ctx context.Context, r *rank, cause Cause) {
	if r.departed {
		return // nothing is wanted of it before it is back
	}
	l.m.asked[cause].Inc()
	if l.cfg.Recover != nil {
		l.cfg.Recover.Recover(r.id, cause)
	}
	if r.active != nil || !l.mayRecover(r, cause) {
		return
	}
	need := max(r.missingTo, r.overflow)
	if len(r.held) > 0 {
		need = max(need, r.held[0].first()-1)
	}
	r.active = l.recoveries.start(l, r, cause, need)
	r.overflow, r.missingTo, r.suspect = 0, 0, false
	r.note(func(s *RankStatus) { s.Incomplete, s.Recovering, s.Awaited = true, true, cause == Discovery })
}

// missing begins the recovery of a rank that lacks the events up to an id; the
// caller has asked mayRecover.
func (l *partition) missing(ctx context.Context, r *rank, cause Cause, to uint64) {
	if cause == Gap {
		l.gap(r, r.next(), to)
	}
	r.missingTo = to
	l.recover(ctx, r, cause)
}

// setUnconfirmed sets whether the rank's incarnation is ahead of its messages.
func (r *rank) setUnconfirmed(ahead bool) {
	if r.unconfirmed != ahead {
		r.unconfirmed = ahead
		r.note(func(s *RankStatus) { s.unconfirmed = ahead })
	}
}

// setPublisherIncomplete notes what the publisher says of its stream.
func (r *rank) setPublisherIncomplete(lossy bool) {
	if r.publisherIncomplete == lossy {
		return
	}
	r.publisherIncomplete = lossy
	incomplete := r.isIncomplete()
	r.note(func(s *RankStatus) {
		s.Incomplete = incomplete
		if lossy {
			s.LastError = "its publisher lacks events that nobody has any more"
		} else if !incomplete {
			s.LastError = ""
		}
	})
}

// mayInfer reports whether what the rank stores below unknown parents is looked
// for with other workers: nothing better is to be had at the moment.
func (r *rank) mayInfer() bool { return r.needsDump && r.active == nil && !r.truncated }

// gapCause says why a rank lacks events.
func (r *rank) gapCause(live bool) Cause {
	if live && !r.hasPosition {
		return Discovery // it began before this replica listened
	}
	return Gap
}

// awaits reports whether the recovery that is under way brings what is not there
// yet.
func (r *rank) awaits() bool {
	return r.active != nil && (len(r.held) > 0 || r.overflow > r.last || r.active.need > r.last)
}

// cancel ends the recovery that is under way; what it still posts is ignored.
func (l *partition) cancel(r *rank) {
	if r.active != nil {
		r.active.cancel()
		r.active = nil
		r.note(func(s *RankStatus) { s.Recovering, s.Awaited = false, false })
	}
}

// applyHeld applies everything that is held, over the gaps.
func (l *partition) applyHeld(ctx context.Context, r *rank) {
	for len(r.held) > 0 {
		l.acceptLoss(ctx, r)
	}
}

// spill drops what a recovering rank holds: the recovery gets it once more. Of a
// publisher that has not answered yet that is not known: then it is applied.
func (l *partition) spill(ctx context.Context, r *rank) {
	if !r.active.answered.Load() {
		l.applyHeld(ctx, r)
		return
	}
	for len(r.held) > 0 {
		p := r.pop()
		l.m.held.Dec()
		l.m.overflow.Add(len(p.batch.Events))
		r.overflow = max(r.overflow, p.batch.Events[len(p.batch.Events)-1].ID)
		p.work.release()
	}
	delete(l.holding, r)
	r.note(func(s *RankStatus) { s.Held = 0 })
}

// recovered applies a page of events that the rank missed; they follow each
// other. b's memory is its own. It reports whether there was a new one.
func (l *partition) recovered(ctx context.Context, r *rank, b *event.Batch) (fresh bool) {
	fresh = !r.isDuplicate(b.Events[len(b.Events)-1].ID)
	l.m.recoveredEvents.Add(len(b.Events))
	w := l.works.Get().(*work)
	w.begin(noNumber, r.id.Worker, nil)
	w.left.Add(1)
	l.apply(ctx, &part{work: w, rank: r, batch: *b}, false)
	w.release()
	l.drain(ctx, r)
	return fresh
}

// dump is what a recovery got instead of events.
type dump struct {
	state       *shard.Replacement
	incarnation uint64
	last        uint64 // id of the last event that is in it
	incomplete  bool   // of an incomplete stream
	outcome     core.Outcome
}

// replace makes the dump the rank's state, in one step for lookups. It reports
// false if the dump is of a run of the engine that is over, or the rank is
// gone; the caller then aborts the replacement.
func (l *partition) replace(ctx context.Context, r *rank, d *dump) bool {
	if r.incarnation != d.incarnation && !l.setIncarnationFromDump(r, d.incarnation) {
		return false
	}
	l.applying.Add(1)
	if err := d.state.Commit(context.WithoutCancel(ctx), l.applying.Done); err != nil {
		l.applying.Done()
		return false
	}
	r.anew()
	r.hasPosition, r.begun, r.last, r.needsDump = true, 0, d.last, false
	r.setPublisherIncomplete(d.incomplete)
	l.m.dumps.Inc()
	l.putOffDumps(r)
	r.note(func(s *RankStatus) { s.LastID, s.Dumps = r.last, s.Dumps+1 })
	l.drain(ctx, r)
	return true
}

// askIncarnation asks the publisher, now and then, which incarnation is its present one:
// messages come of one that is taken as ended. Mostly they are late; but who
// reads a stream once more while nobody answers takes up old incarnations, and
// the present one as ended with them.
func (l *partition) askIncarnation(ctx context.Context, r *rank) {
	if r.active == nil && l.mayRecover(r, Retry) {
		l.recover(ctx, r, Retry)
	}
}

// setIncarnationFromDump makes the incarnation the rank's, as adopt does, where a dump takes
// the place of everything before. It has not ended, whatever was thought: its
// publisher answers.
func (l *partition) setIncarnationFromDump(r *rank, incarnation uint64) bool {
	fresh := !r.hasIncarnation
	r.ended = slices.DeleteFunc(slices.Clone(r.ended), func(e uint64) bool { return e == incarnation })
	if !r.reset(incarnation) {
		return false
	}
	l.discard(r, all)
	r.setUnconfirmed(true)
	if !fresh {
		l.m.restarts.Inc()
		r.note(func(s *RankStatus) { s.Restarts++ })
	}
	return true
}

// discard drops what is held of a run of the engine that is over.
func (l *partition) discard(r *rank, over func(p *part) bool) {
	r.held = slices.DeleteFunc(r.held, func(p *part) bool {
		if !over(p) {
			return false
		}
		r.heldBytes -= p.bytes()
		l.m.held.Dec()
		l.m.stale.Add(len(p.batch.Events))
		p.work.release()
		return true
	})
}

func all(*part) bool { return true }

// ended notes how a recovery went: nil is well.
func (l *partition) ended(ctx context.Context, r *rank, v *rankRecovery, err error) {
	r.active = nil
	again := len(r.held) > 0 || r.overflow > r.last && r.hasPosition
	reached := r.last >= v.need || r.incarnation != v.atStart
	vain := err != nil || !reached || !v.progressed && v.need == 0
	if vain {
		l.putOff(r, v.began)
	} else {
		r.retry.Progress()
	}
	r.note(func(s *RankStatus) {
		s.Recovering, s.Awaited, s.AskNext = false, false, r.retry.Next()
		switch {
		case err != nil:
			s.RecoveriesFailed++
			s.LastError = err.Error()
		case vain:
			s.RecoveriesInVain++
		default:
			s.Recoveries++
		}
	})
	if err != nil {
		switch {
		case !reached || again || v.dumped || r.dumpFor(v.cause) || v.cause == Retry:
			r.needsDump = true
		case v.cause == Unusable && r.last == v.had && r.incarnation == v.atStart:
			r.suspect = true // as before
		}
		r.note(func(s *RankStatus) { s.Incomplete = r.isIncomplete() })
		r.setUnconfirmed(false)
		if len(r.held) > 0 && (r.suspect || r.held[0].work.live) { // else it may be late, see expire
			l.applyHeld(ctx, r)
		}
		return
	}
	if v.refused {
		l.truncate(ctx, r)
		return
	}
	r.needsDump = r.needsDump || v.unresolved // perhaps another worker that knows the place comes yet
	if again && vain {
		r.needsDump = true // the publisher does not have what it sent
		l.applyHeld(ctx, r)
		again = false
	}
	again = again || r.needsDump && !v.unresolved && !vain // not all was waited for
	if v.dumped {
		r.partial = v.incomplete
	}
	r.note(func(s *RankStatus) {
		s.Incomplete = again || r.isIncomplete() || v.incomplete
		if !s.Incomplete {
			s.LastError = ""
		}
	})
	if !again {
		return
	}
	if l.recover(ctx, r, Retry); r.active == nil { // not now
		r.needsDump = true
		l.applyHeld(ctx, r)
	}
}
