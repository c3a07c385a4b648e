package shard

import (
	"math"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// owner is one shard. Its goroutine is the only writer of its index and ends
// when the queue is closed and empty.
//
// An engine hash belongs to at most one shard: the one that holds its position.
// Every shard that a rank's blocks ever reached sees all of the rank's events from then on, in
// the same order as the others, and does its part of each. One that has nothing of
// the rank left says so: that takes no memory, and no longer for more ranks or
// longer events (but where others' blocks may tell what a hash-only event means).
type owner struct {
	space    *Space
	number   int
	index    core.Index
	queue    chan *task
	prefetch core.Prefetcher // the index, if it is one
	blockOps atomic.Uint64

	members []*member                // by holder number: who had blocks here under it last, in this shard's order
	hidden  map[core.Holder]struct{} // numbers of replacements that are not committed
	leaving []*leaving               // what is left of them is taken apart between tasks, the first one first
	votes   []parentVote             // scratch of storeHashOnly
	singles [core.MostSingles]uint64 // scratch of prefetchSingles

	account account
	full    atomic.Bool // the index is close to how many blocks it can number
}

func (o *owner) run() {
	for {
		t, open := o.next()
		if !open {
			return
		}
		o.serve(t)
	}
}

// serve does this shard's part of a task.
func (o *owner) serve(t *task) {
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
			delete(o.hidden, o.holder(t.reveal))
			o.assignHolder(t.reveal)
			o.giveTo(t.takers, t.reveal)
		}
		for i, m := range t.members {
			o.dropGroups(m)
			o.leaves(t.leaving[i])
			o.publish(m)
		}
	}
	if len(o.leaving) > 0 {
		o.clearPaid()
	}
	if changed || o.account.claimed {
		o.recomputeMemory()
	}
	if t.left.Add(-1) == 0 {
		o.space.finish(t)
	}
}

// identity tells a digest whom a holder number stands for.
func (o *owner) identity(h core.Holder) (worker uint64, dpRank uint32) {
	if int(h) >= len(o.members) || o.members[h] == nil {
		return 0, 0
	}
	id := o.members[h].id
	return id.Worker, id.DPRank
}

// apply does this shard's part of a batch. It reports whether the index may
// have changed.
func (o *owner) apply(t *task) (changed bool) {
	out := &t.outs[o.number]
	before := *out
	var last *member // of the last event of a rank that this shard has something of
	for i := range t.batch.Events {
		if i%len(o.singles) == 0 {
			o.prefetchSingles(t, i)
		}
		ev, m := &t.batch.Events[i], t.members[i]
		if ev.Kind != event.Cleared && ev.Tier >= event.NumTiers {
			continue
		}
		if m == nil {
			o.applyUnknown(t, ev, out)
			continue
		}
		if m.groups.Load() != nil {
			out.Add(o.applyGroups(m, ev, t.batch.CountCopies, t.scheme != ""))
			changed = true
		}
		if ev.Group > 0 {
			continue
		}
		asked := out.UnknownParent
		had := !o.index.Empty(o.holder(m))
		if had || o.begins(ev) {
			o.prefetchAfter(t, i)
		}
		switch ev.Kind {
		case event.Stored:
			o.store(t, i, out)
			if t.ofPool(i) { // nobody can be asked for what is missing
				out.UnknownBlock += out.UnknownParent - asked
				out.UnknownParent = asked
			}
		case event.Removed:
			part := o.index.Remove(o.holder(m), ev, t.countCopies(i))
			part.Unknown = o.share(t, part.Unknown, len(ev.Engine))
			if t.ofPool(i) {
				part.Unknown = 0 // others may have said so before, or it is of another age
			}
			out.Add(part)
			o.lose(m, part.Removed, t.batch.Published)
		case event.Cleared:
			o.leave(t, i)
			part := o.clear(t, i)
			out.Add(part)
			o.lose(m, part.Removed, t.batch.Published)
		}
		if m != last && (had || !o.index.Empty(o.holder(m))) {
			o.publish(last)
			o.assignHolder(m)
			last = m
		}
	}
	if last == nil {
		return changed
	}
	o.publish(last)
	ops := out.Stored + out.Duplicate + out.Removed + out.Decremented -
		before.Stored - before.Duplicate - before.Removed - before.Decremented
	o.blockOps.Add(uint64(ops))
	return true
}

// lose counts blocks that the rank has let go of. The time comes first: whoever sees the
// blocks sees the time of their batch, or of a later one.
func (o *owner) lose(m *member, blocks int, published int64) {
	if blocks == 0 {
		return
	}
	if published == 0 {
		published = math.MaxInt64
	}
	p := &m.parts[o.number]
	p.lostAt.Store(published)
	p.lost.Add(uint64(blocks))
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
		ev, m := &t.batch.Events[i], t.members[i]
		if m != nil && (!o.index.Empty(o.holder(m)) || o.begins(ev)) {
			o.prefetch.Prefetch(o.holder(m), ev)
			return
		}
	}
}

// prefetchSingles tells the index of those events of one block that follow in the batch, from the i-th on, as many as it is
// told of at once.
func (o *owner) prefetchSingles(t *task, i int) {
	if o.prefetch == nil || len(t.batch.Events) == 1 {
		return
	}
	var of *member
	n := 0
	tell := func() {
		if n > 0 {
			o.prefetch.PrefetchSingles(o.holder(of), o.singles[:n])
			n = 0
		}
	}
	for end := min(i+len(o.singles), len(t.batch.Events)); i < end; i++ {
		ev, m := &t.batch.Events[i], t.members[i]
		if m == nil || len(ev.Engine) != 1 || m != of && o.index.Empty(o.holder(m)) {
			continue
		}
		if m != of {
			tell()
			of = m
		}
		o.singles[n] = ev.Engine[0]
		n++
	}
	tell()
}

// applyUnknown counts an event of a rank that has no holder number.
func (o *owner) applyUnknown(t *task, ev *event.Event, out *core.Outcome) {
	if ev.Kind == event.Removed && ev.Group == 0 && o.countsAbsent(t) {
		out.Unknown += len(ev.Engine)
	}
}

// countsAbsent reports whether of the task's shards it is the one that counts what no
// shard has.
func (o *owner) countsAbsent(t *task) bool { return t.to[0] == o }

// share turns how many of an event's blocks this shard does not have into its
// part of how many no shard has: as each block is in one shard at most, the
// parts add up to that.
func (o *owner) share(t *task, missing, blocks int) int {
	if !o.countsAbsent(t) {
		missing -= blocks
	}
	return missing
}

// store does this shard's part of a Stored event: all of it if the chain is
// here, and else it forgets the hashes that now belong to another shard.
func (o *owner) store(t *task, i int, out *core.Outcome) {
	o.makeRoom(len(t.batch.Events[i].Engine))
	ev, h := &t.batch.Events[i], o.holder(t.members[i])
	countCopies := t.countCopies(i)
	if len(t.to) == 1 {
		if ev.Incomplete && len(ev.Local) > 0 && ev.HasParent && !o.index.Knows(h, ev.Parent) {
			if vote := o.knower(o.space.scheme(t.members[i].id.Worker), ev.Parent); vote != parentUnknown {
				out.Inferred += o.index.Infer(h, vote.holder(), ev.Parent)
			}
		}
		if t.asksOthers() && len(ev.Local) == 0 {
			out.Add(core.StoreHashOnly(o.index, h, ev, countCopies, func(j int) (core.Holder, bool) {
				vote := o.teller(t, i, ev.Engine[j])
				return vote.holder(), vote != parentUnknown
			}))
			return
		}
		out.Add(o.index.Store(h, ev, countCopies))
		return
	}
	if len(ev.Local) == 0 {
		var part core.Outcome
		if t.asksOthers() {
			part = o.storeHashOnly(t, i)
		} else {
			part = o.index.Store(h, ev, countCopies)
		}
		part.UnknownBlock = o.share(t, part.UnknownBlock, len(ev.Engine))
		out.Add(part)
		return
	}
	hashes := ev.Engine[:min(len(ev.Engine), len(ev.Local))]
	if !ev.HasParent {
		if o.begins(ev) {
			out.Add(o.index.Store(h, ev, countCopies))
		} else {
			out.Replaced += o.index.Forget(h, hashes)
		}
		return
	}
	if o.index.Knows(h, ev.Parent) {
		t.voteParent(i, parentHere)
		out.Add(o.index.Store(h, ev, countCopies))
		return
	}
	vote := parentUnknown
	if ev.Incomplete {
		vote = o.knower(o.space.scheme(t.members[i].id.Worker), ev.Parent)
	}
	if t.voteParent(i, vote) {
		out.UnknownParent += len(ev.Engine)
		return
	}
	if vote != parentUnknown && t.awaitParent(i) == vote {
		out.Inferred += o.index.Infer(h, vote.holder(), ev.Parent)
		out.Add(o.index.Store(h, ev, countCopies))
		return
	}
	// If another shard stores the blocks, hashes of theirs that are here are
	// replaced; if none does, they stay. So a shard that has such a hash, and
	// only that one, waits for the votes of the others.
	//
	// It cannot wait for ever. All shards take their events in one order
	// (Space.submit). Of the shards that wait, look at one that waits at
	// the earliest event: those that have not voted about that event are at an
	// earlier one, hence do not wait, go on and reach it, and every shard
	// votes on an event before it waits there.
	if o.index.KnowsAny(h, hashes) && t.awaitParent(i) != parentUnknown {
		out.Replaced += o.index.Forget(h, hashes)
	}
}

// storeHashOnly does this shard's part of a hash-only event: the blocks whose hashes
// the rank knows here, and those that it knows nowhere, if this is the shard of
// the lowest holder of the scheme that does.
//
// All shards say what they know of each block; one that may have to store waits
// until all have voted (it ends: see store).
func (o *owner) storeHashOnly(t *task, i int) core.Outcome {
	ev, h := &t.batch.Events[i], o.holder(t.members[i])
	o.votes = o.votes[:0]
	offers := false
	for j, e := range ev.Engine {
		vote := parentHere
		if !o.index.Knows(h, e) {
			vote = o.teller(t, i, e)
			offers = offers || vote != parentUnknown
		}
		o.votes = append(o.votes, vote)
		if vote != parentUnknown {
			t.voteHash(i, j, vote)
		}
	}
	t.voteParent(i, parentUnknown)
	if offers {
		t.awaitParent(i)
	}
	return core.StoreHashOnly(o.index, h, ev, t.countCopies(i), func(j int) (core.Holder, bool) {
		vote := o.votes[j]
		if vote == parentUnknown || t.hashVote(i, j) != vote {
			return 0, false
		}
		return vote.holder(), true
	})
}

// teller returns whom to store a block of event i from that is named by hash alone: who says
// that a pool has it, or else the knower.
func (o *owner) teller(t *task, i int, hash uint64) parentVote {
	if vote, knows := o.announcer(t, i, hash); knows {
		return vote
	}
	return o.knower(t.scheme, hash)
}

// knower returns whom to infer a parent from, or to store a block by hash from: of the
// holders of the hash scheme that know it, core.Knower's choice. Under one
// scheme equal hashes mean equal content, hence the same first block and one
// shard.
func (o *owner) knower(scheme string, hash uint64) parentVote {
	if scheme == "" {
		return parentUnknown
	}
	from, whole, ok := core.Knower(o.index, hash, func(h core.Holder) bool {
		if _, hidden := o.hidden[h]; hidden || int(h) >= len(o.members) || o.members[h] == nil {
			return false
		}
		return o.space.scheme(o.members[h].id.Worker) == scheme
	})
	if !ok {
		return parentUnknown
	}
	return parentOf(from, whole)
}

// assignHolder notes who has the number from here on.
func (o *owner) assignHolder(m *member) {
	h := int(o.holder(m))
	if h >= len(o.members) {
		o.members = append(o.members, make([]*member, h+1-len(o.members))...)
	}
	o.members[h] = m
}

// publish makes the rank's counts in this shard readable for others.
func (o *owner) publish(m *member) {
	if m == nil {
		return
	}
	p, more := &m.parts[o.number], int64(0)
	for t := range p.held {
		more += say(&p.held[t], int64(o.index.Held(p.holder, event.Tier(t))))
	}
	if more != 0 {
		m.heldAll.Add(more)
	}
	say(&p.inferred, int64(o.index.Inferred(p.holder)))
}
