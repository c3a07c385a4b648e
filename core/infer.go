package core

import "github.com/kvatlas/kvatlas/event"

// Infer implements Index.
func (x *Radix) Infer(h, from Holder, name uint64) int {
	p, ok := x.lookup(from, name)
	if !ok || x.Knows(h, name) {
		return 0
	}
	s := store{Radix: x, h: h, hs: x.state(h)}
	if s.overBudget() {
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
		for pos := range end {
			if e, ok := x.lowestName(r, from, pos); ok && s.infer(r, pos, e) {
				added++
			}
		}
	}
	x.tidyPath(h, path)
	x.mergeRipe()
	x.retire(h)
	return added
}

// WhoKnows implements Index.
func (x *Radix) WhoKnows(name uint64, f func(Holder) bool) (Holder, bool) {
	b, ok := x.dir.find(name)
	if !ok {
		return 0, false
	}
	for h := range x.holders {
		if x.Empty(Holder(h)) {
			continue
		}
		_, knows := x.at(Holder(h), b)
		if !knows {
			_, knows = x.elsewhere(Holder(h), name)
		}
		if knows && f(Holder(h)) {
			return Holder(h), true
		}
	}
	return 0, false
}

// lowestName returns the lowest of h's names for a position.
func (x *Radix) lowestName(r *run, h Holder, pos uint32) (uint64, bool) {
	rc := x.rec(r, h)
	if rc == nil {
		return x.nameAt(r, h, pos)
	}
	low, ok := uint64(0), false
	rc.spots(pos, func(at spot) bool {
		if e := x.spotName(rc, at, pos); !ok || e < low {
			low, ok = e, true
		}
		return true
	})
	return low, ok
}

// infer makes one position held by that name, unless it is held or the name
// has another place.
func (s *store) infer(r *run, pos uint32, e uint64) bool {
	if rc := s.rec(r, s.h); rc == nil {
		if pos < r.body.Load().cutOff(0, s.h) {
			return false
		}
	} else if rc.heldAnywhere(pos) {
		return false
	}
	p, known := s.lookup(s.h, e)
	switch {
	case known && (p.run != r || p.pos != pos):
		return false
	case known:
		s.hold(r, pos, pos+1, p.spot)
	case s.arena.at(r.name(pos)) == e:
		s.tell(s.h, e, r.name(pos))
		s.hold(r, pos, pos+1, spot{})
	default:
		s.hold(r, pos, pos+1, s.ownName(s.makeRecord(r, s.h), pos, e))
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

// ordinary takes the mark of being inferred off a name, and reports whether
// there was one.
func (x *Radix) ordinary(hs *holderState, e uint64) bool {
	if _, ok := hs.inferred.m[e]; !ok {
		return false
	}
	x.mem.Holders -= hs.inferred.bytes(8)
	hs.inferred.drop(e)
	x.mem.Holders += hs.inferred.bytes(8)
	return true
}

// holdInferred is hold where some of the positions may be inferred: storing
// such a block makes it an ordinary one and adds no copy.
func (s *store) holdInferred(r *run, lo, hi uint32, at spot) {
	from := lo
	for p := lo; p < hi; p++ {
		e := s.nameOf(r, at, p)
		if _, ok := s.hs.inferred.m[e]; !ok {
			continue
		}
		if from < p {
			s.holdOrdinary(r, from, p, at)
		}
		s.ordinary(s.hs, e)
		s.out.Duplicate++
		from = p + 1
	}
	if from < hi {
		s.holdOrdinary(r, from, hi, at)
	}
}

// forgetInferred takes the marks off positions that are dropped.
func (s *store) forgetInferred(r *run, at spot, lo, hi uint32) {
	for p := lo; p < hi && len(s.hs.inferred.m) > 0; p++ {
		s.ordinary(s.hs, s.nameOf(r, at, p))
	}
}

// nameOf returns the holder's name at a spot of a position.
func (s *store) nameOf(r *run, at spot, pos uint32) uint64 {
	if at == (spot{}) {
		return s.arena.at(r.name(pos))
	}
	return s.spotName(s.rec(r, s.h), at, pos)
}

// onDevice reports whether inferred blocks are concerned.
func (s *store) onDevice() bool { return s.tier == int(event.Device) && len(s.hs.inferred.m) > 0 }
