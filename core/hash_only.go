package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// StoreHashOnly applies a hash-only Stored event to x, as Store does, but for the
// hashes that h does not know: where from tells a holder that knows one, h
// adopts it from there. from is asked, with its index in ev.Engine, only about
// hashes that are unknown to h when their turn comes.
func StoreHashOnly(x Index, h Holder, ev *event.Event, countCopies bool, from func(i int) (Holder, bool)) Outcome {
	var out Outcome
	if ev.Tier >= event.NumTiers {
		return out
	}
	one := event.Event{Kind: event.Stored, Tier: ev.Tier}
	for i, e := range ev.Engine {
		if x.Knows(h, e) {
			one.Engine = ev.Engine[i : i+1]
			out.Add(x.Store(h, &one, countCopies))
		} else if other, ok := from(i); ok {
			out.Add(x.StoreFrom(h, other, e, ev.Tier))
		} else {
			out.UnknownBlock++
		}
	}
	return out
}

// Knower returns, of the holders that f accepts and that know the hash, whom to
// learn from what it means (Infer, StoreFrom): the lowest that has hashes for the
// whole chain, or else the lowest, as not all of those that stored it so have.
func Knower(x Index, hash uint64, f func(Holder) bool) (h Holder, whole, ok bool) {
	if h, ok = x.WhoKnows(hash, func(h Holder) bool { return f(h) && x.KnowsChain(h, hash) }); ok {
		return h, true, true
	}
	h, ok = x.WhoKnows(hash, f)
	return h, false, ok
}

// KnowsChain implements Index.
func (x *Radix) KnowsChain(h Holder, hash uint64) bool {
	p, ok := x.lookup(h, hash)
	if !ok {
		return false
	}
	for r, end := p.run, p.pos; r != x.root; r, end = r.parent, r.off {
		ex := x.exceptionOf(r, h)
		if ex == nil {
			if end > r.body.Load().heldLen(0, h) && end > x.descendantLimit(r, h) {
				return false
			}
			continue
		}
		if ex.firstUnknown(end) < end {
			return false
		}
	}
	return true
}

// KnowsChain implements [Index].
func (o *Oracle) KnowsChain(h Holder, engine uint64) bool {
	return o.Knows(h, engine) && !slices.ContainsFunc(o.holders[h].hashes[engine].position.path(),
		func(p *oraclePosition) bool { return len(p.hashes) == 0 })
}

// StoreFrom implements Index.
func (x *Radix) StoreFrom(h, from Holder, hash uint64, tier event.Tier) Outcome {
	p, ok := x.lookup(from, hash)
	if !ok || tier >= event.NumTiers || x.Knows(h, hash) {
		return Outcome{}
	}
	s := store{Radix: x, h: h, hs: x.state(h), tier: int(tier)}
	if s.overBudget(1, 1) {
		return Outcome{Refused: 1}
	}
	s.hs = x.holder(h)
	path := x.ownPath(h, p.run)
	var at spot
	if s.arena.at(p.run.block(p.pos)) == hash {
		s.learn(h, s.hs, p.run, p.pos, p.pos+1)
	} else {
		at = s.addOwnHash(s.exceptionOf(p.run, h), p.pos, hash)
	}
	s.hold(p.run, p.pos, p.pos+1, at)
	x.releasePath(h, path)
	x.mergePending()
	x.releaseHolder(h)
	return s.out
}

// ownPath returns the runs from the first one to r, each with an exception of h.
// What h knows in them must be written down, from the top, before it is present
// below them: otherwise that alone would make it know all the hashes there.
func (x *Radix) ownPath(h Holder, r *run) []*run {
	var path []*run
	for ; r != x.root; r = r.parent {
		path = append(path, r)
	}
	slices.Reverse(path)
	for _, r := range path {
		x.makeException(r, h)
	}
	return path
}

// releasePath settles the exceptions that ownPath made.
func (x *Radix) releasePath(h Holder, path []*run) {
	for i := len(path) - 1; i >= 0; i-- {
		if x.exceptionOf(path[i], h) != nil {
			x.releasePresence(path[i], h, true)
		}
	}
}

// StoreFrom implements [Index].
func (o *Oracle) StoreFrom(h, from Holder, hash uint64, tier event.Tier) Outcome {
	var out Outcome
	if tier >= event.NumTiers || o.Knows(h, hash) || !o.Knows(from, hash) {
		return out
	}
	s := o.holder(h)
	at := s.root.make(o.holders[from].hashes[hash].position.locals())
	s.bind(hash, at, tier, false, &out)
	return out
}
