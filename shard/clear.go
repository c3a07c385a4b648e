package shard

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// To clear a rank that has much takes long, and would hold up everybody's events. So the rank gets another number,
// with which nobody finds anything, at once and in the order of batches; what it has under the one before is nobody's,
// as what removed and replaced ranks have is, and each shard's owner takes it apart in steps: while it has nothing else
// to do, and for what it stores meanwhile as much as that, so that what waits never grows beyond what was held.

// clears are the bounds of that, in blocks of long chains (core.Clearer).
type clears struct {
	from int  // of a rank that may have no more all goes at once
	step int  // that an idle owner takes apart at a time: what a batch may find itself behind
	paid int  // with each task, at least
	busy bool // owners are never idle, unless somebody waits for it
}

func (c clears) withDefaults() clears {
	c.from, c.step, c.paid = cmp.Or(c.from, 256), cmp.Or(c.step, 512), cmp.Or(c.paid, 512)
	return c
}

// leaving is a number of which the shards take apart what they have. Then another rank may get it.
type leaving struct {
	holder core.Holder
	left   atomic.Int32 // shards that have something of it, as far as it is known
	gone   func()       // called when none has; nil: nobody waits
}

func newLeaving(h core.Holder, shards int, gone func()) *leaving {
	l := &leaving{holder: h, gone: gone}
	l.left.Store(int32(shards))
	return l
}

// note notes what event i may bring to its rank, or gives the rank another number if it clears more than goes at
// once. Space.mu is held.
func (s *Space) note(t *task, i int, m *member) {
	ev := &t.batch.Events[i]
	switch {
	case ev.Tier >= event.NumTiers:
	case ev.Kind == event.Stored:
		// Written only where it says something new, as owners read the line.
		if ev.Incomplete {
			m.stored = math.MaxInt // with ancestors that are inferred
		} else if m.stored <= s.clears.from {
			m.stored += len(ev.Engine)
		}
		if bit := uint8(1) << ev.Tier; m.tiers&bit == 0 {
			m.tiers |= bit
		}
	case ev.Kind == event.Cleared && (ev.AllTiers || m.tiers&^(1<<ev.Tier) == 0):
		if m.stored > s.clears.from {
			from, to := s.table.renumber(m)
			t.leaving = append(t.leaving, newLeaving(from, len(s.shards), nil))
			t.cleared, t.fresh = append(t.cleared, i), append(t.fresh, to)
		}
		m.stored, m.tiers = 0, 0
	}
}

// removes makes the numbers of the task's members, which nobody finds any more, leave. Who waits for the task waits
// for that, but for a replacement, which is shown at once.
func (t *task) removes() {
	var gone func()
	if done := t.done; done != nil && t.reveal == nil {
		t.done = nil
		left := new(atomic.Int32)
		left.Store(int32(len(t.members)))
		gone = func() {
			if left.Add(-1) == 0 {
				done(core.Outcome{})
			}
		}
	}
	for _, m := range t.members {
		t.leaving = append(t.leaving, newLeaving(m.holder.Load(), len(t.to), gone))
	}
}

// clear does this shard's part of event i, which clears its rank.
func (o *owner) clear(t *task, i int) (out core.Outcome) {
	ev, m := &t.batch.Events[i], t.members[i]
	at, renumbered := slices.BinarySearch(t.cleared, i)
	if !renumbered {
		return o.index.Clear(o.holder(m), ev.Tier, ev.AllTiers)
	}
	for tier := range event.Tier(event.NumTiers) {
		out.Removed += o.index.Held(o.holder(m), tier)
	}
	o.leaves(t.leaving[at])
	m.parts[o.number].holder = t.fresh[at]
	o.assignHolder(m)
	return out
}

// leaves begins to take apart what this shard has under the number. What is little is done with that.
func (o *owner) leaves(l *leaving) {
	delete(o.hidden, l.holder) // the index counts it no more
	x, inSteps := o.index.(core.Clearer)
	if !inSteps {
		o.index.Clear(l.holder, 0, true)
	} else if len(o.leaving) == 0 {
		x.Owed() // what was stored before is paid
	}
	if inSteps && x.ClearSome(l.holder, o.space.clears.paid) {
		o.leaving = append(o.leaving, l)
		return
	}
	o.gone(l)
}

// gone says that this shard has nothing of it.
func (o *owner) gone(l *leaving) {
	o.recomputeMemory() // before others may look at it
	if l.left.Add(-1) > 0 {
		return
	}
	o.space.mu.Lock()
	o.space.table.release(l.holder)
	o.space.mu.Unlock()
	if l.gone != nil {
		l.gone()
	}
}

// clearSome takes so much of what is leaving apart.
func (o *owner) clearSome(amount int) {
	l := o.leaving[0]
	if o.index.(core.Clearer).ClearSome(l.holder, amount) {
		return
	}
	o.leaving[0] = nil
	if o.leaving = o.leaving[1:]; len(o.leaving) == 0 {
		o.leaving = nil
	}
	o.gone(l)
}

// clearPaid takes as much apart as was stored since the last call, or a little.
func (o *owner) clearPaid() {
	if o.space.inline { // it has no other time
		for len(o.leaving) > 0 {
			o.clearSome(math.MaxInt32)
		}
		return
	}
	step := o.space.clears.step
	for left := max(o.index.(core.Clearer).Owed(), o.space.clears.paid); left > 0 && len(o.leaving) > 0; left -= step {
		o.clearSome(min(left, step))
	}
}

// next returns the next task; until there is one it takes apart what is leaving. It reports false when there will be
// none, and nothing is left.
func (o *owner) next() (t *task, open bool) {
	for len(o.leaving) > 0 {
		if o.space.clears.busy && !slices.ContainsFunc(o.leaving, func(l *leaving) bool { return l.gone != nil }) {
			break
		}
		select {
		case t, open = <-o.queue:
			if open {
				return t, true
			}
			o.clearSome(math.MaxInt32)
		default:
			o.clearSome(o.space.clears.step)
			o.recomputeMemory()
			runtime.Gosched() // who was told of a task meanwhile is to go on
		}
	}
	t, open = <-o.queue
	return t, open
}

// makeRoom takes what is leaving apart while the memory budget may have no room for so many new blocks: they are not
// refused for what is nobody's.
func (o *owner) makeRoom(blocks int) {
	const perBlock, pages = 64, 4 << 20
	led := o.account.ledger
	for len(o.leaving) > 0 {
		if room := led.budget - led.used.Load() - pages; !o.full.Load() && (led.budget == 0 || int64(blocks)*perBlock <= room) {
			return
		}
		o.clearSome(o.space.clears.step)
		o.recomputeMemory()
	}
}
