package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Infer implements Index.
func (x *Radix) Infer(h, from Holder, hash uint64) int {
	p, ok := x.lookup(from, hash)
	if !ok || x.Knows(h, hash) {
		return 0
	}
	s := store{Radix: x, h: h, hs: x.state(h)}
	if s.overBudget(int(p.pos)+1, int(p.pos)+1) {
		return 0
	}
	s.hs = x.holder(h)
	added := 0
	path := x.ownPath(h, p.run)
	for i, r := range path {
		end := p.pos + 1
		if i+1 < len(path) {
			end = path[i+1].off
		}
		for pos := s.toInfer(r, from, 0, end); pos < end; pos = s.toInfer(r, from, pos+1, end) {
			x.steps++
			if e, ok := x.lowestHash(r, from, pos); ok && s.infer(r, pos, e) {
				added++
			}
		}
	}
	x.releasePath(h, path)
	x.mergePending()
	x.releaseHolder(h)
	return added
}

// WhoKnows implements Index.
func (x *Radix) WhoKnows(hash uint64, f func(Holder) bool) (Holder, bool) {
	x.enterForAll(hash)
	b, ok := x.dir.find(hash)
	if !ok {
		return 0, false
	}
	knows := func(h Holder) bool {
		if x.Empty(h) {
			return false
		}
		_, ok := x.at(h, b)
		if !ok {
			_, ok = x.lookupHomonym(h, hash)
		}
		return ok && f(h)
	}
	if list, ok := x.mayKnow(hash, b); ok {
		for _, h := range list {
			if knows(h) {
				return h, true
			}
		}
		return 0, false
	}
	for h := range x.holders {
		if knows(Holder(h)) {
			return Holder(h), true
		}
	}
	return 0, false
}

// mayKnow lists who may know the hash, of which the directory has block b, by rising
// number: a block's hash is known to those that are present in its run, or below the
// block. It reports false where to find them takes more than to ask every holder.
func (x *Radix) mayKnow(hash uint64, b uint32) (list []Holder, ok bool) {
	f, _ := x.dups.get(hash)
	if c := f.closed; c != nil {
		for h := range c.who.m {
			list = append(list, Holder(h))
		}
	}
	left := x.states - len(list)
	for _, b := range append(f.open[:len(f.open):len(f.open)], b) {
		hd := x.arena.head(b >> segBits)
		if hd.owner != 0 {
			list = append(list, hd.owner-1)
			continue
		}
		pos := hd.base + b&(segBlocks-1)
		for runs := []*run{x.runs.at(hd.run)}; len(runs) > 0; pos = 0 { // of those below, all
			r := runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			x.steps++
			if left -= 1 + r.crowd(); left < 0 {
				return nil, false
			}
			body := r.body.Load()
			body.eachHeldLen(event.NumTiers-1, func(h Holder, _ uint32) bool { list = append(list, h); return true })
			for _, ex := range r.exceptions {
				list = append(list, ex.holder)
			}
			body.children.Load().each(func(c *run) bool {
				x.steps++
				if left--; c.off > pos {
					runs = append(runs, c)
				}
				return left >= 0
			})
		}
	}
	slices.Sort(list)
	return slices.Compact(list), left >= 0
}

// lowestHash returns the lowest of h's hashes for a position.
func (x *Radix) lowestHash(r *run, h Holder, pos uint32) (uint64, bool) {
	ex := x.exceptionOf(r, h)
	if ex == nil {
		return x.hashAt(r, h, pos)
	}
	low, ok := uint64(0), false
	ex.spots(pos, func(at spot) bool {
		if e := x.hashAtSpot(ex, at, pos); !ok || e < low {
			low, ok = e, true
		}
		return true
	})
	return low, ok
}

// toInfer returns the first position from pos on that the holder does not hold on
// any tier and from has a hash for; one from end on if there is none before.
func (s *store) toInfer(r *run, from Holder, pos, end uint32) uint32 {
	own, other := s.exceptionOf(r, s.h), s.exceptionOf(r, from)
	for pos < end {
		p := max(pos, r.body.Load().heldLen(0, s.h))
		if own != nil {
			p = own.prefix(event.NumTiers-1, pos, end)
		}
		if other != nil {
			p = other.nextKnown(p, end)
		} else if known, _ := s.ordinaryLens(r, from); p >= known {
			return end
		}
		if p == pos {
			break
		}
		pos = p
	}
	return pos
}

// infer makes one position, which the holder does not hold, held by that hash,
// unless that has another position.
func (s *store) infer(r *run, pos uint32, e uint64) bool {
	p, known := s.lookup(s.h, e)
	switch {
	case known && (p.run != r || p.pos != pos):
		return false
	case known:
		s.hold(r, pos, pos+1, p.spot)
	case s.arena.at(r.block(pos)) == e:
		s.learn(s.h, s.hs, r, pos, pos+1)
		s.hold(r, pos, pos+1, spot{})
	default:
		s.hold(r, pos, pos+1, s.addOwnHash(s.makeException(r, s.h), pos, e))
	}
	s.mem.Holders -= s.hs.inferred.bytes(8)
	s.hs.inferred.set(e, struct{}{})
	s.mem.Holders += s.hs.inferred.bytes(8)
	return true
}

// Inferred implements Index.
func (x *Radix) Inferred(h Holder) int {
	if x.Empty(h) {
		return 0
	}
	return len(x.holders[h].inferred.m)
}

// unmarkInferred takes the mark of being inferred off a hash, and reports whether
// there was one.
func (x *Radix) unmarkInferred(hs *holderState, e uint64) bool {
	if _, ok := hs.inferred.m[e]; !ok {
		return false
	}
	x.mem.Holders -= hs.inferred.bytes(8)
	hs.inferred.drop(e)
	x.mem.Holders += hs.inferred.bytes(8)
	return true
}

// holdInferred is hold where some of the positions may be inferred: storing
// such a block makes it an ordinary one and adds no copy. It goes from the last position
// to the first, so that something is held above the hashes that are known but not held yet:
// else they would be trimmed.
func (s *store) holdInferred(r *run, lo, hi uint32, at spot) {
	to := hi
	for p := hi; p > lo; p-- {
		e := s.hashOf(r, at, p-1)
		if _, ok := s.hs.inferred.m[e]; !ok {
			continue
		}
		if p < to {
			s.holdOrdinary(r, p, to, at)
		}
		s.unmarkInferred(s.hs, e)
		s.out.Duplicate++
		to = p - 1
	}
	if lo < to {
		s.holdOrdinary(r, lo, to, at)
	}
}

// forgetInferred takes the marks off positions that are dropped.
func (s *store) forgetInferred(r *run, at spot, lo, hi uint32) {
	for p := lo; p < hi && len(s.hs.inferred.m) > 0; p++ {
		s.unmarkInferred(s.hs, s.hashOf(r, at, p))
	}
}

// hashOf returns the holder's hash at a spot of a position.
func (s *store) hashOf(r *run, at spot, pos uint32) uint64 {
	if at == (spot{}) {
		return s.arena.at(r.block(pos))
	}
	return s.hashAtSpot(s.exceptionOf(r, s.h), at, pos)
}

// onDevice reports whether inferred blocks are concerned.
func (s *store) onDevice() bool { return s.tier == int(event.Device) && len(s.hs.inferred.m) > 0 }

// hashAt returns a hash of h's for a position, if it has one.
func (x *Radix) hashAt(r *run, h Holder, pos uint32) (uint64, bool) {
	ex := x.exceptionOf(r, h)
	if ex == nil {
		if known, _ := x.ordinaryLens(r, h); pos >= known {
			return 0, false
		}
		return x.arena.at(r.block(pos)), true
	}
	var hash uint64
	found := false
	ex.spots(pos, func(at spot) bool {
		hash, found = x.hashAtSpot(ex, at, pos), true
		return false
	})
	return hash, found
}
