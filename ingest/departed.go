package ingest

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
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
type Departure = follow.Departure

// change tells a partition of ranks that left or are registered.
type change struct {
	worker uint64
	ranks  []uint32 // none: all
	left   Departure
	back   bool  // registered, not left
	doubt  bool  // engines find other blocks than the index has
	told   *Told // what a registration says, and nothing of who is there
}

// Told is what a worker's registration says of its streams.
type Told struct {
	Incarnation uint64 // of its engine; 0: each rank has its own, or it is not known
	Last        []event.Position
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

// WorkerTold says how far a worker's registration says that its streams are: what
// the index does not have of that a while later is missing, or its engine runs anew.
// It reports false if the space is not known.
func (in *Ingest) WorkerTold(ctx context.Context, sp event.Space, worker uint64, t Told) bool {
	return in.send(ctx, sp, change{worker: worker, told: &t})
}

// Contradicted says that the engine of a rank finds other blocks than the index has of it: its
// publisher is asked for all that it holds, if nothing of it is known to be missing, and no sooner
// after the last time than Config.DumpMin says. It reports false if the space is not known.
func (in *Ingest) Contradicted(ctx context.Context, sp event.Space, id shard.RankID) bool {
	return in.send(ctx, sp, change{worker: id.Worker, ranks: []uint32{id.DPRank}, doubt: true})
}

func (in *Ingest) send(ctx context.Context, sp event.Space, c change) (known bool) {
	if !in.cfg.Share.Has(c.worker) {
		return true // another replica's: there is nothing to do
	}
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
	if c.told != nil {
		l.tell(ctx, c)
		return
	}
	ranks := slices.Clone(l.byWorker[c.worker])
	if c.ranks != nil {
		ranks = slices.DeleteFunc(ranks, func(r *rank) bool { return !slices.Contains(c.ranks, r.id.DPRank) })
	}
	if c.doubt {
		for _, r := range ranks {
			l.step(ctx, r, (*follow.Rank).Contradict)
		}
		return
	}
	if c.back {
		for _, r := range ranks {
			l.step(ctx, r, (*follow.Rank).Return)
		}
		return
	}
	known := len(ranks) > 0
	for _, r := range ranks {
		known = known && r.follow.Departure().At.Equal(c.left.At)
	}
	if known {
		return
	}
	l.m.departed.Inc()
	l.remove(ctx, c)
	for _, r := range ranks {
		l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Leave(s, c.left) })
	}
}

// tell gives the worker's ranks what its registration says of them.
func (l *partition) tell(ctx context.Context, c change) {
	last := make(map[uint32]uint64)
	for _, r := range l.byWorker[c.worker] {
		last[r.id.DPRank] = 0
	}
	for _, pos := range c.told.Last {
		last[pos.DPRank] = pos.ID
	}
	for dpRank, id := range last {
		if r := l.rank(c.worker, dpRank); r != nil {
			l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Told(s, c.told.Incarnation, id) })
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

// departure returns when the rank left, if it is not there.
func (l *partition) departure(id RankID) (d Departure, gone bool) {
	if l.cfg.Left != nil {
		d, gone = l.cfg.Left(id.Space, id.Worker, id.DPRank)
	}
	return d, gone
}

// sweepEvery is how often a partition that is full of ranks is looked through.
const sweepEvery = time.Second

// makeRoom forgets the ranks that left, as far as it is time for that: who
// of them comes back is asked for all it holds. It reports whether there were any.
func (l *partition) makeRoom() bool {
	now := l.now()
	if now.Sub(l.swept) < sweepEvery {
		return false
	}
	l.swept = now
	before := len(l.mu.ranks)
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.mu.ranks, func(_ workerRank, r *rank) bool { return r.follow.Gone() })
	for worker, ranks := range l.byWorker {
		if l.byWorker[worker] = slices.DeleteFunc(ranks, func(r *rank) bool { return r.follow.Gone() }); len(l.byWorker[worker]) == 0 {
			delete(l.byWorker, worker)
		}
	}
	return len(l.mu.ranks) < before
}

// resume takes a rank up where a snapshot left it, unless it has left since: then
// what the snapshot has of it goes, and its position says nothing of when it left. A
// snapshot of before the space was divided anew may have ranks whose events are in another
// stream now: of those it says nothing for sure.
func (l *partition) resume(ctx context.Context, pos RankPosition, from *source) {
	r := l.rank(pos.Worker, pos.DPRank)
	resumed := false
	if r == nil { // nobody would follow it
		l.remove(ctx, change{worker: pos.Worker, ranks: []uint32{pos.DPRank}})
		return
	}
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { resumed = k.Resume(s, &pos.Position) })
	switch {
	case !resumed:
		l.m.departed.Inc()
		l.remove(ctx, change{worker: pos.Worker, ranks: []uint32{pos.DPRank}})
	case l.source(pos.Worker) != from:
		l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Voided(s, math.MaxUint64) })
	}
}
