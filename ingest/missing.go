package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// This file is how a partition learns that events are missing.

// expire asks for what is missing for a while, and takes what was waited for too
// long as lost, or all of it when the wait keeps the reader from going on: a
// recovery that takes its time hides no event for longer.
func (l *partition) expire(ctx context.Context, now time.Time) {
	full := l.window.full()
	for r := range l.holding {
		for len(r.held) > 0 {
			waited := now.Sub(r.held[0].held)
			if r.active == nil && (full || waited >= min(l.cfg.GapAsk, l.cfg.GapWait)) && l.mayRecover(r, Gap) {
				l.missing(ctx, r, Gap, r.held[0].first()-1)
			}
			if full && r.active != nil {
				l.spill(ctx, r)
				break
			}
			if !full && waited < l.cfg.GapWait {
				break
			}
			l.acceptLoss(ctx, r)
		}
	}
}

// heartbeat learns up to which id everything was published before.
func (l *partition) heartbeat(ctx context.Context, w *work, b *event.Batch) {
	l.m.heartbeats.Inc()
	for _, pos := range b.Last {
		r := l.rank(b.Worker, pos.DPRank)
		if r == nil {
			continue
		}
		r.note(func(s *RankStatus) { s.LastSeen = time.Now() })
		met := r.hasIncarnation
		if !l.setIncarnation(ctx, r, b.Incarnation, w) || l.onlyAlive(r, w, pos.ID, met) {
			continue
		}
		l.noteReturn(ctx, r, pos.ID, !r.hasPosition && pos.ID == 0)
		if r.active != nil {
			continue
		}
		behind := func() bool { return pos.ID > 0 && !r.isDuplicate(pos.ID) }
		cause := r.gapCause(w.live)
		switch {
		case behind() && l.mayRecover(r, cause):
			l.missing(ctx, r, cause, r.upTo(pos.ID))
		case r.needsDump && l.mayRecover(r, Retry):
			l.recover(ctx, r, Retry)
		case r.suspect && l.mayRecover(r, Unusable):
			l.recover(ctx, r, Unusable)
		}
		for r.active == nil && behind() {
			next, lost := r.next(), r.upTo(pos.ID)
			l.passOver(ctx, r, next, lost)
			r.advance(lost)
			l.drain(ctx, r)
		}
		if r.active == nil && !behind() {
			r.setPublisherIncomplete(pos.Incomplete)
		}
	}
}

// upTo returns the last id that is missing, up to id, before what is held.
func (r *rank) upTo(id uint64) uint64 {
	if len(r.held) > 0 {
		return min(id, r.held[0].first()-1)
	}
	return id
}

// passOver goes on without the events from … to.
func (l *partition) passOver(ctx context.Context, r *rank, from, to uint64) {
	l.gap(r, from, to)
	r.needsDump, r.suspect = true, false
	l.recover(ctx, r, Gap)
}

// markComplete notes that the rank lacks nothing: it holds nothing, by its own word.
func (l *partition) markComplete(r *rank) {
	l.endTruncation(r)
	r.needsDump, r.publisherIncomplete, r.partial = false, false, false
	r.note(func(s *RankStatus) { s.Incomplete, s.Truncated, s.LastError = r.suspect, false, "" })
}

// endTruncation notes that nothing of the rank waits for memory any more.
func (l *partition) endTruncation(r *rank) {
	if r.truncated {
		r.truncated = false
		l.truncatedRanks.Add(-1)
	}
}

// gap notes that the events from … to are lost.
func (l *partition) gap(r *rank, from, to uint64) {
	if from = max(from, r.missedTo+1); from > to {
		return // they are counted
	}
	r.missedTo = to
	n := to - from + 1
	l.m.gaps.Inc()
	l.m.missed.Add(int(n))
	r.note(func(s *RankStatus) {
		s.Gaps++
		s.Missed += n
		s.Incomplete = true
		s.LastError = fmt.Sprintf("events %d to %d are missing", from, to)
	})
}
