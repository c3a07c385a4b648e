package ingest

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/shard"
)

// This file is the lane's side of a recovery. A rank that recovers holds its
// events back; its recovery's goroutine posts what it gets to the lane, which
// applies it in order, and then what was held.

// repair is a rank's state between what it missed and its recovery. Its lane
// owns it, but for the notes.
type repair struct {
	active *rescue // nil: none under way
	// stale says that the index is not known to have what the worker has: a
	// dump is due.
	stale bool
	// lossy says that the publisher itself lacks something for good: its stream
	// is incomplete, and asking it brings no more.
	lossy bool
	// truncated says that the memory budget refused blocks: nothing is asked
	// for until there is room again.
	truncated bool
	// ahead says that a dump brought an incarnation of which no message has come
	// yet. One of another incarnation is older, most likely: incarnations have
	// no order, but a publisher answers for the newest.
	ahead bool
	// suspect says that a message came which cannot be used, and may have been the
	// rank's: what is missing is known to be lost.
	suspect  bool
	overflow uint64 // highest id of the events that found no room while recovering
	lacks    uint64 // event up to which something is missing, of the next recovery
	counted  uint64 // events up to it are counted as missed already
	// retry puts off recoveries after one that was in vain, dumps those that
	// need a dump after one. An engine that begins anew changes neither.
	retry, dumps pace.Pace

	// Notes of the index's goroutines for the lane.
	parentNote, refusedNote atomic.Bool
}

// notify tells the lane that a rank has notes. It is called by the index.
func (l *lane) notify(r *rank) {
	l.notes.mu.Lock()
	l.notes.ranks = append(l.notes.ranks, r)
	l.notes.mu.Unlock()
	select {
	case l.notes.wake <- struct{}{}:
	default:
	}
}

// readNotes handles what the index's goroutines noted.
func (l *lane) readNotes(ctx context.Context) {
	l.notes.mu.Lock()
	ranks := l.notes.ranks
	l.notes.ranks = nil
	l.notes.mu.Unlock()
	for _, r := range ranks {
		if r.refusedNote.Swap(false) {
			l.truncate(ctx, r)
		}
		if !r.parentNote.Swap(false) || r.lossy {
			continue // of a lossy stream the publisher has no more
		}
		r.stale = true
		if r.active == nil && l.isTime(r, UnknownParent) {
			if l.recover(ctx, r, UnknownParent); r.active == nil { // there is nobody to ask
				l.putOffDumps(r)
			}
		}
	}
}

// putOffDumps puts the rank's next dump off.
func (l *lane) putOffDumps(r *rank) {
	now := l.now()
	r.dumps.Later(now, now, l.cfg.DumpMin, l.cfg.DumpMax, l.seed(r))
}

// putOff puts the rank's next recovery off, after one that began at began.
func (l *lane) putOff(r *rank, began time.Time) {
	least := 4 * l.cfg.RecoverMin // it was tried several times already
	r.retry.Later(began, l.now(), least, max(least, l.cfg.RecoverMax), l.seed(r))
}

// seed is of the chance in the rank's waits.
func (l *lane) seed(r *rank) uint64 {
	if l.recoverer == nil {
		return 0
	}
	return rankSeed(l.recoverer.seed, &r.id)
}

// truncate marks a rank whose blocks were refused. Refusing must not cause
// requests: the rank is brought up to date when there is room again.
func (l *lane) truncate(ctx context.Context, r *rank) {
	if !r.truncated {
		l.m.truncated.Inc()
		l.truncatedRanks.Add(1)
	}
	r.truncated, r.stale = true, true
	r.note(func(s *RankStatus) { s.Truncated, s.Incomplete = true, true })
	l.cancel(r)
	l.letGo(ctx, r)
}

// resynchronise brings one truncated rank up to date: there is room again. It
// reports whether there was one.
func (l *lane) resynchronise(ctx context.Context) bool {
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

// void takes every rank's state as not known: its position means nothing.
func (l *lane) void(ctx context.Context) {
	for _, r := range l.mu.ranks {
		r.stale, r.seq = true, 0
		r.lead(r.adopted)
		l.recover(ctx, r, Void)
	}
}

// mayRecover reports whether asking for the rank is possible and allowed now.
func (l *lane) mayRecover(r *rank, cause Cause) bool {
	return l.recoverer != nil && !r.truncated && l.isTime(r, cause)
}

// isTime reports whether a recovery was not in vain, or long enough ago.
func (l *lane) isTime(r *rank, cause Cause) bool {
	now := l.now()
	return r.retry.Ready(now) && (!r.needsDump(cause) || r.dumps.Ready(now))
}

// needsDump reports whether events alone cannot bring the rank up to date.
func (r *rank) needsDump(cause Cause) bool {
	return r.stale || cause != Gap && cause != Retry && cause != Unusable
}

// recover begins the rank's recovery, if there is none under way. What cannot
// be recovered now is tried again at the rank's heartbeats.
func (l *lane) recover(ctx context.Context, r *rank, cause Cause) {
	if r.void {
		return // nothing is wanted of it before it is back
	}
	l.m.asked[cause].Inc()
	if l.cfg.Recover != nil {
		l.cfg.Recover.Recover(r.id, cause)
	}
	if r.active != nil || !l.mayRecover(r, cause) {
		return
	}
	need := max(r.lacks, r.overflow)
	if len(r.held) > 0 {
		need = max(need, r.held[0].first()-1)
	}
	r.active = l.recoverer.start(l, r, cause, need)
	r.overflow, r.lacks, r.suspect = 0, 0, false
	r.note(func(s *RankStatus) { s.Incomplete, s.Recovering, s.Awaited = true, true, cause == Discovery })
}

// missing begins the recovery of a rank that lacks the events up to an id; the
// caller has asked mayRecover.
func (l *lane) missing(ctx context.Context, r *rank, cause Cause, to uint64) {
	if cause == Gap {
		l.gap(r, r.next(), to)
	}
	r.lacks = to
	l.recover(ctx, r, cause)
}

// lead sets whether the rank's incarnation is ahead of its messages.
func (r *rank) lead(ahead bool) {
	if r.ahead != ahead {
		r.ahead = ahead
		r.note(func(s *RankStatus) { s.ahead = ahead })
	}
}

// setLossy notes what the publisher says of its stream.
func (r *rank) setLossy(lossy bool) {
	if r.lossy == lossy {
		return
	}
	r.lossy = lossy
	incomplete := r.lacking()
	r.note(func(s *RankStatus) {
		s.Incomplete = incomplete
		if lossy {
			s.LastError = "its publisher lacks events that nobody has any more"
		} else if !incomplete {
			s.LastError = ""
		}
	})
}

// infers reports whether what the rank stores below unknown parents is looked
// for with other workers: nothing better is to be had at the moment.
func (r *rank) infers() bool { return r.stale && r.active == nil && !r.truncated }

// gapCause says why a rank lacks events.
func (r *rank) gapCause(live bool) Cause {
	if live && !r.known {
		return Discovery // it began before this replica listened
	}
	return Gap
}

// cancel ends the recovery that is under way; what it still posts is ignored.
func (l *lane) cancel(r *rank) {
	if r.active != nil {
		r.active.cancel()
		r.active = nil
		r.note(func(s *RankStatus) { s.Recovering, s.Awaited = false, false })
	}
}

// letGo applies everything that is held, over the gaps.
func (l *lane) letGo(ctx context.Context, r *rank) {
	for len(r.held) > 0 {
		l.giveUp(ctx, r)
	}
}

// spill drops what a recovering rank holds: the recovery gets it once more.
func (l *lane) spill(r *rank) {
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
func (l *lane) recovered(ctx context.Context, r *rank, b *event.Batch) (fresh bool) {
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
	lossy       bool   // of an incomplete stream
	outcome     core.Outcome
}

// replace makes the dump the rank's state, in one step for lookups. It reports
// false if the dump is of a run of the engine that is over, or the rank is
// gone; the caller then aborts the replacement.
func (l *lane) replace(ctx context.Context, r *rank, d *dump) bool {
	if r.incarnation != d.incarnation && !l.succeed(r, d.incarnation) {
		return false
	}
	l.applying.Add(1)
	if err := d.state.Commit(context.WithoutCancel(ctx), l.applying.Done); err != nil {
		l.applying.Done()
		return false
	}
	r.known, r.begun, r.last, r.stale = true, 0, d.last, false
	r.setLossy(d.lossy)
	l.m.dumps.Inc()
	l.putOffDumps(r)
	r.note(func(s *RankStatus) { s.LastID, s.Dumps = r.last, s.Dumps+1 })
	l.drain(ctx, r)
	return true
}

// doubt asks the publisher, now and then, which incarnation is its present one:
// messages come of one that is taken as ended. Mostly they are late; but who
// reads a stream once more while nobody answers takes up old incarnations, and
// the present one as ended with them.
func (l *lane) doubt(ctx context.Context, r *rank) {
	if r.active == nil && l.mayRecover(r, Retry) {
		l.recover(ctx, r, Retry)
	}
}

// succeed makes the incarnation the rank's, as adopt does, where a dump takes
// the place of everything before. It has not ended, whatever was thought: its
// publisher answers.
func (l *lane) succeed(r *rank, incarnation uint64) bool {
	fresh := !r.adopted
	r.ended = slices.DeleteFunc(slices.Clone(r.ended), func(e uint64) bool { return e == incarnation })
	if !r.reset(incarnation) {
		return false
	}
	l.discard(r)
	r.lead(true)
	if !fresh {
		l.m.restarts.Inc()
		r.note(func(s *RankStatus) { s.Restarts++ })
	}
	return true
}

// discard drops what is held of an incarnation that is over.
func (l *lane) discard(r *rank) {
	for len(r.held) > 0 {
		p := r.pop()
		l.m.held.Dec()
		l.m.stale.Add(len(p.batch.Events))
		p.work.release()
	}
}

// ended notes how a recovery went: nil is well.
func (l *lane) ended(ctx context.Context, r *rank, v *rescue, err error) {
	r.active = nil
	again := len(r.held) > 0 || r.overflow > r.last && r.known
	reached := r.last >= v.need || r.incarnation != v.was
	vain := err != nil || !reached || !v.got && v.need == 0
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
		r.stale = true
		r.lead(false)
		if len(r.held) > 0 && (r.suspect || r.held[0].work.live) { // else it may be late, see expire
			l.letGo(ctx, r)
		}
		return
	}
	if v.refused {
		l.truncate(ctx, r)
		return
	}
	r.stale = r.stale || v.unplaced // perhaps another worker that knows the place comes yet
	if again && vain {
		r.stale = true // the publisher does not have what it sent
		l.letGo(ctx, r)
		again = false
	}
	again = again || r.stale && !v.unplaced && !vain // not all was waited for
	r.note(func(s *RankStatus) {
		s.Incomplete = again || r.lacking() || v.incomplete
		if !s.Incomplete {
			s.LastError = ""
		}
	})
	if !again {
		return
	}
	if l.recover(ctx, r, Retry); r.active == nil { // not now
		r.stale = true
		l.letGo(ctx, r)
	}
}
