package shard

import (
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// owner is one shard. Its goroutine is the only writer of its index and ends
// when the queue is closed and empty.
//
// A name belongs to at most one shard: the one that holds its place. Every shard
// that a rank's blocks ever reached sees all of the rank's events from then on, in
// the same order as the others, and does its part of each. One that has nothing of
// the rank left says so: that takes no memory, and no longer for more ranks or
// longer events (but where others' blocks may tell what a hash-only event means).
type owner struct {
	space    *Space
	number   int
	index    core.Index
	queue    chan *task
	prefetch func(*event.Event) // the index's, if it has that
	blockOps atomic.Uint64

	ranks  []*rank                  // by holder number: who had blocks here under it last, in this shard's order
	hidden map[core.Holder]struct{} // numbers of replacements that are not committed
	said   []parentSaying           // scratch of storeNames

	account account
	full    atomic.Bool // the index is close to how many blocks it can number
}

func (o *owner) run() {
	for t := range o.queue {
		changed := t.inspect == nil
		switch {
		case t.restore != nil:
			o.restore(t)
		case t.batch != nil:
			changed = o.apply(t)
		case t.inspect != nil:
			t.inspect(o)
		default:
			if t.reveal != nil {
				delete(o.hidden, t.reveal.holder)
				o.learn(t.reveal)
			}
			for _, r := range t.ranks {
				o.index.Clear(r.holder, 0, true)
				delete(o.hidden, r.holder)
				o.publish(r)
			}
		}
		if changed {
			o.weigh()
		}
		if t.left.Add(-1) == 0 {
			o.space.finish(t)
		}
	}
}

// identity tells a digest whom a holder number stands for.
func (o *owner) identity(h core.Holder) (worker uint64, dpRank uint32) {
	if int(h) >= len(o.ranks) || o.ranks[h] == nil {
		return 0, 0
	}
	id := o.ranks[h].id
	return id.Worker, id.DPRank
}

// apply does this shard's part of a batch. It reports whether the index may
// have changed.
func (o *owner) apply(t *task) (changed bool) {
	out := &t.outs[o.number]
	before := *out
	var last *rank // of the last event of a rank that this shard has something of
	for i := range t.batch.Events {
		ev, r := &t.batch.Events[i], t.ranks[i]
		if ev.Kind != event.Cleared && ev.Tier >= event.NumTiers {
			continue
		}
		if r == nil {
			o.applyUnknown(t, ev, out)
			continue
		}
		had := !o.index.Empty(r.holder)
		if had || o.begins(ev) {
			o.prefetchAfter(t, i)
		}
		switch ev.Kind {
		case event.Stored:
			o.store(t, i, out)
		case event.Removed:
			part := o.index.Remove(r.holder, ev, t.batch.CountCopies)
			part.Unknown = o.share(t, part.Unknown, len(ev.Engine))
			out.Add(part)
		case event.Cleared:
			out.Add(o.index.Clear(r.holder, ev.Tier, ev.AllTiers))
		}
		if r != last && (had || !o.index.Empty(r.holder)) {
			o.publish(last)
			o.learn(r)
			last = r
		}
	}
	if last == nil {
		return false
	}
	o.publish(last)
	ops := out.Stored + out.Duplicate + out.Removed + out.Decremented -
		before.Stored - before.Duplicate - before.Removed - before.Decremented
	o.blockOps.Add(uint64(ops))
	return true
}

// begins reports whether the event stores a chain that begins in this shard.
func (o *owner) begins(ev *event.Event) bool {
	return ev.Kind == event.Stored && !ev.HasParent && len(ev.Local) > 0 && o.space.shardOf(ev.Local[0]) == o.number
}

// prefetchAfter tells the index which event after the i-th is the next that this
// shard has a part in.
func (o *owner) prefetchAfter(t *task, i int) {
	if o.prefetch == nil {
		return
	}
	for i++; i < len(t.batch.Events); i++ {
		ev, r := &t.batch.Events[i], t.ranks[i]
		if r != nil && (!o.index.Empty(r.holder) || o.begins(ev)) {
			o.prefetch(ev)
			return
		}
	}
}

// applyUnknown counts an event of a rank that has no holder number.
func (o *owner) applyUnknown(t *task, ev *event.Event, out *core.Outcome) {
	if ev.Kind == event.Removed && o.leads(t) {
		out.Unknown += len(ev.Engine)
	}
}

// leads reports whether of the task's shards it is the one that counts what no
// shard has.
func (o *owner) leads(t *task) bool { return t.to[0] == o }

// share turns how many of an event's blocks this shard does not have into its
// part of how many no shard has: as each block is in one shard at most, the
// parts add up to that.
func (o *owner) share(t *task, missing, blocks int) int {
	if !o.leads(t) {
		missing -= blocks
	}
	return missing
}

// store does this shard's part of a Stored event: all of it if the chain is
// here, and else it lets go of the names that now belong to another shard.
func (o *owner) store(t *task, i int, out *core.Outcome) {
	ev, h := &t.batch.Events[i], t.ranks[i].holder
	if len(t.to) == 1 {
		if ev.Incomplete && len(ev.Local) > 0 && ev.HasParent && !o.index.Knows(h, ev.Parent) {
			if say := o.ask(o.space.scheme(t.ranks[i].id.Worker), ev.Parent); say != parentUnknown {
				out.Inferred += o.index.Infer(h, say.holder(), ev.Parent)
			}
		}
		if t.scheme != "" && len(ev.Local) == 0 {
			out.Add(core.StoreHashOnly(o.index, h, ev, t.batch.CountCopies, func(j int) (core.Holder, bool) {
				say := o.ask(t.scheme, ev.Engine[j])
				return say.holder(), say != parentUnknown
			}))
			return
		}
		out.Add(o.index.Store(h, ev, t.batch.CountCopies))
		return
	}
	if len(ev.Local) == 0 {
		var part core.Outcome
		if t.scheme == "" {
			part = o.index.Store(h, ev, t.batch.CountCopies)
		} else {
			part = o.storeNames(t, i)
		}
		part.UnknownBlock = o.share(t, part.UnknownBlock, len(ev.Engine))
		out.Add(part)
		return
	}
	names := ev.Engine[:min(len(ev.Engine), len(ev.Local))]
	if !ev.HasParent {
		if o.begins(ev) {
			out.Add(o.index.Store(h, ev, t.batch.CountCopies))
		} else {
			out.Replaced += o.index.Forget(h, names)
		}
		return
	}
	if o.index.Knows(h, ev.Parent) {
		t.sayParent(i, parentHere)
		out.Add(o.index.Store(h, ev, t.batch.CountCopies))
		return
	}
	say := parentUnknown
	if ev.Incomplete {
		say = o.ask(o.space.scheme(t.ranks[i].id.Worker), ev.Parent)
	}
	if t.sayParent(i, say) {
		out.UnknownParent += len(ev.Engine)
		return
	}
	if say != parentUnknown && t.awaitParent(i) == say {
		out.Inferred += o.index.Infer(h, say.holder(), ev.Parent)
		out.Add(o.index.Store(h, ev, t.batch.CountCopies))
		return
	}
	// If another shard stores the blocks, names of theirs that are here are
	// replaced; if none does, they stay. So a shard that has such a name, and
	// only that one, waits for the verdict of the others.
	//
	// It cannot wait for ever. All shards take their events in one order
	// (Space.submit). Of the shards that wait, look at one that waits at
	// the earliest event: those that have not spoken about that event are at an
	// earlier one, hence do not wait, go on and reach it, and every shard
	// speaks about an event before it waits there.
	if o.index.KnowsAny(h, names) && t.awaitParent(i) != parentUnknown {
		out.Replaced += o.index.Forget(h, names)
	}
}

// storeNames does this shard's part of a hash-only event: the blocks whose names
// the rank knows here, and those that it knows nowhere, if this is the shard of
// the lowest holder of the scheme that does.
//
// All shards say what they know of each block; one that may have to adopt waits
// until all have spoken (it ends: see store).
func (o *owner) storeNames(t *task, i int) core.Outcome {
	ev, h := &t.batch.Events[i], t.ranks[i].holder
	o.said = o.said[:0]
	offers := false
	for j, e := range ev.Engine {
		say := parentHere
		if !o.index.Knows(h, e) {
			say = o.ask(t.scheme, e)
			offers = offers || say != parentUnknown
		}
		o.said = append(o.said, say)
		if say != parentUnknown {
			t.sayName(i, j, say)
		}
	}
	t.sayParent(i, parentUnknown)
	if offers {
		t.awaitParent(i)
	}
	return core.StoreHashOnly(o.index, h, ev, t.batch.CountCopies, func(j int) (core.Holder, bool) {
		say := o.said[j]
		if say == parentUnknown || t.saidOfName(i, j) != say {
			return 0, false
		}
		return say.holder(), true
	})
}

// ask returns whom to infer a parent from, or to adopt a name from: of the
// holders of the hash scheme that know it, core.Knower's choice. Under one
// scheme equal names mean equal content, hence the same first block and one
// shard.
func (o *owner) ask(scheme string, name uint64) parentSaying {
	if scheme == "" {
		return parentUnknown
	}
	from, whole, ok := core.Knower(o.index, name, func(h core.Holder) bool {
		if _, hidden := o.hidden[h]; hidden || int(h) >= len(o.ranks) || o.ranks[h] == nil {
			return false
		}
		return o.space.scheme(o.ranks[h].id.Worker) == scheme
	})
	if !ok {
		return parentUnknown
	}
	return parentOf(from, whole)
}

// learn notes who has the number from here on.
func (o *owner) learn(r *rank) {
	if int(r.holder) >= len(o.ranks) {
		o.ranks = append(o.ranks, make([]*rank, int(r.holder)+1-len(o.ranks))...)
	}
	o.ranks[r.holder] = r
}

// publish makes the rank's counts in this shard readable for others.
func (o *owner) publish(r *rank) {
	if r == nil {
		return
	}
	for t := range event.NumTiers {
		r.held[o.number*event.NumTiers+t].Store(int64(o.index.Held(r.holder, event.Tier(t))))
	}
	r.inferred[o.number].Store(int64(o.index.Inferred(r.holder)))
}
