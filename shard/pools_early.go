package shard

import (
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

const (
	// earlyOps is how many of the last things that were said are remembered for registrations that come late, 32
	// bytes each. It is no setting: what a worker says of stores in the seconds until its registration is known is far less.
	earlyOps = 1 << 16
	// earlyKeep is how long a worker's registration is awaited; one that comes later finds what
	// the worker is taken to have, and nothing of what it said has left.
	earlyKeep = 5 * time.Minute
)

// early has what workers said of lower tiers while nobody knew whether these are a pool's, as their registration was
// not known, and, as long as there is some of that, what was said of pools: in order. So a registration that comes
// late changes pools as if it had been there. Until then all of it is the workers' own, and nothing waits. Space.mu guards it.
type early struct {
	ops   []earlyOp // a ring, the oldest at head once it is full
	head  int
	of    map[uint64]int       // how many of ops are of a worker that is awaited
	since map[uint64]time.Time // since when, as far as AgePools has looked
}

// earlyOp is a block that was said to be there or to have left, or that all have.
type earlyOp struct {
	worker    uint64 // or the pool's
	hash      uint64
	published int64
	rank      uint32 // event.PoolRank: a pool's
	kind      event.Kind
	tier      event.Tier
	none      bool // nobody asks any more
}

// hear notes what a worker says of lower tiers whose registration is not known.
func (e *early) hear(b *event.Batch) {
	for i := range b.Events {
		ev := &b.Events[i]
		if !lower(ev) || ev.Group > 0 || ev.DPRank == event.PoolRank {
			continue
		}
		e.add(earlyOp{worker: b.Worker, rank: ev.DPRank, published: b.Published, kind: ev.Kind, tier: ev.Tier}, ev.Engine)
	}
}

// hearPool notes what is said of a pool.
func (e *early) hearPool(id RankID, kind event.Kind, hashes []uint64, published int64) {
	if len(e.of) > 0 {
		e.add(earlyOp{worker: id.Worker, rank: id.DPRank, published: published, kind: kind}, hashes)
	}
}

func (e *early) add(op earlyOp, hashes []uint64) {
	if op.kind == event.Cleared {
		hashes = []uint64{0}
	}
	if e.of == nil {
		e.of, e.since = make(map[uint64]int), make(map[uint64]time.Time)
	}
	if op.rank != event.PoolRank && len(hashes) > 0 {
		e.of[op.worker] += len(hashes)
	}
	for _, op.hash = range hashes {
		if len(e.ops) < earlyOps {
			e.ops = append(e.ops, op)
			continue
		}
		if e.drop(&e.ops[e.head]); len(e.of) == 0 { // that was the last of it
			e.tidy()
			return
		}
		e.ops[e.head] = op
		e.head = (e.head + 1) % earlyOps
	}
}

// drop takes one off the counts, and all away with the last.
func (e *early) drop(op *earlyOp) {
	if op.none {
		return
	}
	op.none = true
	if op.rank == event.PoolRank {
		return
	}
	if n := e.of[op.worker] - 1; n > 0 {
		e.of[op.worker] = n
		return
	}
	delete(e.of, op.worker)
	delete(e.since, op.worker)
}

// forget drops what the workers have said: their registrations are known, or they are not awaited any more. It goes
// through all that is remembered once, however many they are.
func (e *early) forget(workers ...uint64) {
	gone := make(map[uint64]struct{})
	for _, worker := range workers {
		if e.of[worker] > 0 {
			gone[worker] = struct{}{}
		}
	}
	if len(gone) == 0 {
		return
	}
	for i := range e.ops {
		op := &e.ops[i]
		if _, is := gone[op.worker]; is && op.rank != event.PoolRank {
			e.drop(op)
		}
	}
	e.tidy()
}

// tidy lets all go when nobody is awaited.
func (e *early) tidy() {
	if len(e.of) == 0 {
		*e = early{}
	}
}

// overdue returns the workers that have been awaited for long, as of now.
func (e *early) overdue(now time.Time) (workers []uint64) {
	for worker := range e.of {
		since, known := e.since[worker]
		if !known {
			e.since[worker] = now
		} else if now.Sub(since) >= earlyKeep {
			workers = append(workers, worker)
		}
	}
	return workers
}

// fate is what became of a block of a pool in which a worker had a part before its registration was known.
type fate struct {
	there     bool
	worker    bool  // by the worker, last or since it was there
	published int64 // of what said that it has left; 0: it is not known
	clears    int   // of settled, when this became of it
}

// settled is what a worker said of a pool before its registration was known, and what was said of the pool since.
type settled struct {
	of        map[uint64]fate
	cleared   bool // by the worker: what is not there in of has left
	published int64
	clears    int  // of all blocks, by anyone
	last      fate // of all that are in of since before the last of them
}

// settle takes what the worker has said of its pools for theirs, and returns what comes of it, by pool; nil if it
// has said nothing.
func (e *early) settle(worker uint64, w *workerPools) []settled {
	if e.of[worker] == 0 {
		return nil
	}
	all := make([]settled, len(w.named))
	at := make(map[uint64]int, len(w.named))
	for i, p := range w.named {
		all[i].of = make(map[uint64]fate)
		at[p.id.Worker] = i
	}
	for i := range e.ops {
		op := &e.ops[(e.head+i)%len(e.ops)]
		mine := op.rank != event.PoolRank
		p, is := at[op.worker]
		if mine {
			p, is = w.of[op.tier]-1, w.of[op.tier] > 0
		}
		if op.none || mine && op.worker != worker {
			continue
		}
		if mine {
			e.drop(op)
		}
		if !is || w.named[p].sources > 0 {
			continue
		}
		all[p].say(op, mine, w.named[p])
		if mine { // to who comes later still, it was the pool's
			op.worker, op.rank, op.none = w.named[p].id.Worker, event.PoolRank, false
		}
	}
	e.tidy()
	for i := range all {
		for hash := range all[i].of {
			all[i].of[hash], _ = all[i].fate(hash)
		}
	}
	return all
}

// fate returns what has become of the block. Clears do not go through all of them: a stream may have many.
func (x *settled) fate(hash uint64) (f fate, known bool) {
	if f, known = x.of[hash]; known && f.clears < x.clears {
		f = x.last
	}
	return f, known
}

// say applies what was said next, by the worker or not.
func (x *settled) say(op *earlyOp, mine bool, p *namedPool) {
	f, known := x.fate(op.hash)
	next := fate{clears: x.clears}
	switch {
	case op.kind == event.Cleared:
		x.clears++
		x.last = fate{worker: mine, published: op.published, clears: x.clears}
		if mine {
			x.cleared, x.published = true, max(x.published, op.published)
		}
		return
	case !known && !x.cleared && !mine:
		return // the pool's own business
	case op.kind == event.Removed:
		next.worker, next.published = mine, op.published
	case f.there || !late(op.published, f.published) && !late(op.published, x.published) && !p.late(op.hash, op.published):
		next.there, next.worker = true, mine || f.there && f.worker
	case !known: // it comes late: it has left by the worker's clear, or else what the pool has stays
		next.worker, next.published = x.cleared, x.published
	default:
		return
	}
	x.of[op.hash] = next
}

// settleIn has the pools be as if the worker's registration had been known in time, but for what the worker has of
// its own. Space.mu is held.
func (k *takers) settleIn() {
	for i := range k.early {
		if x := &k.early[i]; x.cleared {
			k.named[i].clear(x.published)
		}
		for e, f := range k.early[i].of {
			switch {
			case f.there && f.worker:
				k.named[i].back([]uint64{e}, 0)
			case !f.there && f.worker:
				k.named[i].add([]uint64{e}, f.published)
			}
		}
	}
}

// settle does this shard's part: what has left the pools goes.
func (o *owner) settle(k *takers) {
	for i := range k.early {
		m, x := k.members[i], &k.early[i]
		if m == nil || o.index.Empty(o.holder(m)) {
			continue
		}
		var gone []uint64
		for e, f := range x.of {
			if !f.there && f.worker {
				gone = append(gone, e)
			}
		}
		if x.cleared {
			var others []uint64
			for _, e := range o.has(m) {
				if _, said := x.of[e]; !said {
					others = append(others, e)
				}
			}
			k.named[i].add(others, x.published)
			gone = append(gone, others...)
		}
		o.takeOut(m, gone)
		o.publish(m)
	}
}

// settleThere stores what the worker has said to be in its pools where they know the place themselves.
func (o *owner) settleThere(k *takers) {
	for i := range k.early {
		m := k.members[i]
		if m == nil || o.index.Empty(o.holder(m)) {
			continue
		}
		ev := event.Event{Kind: event.Stored, Tier: k.tiers[i]}
		for e, f := range k.early[i].of {
			if f.there && f.worker && o.index.Knows(o.holder(m), e) {
				ev.Engine = append(ev.Engine, e)
			}
		}
		core.StoreHashOnly(o.index, o.holder(m), &ev, false, func(int) (core.Holder, bool) { return 0, false })
		o.publish(m)
	}
}
