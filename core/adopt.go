package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// StoreNames applies a hash-only Stored event to x, as Store does, but for the
// names that h does not know: where from tells a holder that knows one, h
// adopts it from there. from is asked, with its place in ev.Engine, only about
// names that are unknown to h when their turn comes.
func StoreNames(x Index, h Holder, ev *event.Event, countCopies bool, from func(i int) (Holder, bool)) Outcome {
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
			out.Add(x.Adopt(h, other, e, ev.Tier))
		} else {
			out.UnknownBlock++
		}
	}
	return out
}

// Knower returns, of the holders that f accepts and that know the name, whom to
// learn from what it means (Infer, Adopt): the lowest that has names for the
// whole chain, or else the lowest, as not all of those that adopted it have.
func Knower(x Index, name uint64, f func(Holder) bool) (h Holder, whole, ok bool) {
	if h, ok = x.WhoKnows(name, func(h Holder) bool { return f(h) && x.KnowsChain(h, name) }); ok {
		return h, true, true
	}
	h, ok = x.WhoKnows(name, f)
	return h, false, ok
}

// KnowsChain implements Index.
func (x *Radix) KnowsChain(h Holder, name uint64) bool {
	p, ok := x.lookup(h, name)
	if !ok {
		return false
	}
	for r, end := p.run, p.pos; r != x.root; r, end = r.parent, r.off {
		rc := x.rec(r, h)
		if rc == nil {
			if end > r.body.Load().cutOff(0, h) && end > x.linkLimit(r, h) {
				return false
			}
			continue
		}
		for pos := range end {
			if !rc.hasName(pos) {
				return false
			}
		}
	}
	return true
}

// hasName reports whether the holder has a name for the position.
func (rc *record) hasName(pos uint32) bool {
	for i := range rc.layers {
		if rc.layers[i].named.has(pos) {
			return true
		}
	}
	return rc.pile != nil && rc.pile.named.has(pos)
}

// KnowsChain implements [Index].
func (o *Oracle) KnowsChain(h Holder, engine uint64) bool {
	return o.Knows(h, engine) && !slices.ContainsFunc(o.holders[h].names[engine].place.path(),
		func(p *oraclePlace) bool { return len(p.names) == 0 })
}

// Adopt implements Index.
func (x *Radix) Adopt(h, from Holder, name uint64, tier event.Tier) Outcome {
	p, ok := x.lookup(from, name)
	if !ok || tier >= event.NumTiers || x.Knows(h, name) {
		return Outcome{}
	}
	s := store{Radix: x, h: h, hs: x.state(h), tier: int(tier)}
	if s.overBudget() {
		return Outcome{Refused: 1}
	}
	s.hs = x.holder(h)
	path := x.ownPath(h, p.run)
	var at spot
	if b := p.run.name(p.pos); s.arena.at(b) == name {
		s.tell(h, name, b)
	} else {
		at = s.ownName(s.rec(p.run, h), p.pos, name)
	}
	s.hold(p.run, p.pos, p.pos+1, at)
	x.tidyPath(h, path)
	x.mergeRipe()
	x.retire(h)
	return s.out
}

// ownPath returns the runs from the first one to r, each with a record of h.
// What h knows in them must be written down, from the top, before it is present
// below them: otherwise that alone would make it know all the names there.
func (x *Radix) ownPath(h Holder, r *run) []*run {
	var path []*run
	for ; r != x.root; r = r.parent {
		path = append(path, r)
	}
	slices.Reverse(path)
	for _, r := range path {
		x.makeRecord(r, h)
	}
	return path
}

// tidyPath settles the records that ownPath made.
func (x *Radix) tidyPath(h Holder, path []*run) {
	for i := len(path) - 1; i >= 0; i-- {
		if x.rec(path[i], h) != nil {
			x.tidy(path[i], h, true)
		}
	}
}

// Adopt implements [Index].
func (o *Oracle) Adopt(h, from Holder, name uint64, tier event.Tier) Outcome {
	var out Outcome
	if tier >= event.NumTiers || o.Knows(h, name) || !o.Knows(from, name) {
		return out
	}
	s := o.holder(h)
	at := s.root.make(o.holders[from].names[name].place.locals())
	s.bind(name, at, tier, false, &out)
	return out
}
