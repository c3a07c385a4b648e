package ingest

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// WorkerRemover is what an Applier may be, too: RemoveWorker drops all that
// the worker holds and returns when that is done.
type WorkerRemover interface {
	RemoveWorker(ctx context.Context, worker uint64) error
}

// departure tells a lane that a worker left, or is back.
type departure struct {
	worker uint64
	at     time.Time // by the server's clock; zero: it is back
}

// departures bounds what waits for a lane; then the caller waits.
const departures = 64

// WorkerLeft drops what the worker holds in the space, and voids its streams:
// what they published until at, by the server's clock, is ignored, and the next
// event after it asks the Recoverer for a full dump. It reports false if the
// space is not known, so that nothing is done. The work is done later, in
// order with the worker's events. ctx bounds the wait for the lane.
func (in *Ingest) WorkerLeft(ctx context.Context, sp event.Space, worker uint64, at time.Time) bool {
	return in.send(ctx, sp, departure{worker, at})
}

// WorkerReturned asks the Recoverer for a full dump of the worker's streams
// that are void, without waiting for their next event.
func (in *Ingest) WorkerReturned(ctx context.Context, sp event.Space, worker uint64) bool {
	return in.send(ctx, sp, departure{worker: worker})
}

func (in *Ingest) send(ctx context.Context, sp event.Space, d departure) (known bool) {
	g, ok := in.groups.Load(stream.Token(sp))
	if !ok {
		return false
	}
	l := g.lane(d.worker)
	select {
	case l.departures <- d:
	case <-l.stopped:
	case <-ctx.Done():
	}
	return true
}

// depart handles a departure.
func (l *lane) depart(ctx context.Context, d departure) {
	ranks := l.byWorker[d.worker]
	if d.at.IsZero() {
		for _, r := range ranks {
			l.revive(ctx, r)
		}
		return
	}
	done := len(ranks) > 0
	for _, r := range ranks {
		done = done && !r.leftAt.Before(d.at)
	}
	if done {
		return
	}
	l.m.departed.Inc()
	for _, r := range ranks {
		l.cancel(r)
		for len(r.held) > 0 {
			p := r.pop()
			l.m.held.Dec()
			l.m.voided.Add(len(p.batch.Events))
			p.work.release()
		}
		delete(l.holding, r)
		r.leftAt, r.void, r.suspect = d.at, true, false
		r.note(func(s *RankStatus) { s.Departed, s.Held, s.LastError = true, 0, "its worker left" })
	}
	// Parts given to the index before are in front of this in its queue.
	remover, ok := l.index.(WorkerRemover)
	if !ok {
		l.cfg.Log.Error("the index cannot drop a worker", "worker", d.worker, "model", l.space.Model)
		return
	}
	if err := remover.RemoveWorker(context.WithoutCancel(ctx), d.worker); err != nil {
		l.cfg.Log.Error("the blocks of a worker that left stay in the index", "worker", d.worker, "model", l.space.Model, "error", err)
	}
}

// revive asks for a full dump of a rank whose worker had left and is back.
func (l *lane) revive(ctx context.Context, r *rank) {
	if !r.void {
		return
	}
	r.void = false
	r.note(func(s *RankStatus) {
		s.Departed, s.Incomplete = false, true
		s.LastError = "its worker had left: what it held before is not known"
	})
	r.stale = true
	l.recover(ctx, r, Departed)
}

// ignores reports whether the message is from before the rank's worker left.
// The first one from after it revives the rank.
func (l *lane) ignores(ctx context.Context, r *rank, w *work) bool {
	if r.leftAt.IsZero() {
		return false
	}
	if !w.stored.IsZero() && !w.stored.After(r.leftAt) {
		return true
	}
	l.revive(ctx, r)
	return false
}

// skip follows the ids of a message that is ignored, so that the stream goes
// on after it without a gap.
func (l *lane) skip(ctx context.Context, r *rank, incarnation, last uint64, w *work) {
	if l.adopt(ctx, r, incarnation, w) && !r.isDuplicate(last) {
		r.take(last)
		r.note(func(s *RankStatus) { s.LastID = last })
	}
}
