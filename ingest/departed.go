package ingest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
)

// WorkerRemover is what an Applier may be, too. Both drop all that is held, and
// return when that is done.
type WorkerRemover interface {
	RemoveWorker(ctx context.Context, worker uint64) error
	RemoveRank(ctx context.Context, id shard.RankID) error
}

// Departure says when a worker, or one of its ranks, left.
type Departure struct {
	// At is when that was stored, by the server's clock. It tells the departures
	// of a rank from each other.
	At time.Time
	// Seq is the last message that the space's stream had by then, and Created
	// when that stream was made: what was published up to there is void. Without
	// Created, At decides.
	Seq     uint64
	Created time.Time
	// Silent says that nobody told of it: nothing was heard of the worker any
	// more. Then a heartbeat is enough of a sign that it is back.
	Silent bool
}

// change tells a partition of ranks that left or are registered.
type change struct {
	worker uint64
	ranks  []uint32 // none: all
	left   Departure
	back   bool // registered, not left
}

// changesQueued bounds what waits for a partition; then the caller waits.
const changesQueued = 64

// WorkerLeft drops what the worker's ranks, all of them if none is given, hold
// in the space, and voids their streams: what they published until then is
// ignored, and the next event after it asks the publisher for a full dump. It
// reports false if the space is not known, so that nothing is done. The work is
// done later, in order with the worker's events. ctx bounds the wait for the
// partition.
func (in *Ingest) WorkerLeft(ctx context.Context, sp event.Space, worker uint64, ranks []uint32, d Departure) bool {
	return in.send(ctx, sp, change{worker: worker, ranks: ranks, left: d})
}

// WorkerReturned says that the worker is registered with these ranks. It asks
// for a full dump of those whose streams are void, without waiting for their
// next event.
func (in *Ingest) WorkerReturned(ctx context.Context, sp event.Space, worker uint64, ranks []uint32) bool {
	return in.send(ctx, sp, change{worker: worker, ranks: ranks, back: true})
}

func (in *Ingest) send(ctx context.Context, sp event.Space, c change) (known bool) {
	g, ok := in.groups.Load(stream.Token(sp))
	if !ok {
		return false
	}
	l := g.partition(c.worker)
	select {
	case l.changes <- c:
	case <-l.stopped:
	case <-ctx.Done():
	}
	return true
}

// applyChange handles a change of a worker.
func (l *partition) applyChange(ctx context.Context, c change) {
	ranks := slices.Clone(l.byWorker[c.worker])
	if c.ranks != nil {
		ranks = slices.DeleteFunc(ranks, func(r *rank) bool { return !slices.Contains(c.ranks, r.id.DPRank) })
	}
	if c.back {
		for _, r := range ranks {
			l.recoverReturned(ctx, r)
		}
		return
	}
	known := len(ranks) > 0
	for _, r := range ranks {
		known = known && r.left.At.Equal(c.left.At)
	}
	if known {
		return
	}
	l.m.departed.Inc()
	for _, r := range ranks {
		l.depart(r, c.left)
	}
	l.remove(ctx, c)
	for _, r := range ranks {
		if r.seq > c.left.Seq && c.left.Created.Equal(l.streamCreated()) {
			l.recoverReturned(ctx, r) // it was back before this replica heard that it had left
		}
	}
}

// remove takes what the ranks of a change hold out of the index. Parts that were
// given to it before are in front of that in its queue.
func (l *partition) remove(ctx context.Context, c change) {
	ctx = context.WithoutCancel(ctx)
	err := errCannotRemove
	if index, ok := l.index.(WorkerRemover); ok && c.ranks == nil {
		err = index.RemoveWorker(ctx, c.worker)
	} else if ok {
		err = nil
		for _, n := range c.ranks {
			err = errors.Join(err, index.RemoveRank(ctx, shard.RankID{Worker: c.worker, DPRank: n}))
		}
	}
	if err != nil {
		l.cfg.Log.Error("the blocks of a worker that left stay in the index", "worker", c.worker, "model", l.space.Model, "error", err)
	}
}

var errCannotRemove = errors.New("it cannot drop a worker")

// depart voids the rank's stream.
func (l *partition) depart(r *rank, d Departure) {
	l.cancel(r)
	for len(r.held) > 0 {
		p := r.pop()
		l.m.held.Dec()
		l.m.voided.Add(len(p.batch.Events))
		p.work.release()
	}
	delete(l.holding, r)
	l.endTruncation(r)
	r.left, r.departed = d, true
	r.anew()
	r.note(func(s *RankStatus) { s.Departed, s.Held, s.left, s.LastError = true, 0, d.At, "its worker left" })
}

// recoverReturned asks for a full dump of a rank that had left and is back.
func (l *partition) recoverReturned(ctx context.Context, r *rank) {
	if !r.departed {
		return
	}
	r.departed = false
	r.note(func(s *RankStatus) {
		s.Departed, s.Incomplete = false, true
		s.LastError = "it had left: what it held before is not known"
	})
	r.needsDump = true
	l.recover(ctx, r, Departed)
}

// departure returns when the rank left, if it is not there.
func (l *partition) departure(id RankID) (d Departure, gone bool) {
	if l.cfg.Left != nil {
		d, gone = l.cfg.Left(id.Space, id.Worker, id.DPRank)
	}
	return d, gone
}

// sweepEvery is how often a partition that is full of ranks is looked through.
const sweepEvery = time.Second

// makeRoomLocked forgets the ranks that left, as far as it is time for that: who
// of them comes back is asked for all it holds. It reports whether there were any.
func (l *partition) makeRoomLocked() bool {
	now := l.now()
	if now.Sub(l.swept) < sweepEvery {
		return false
	}
	l.swept = now
	before := len(l.mu.ranks)
	maps.DeleteFunc(l.mu.ranks, func(_ workerRank, r *rank) bool { return r.departed })
	for worker, ranks := range l.byWorker {
		if l.byWorker[worker] = slices.DeleteFunc(ranks, func(r *rank) bool { return r.departed }); len(l.byWorker[worker]) == 0 {
			delete(l.byWorker, worker)
		}
	}
	return len(l.mu.ranks) < before
}

// resume takes a rank up where a snapshot left it, unless it has left since: then
// what the snapshot has of it goes, and its position says nothing of when it left.
func (l *partition) resume(ctx context.Context, pos RankPosition) {
	r := l.rank(pos.Worker, pos.DPRank)
	if r == nil || r.hasIncarnation {
		return
	}
	left, gone := r.left, r.departed
	if gone && !left.At.Equal(pos.Left) {
		l.m.departed.Inc()
		l.remove(ctx, change{worker: pos.Worker, ranks: []uint32{pos.DPRank}})
		return
	}
	r.resume(pos)
	if gone {
		r.left = left // it says more
	} else {
		l.recoverReturned(ctx, r) // if it is void: it is registered again
	}
}

// leftAfter reports whether the rank left after the message.
func (l *partition) leftAfter(r *rank, w *work) bool {
	switch d := &r.left; {
	case w.live:
		return false // it is of this moment
	case d.Created.IsZero():
		return !w.stored.IsZero() && !w.stored.After(d.At)
	default:
		created := l.streamCreated()
		return created.Before(d.Created) || created.Equal(d.Created) && w.seq <= d.Seq
	}
}

// limitDepartures notes that the stream ends there, and gives the numbers after it to
// others than before: what it has is from before the ranks left, the rest is not.
func (l *partition) limitDepartures(last uint64) {
	for _, r := range l.mu.ranks {
		if r.departed {
			r.left.Seq = min(r.left.Seq, last)
		}
	}
}

// beforeDeparture reports whether a part is void because its rank left after it. It
// follows the ids of such, so that the stream goes on after it without a gap.
func (l *partition) beforeDeparture(ctx context.Context, p *part) bool {
	r := p.rank
	if !r.departed || !l.leftAfter(r, p.work) {
		return false
	}
	l.m.voided.Add(len(p.batch.Events))
	if !l.setIncarnation(ctx, r, p.batch.Incarnation, p.work) {
		return true
	}
	for i := range p.batch.Events {
		id := p.batch.Events[i].ID
		if r.restarts(id) {
			r.reset(0)
		}
		if !r.isDuplicate(id) {
			r.advance(id)
		}
	}
	r.note(func(s *RankStatus) { s.LastID = r.last })
	return true
}

// noteReturn handles the first sign, of the rank's present incarnation, from after
// it left: what follows the event from. What lies before that is not missing: it
// is void, or in the dump that is asked for; of an incarnation that begins there
// is none.
func (l *partition) noteReturn(ctx context.Context, r *rank, from uint64, begins bool) {
	if !r.departed {
		return
	}
	if begins {
		r.departed = false
		r.note(func(s *RankStatus) { s.Departed, s.LastError = false, "" })
		return
	}
	if from > 0 && (r.incarnation == 0 || !r.isDuplicate(from)) { // without incarnations it may be of another run
		r.advance(from)
	}
	l.recoverReturned(ctx, r)
}

// onlyAlive reports whether a heartbeat, up to an event, says of a rank that left
// nothing but that its publisher is still there. met says that the rank was known
// before.
func (l *partition) onlyAlive(r *rank, w *work, last uint64, met bool) bool {
	switch old := l.leftAfter(r, w); {
	case !r.departed || r.left.Silent && !old:
		return false
	case last == 0 || r.isDuplicate(last):
		return true
	case met && !old:
		return false // it has published something since
	}
	r.advance(last)
	r.note(func(s *RankStatus) { s.LastID = last })
	return true
}
