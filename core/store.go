package core

import "github.com/kvatlas/kvatlas/event"

// store is the state of one Store call.
type store struct {
	*Radix
	h      Holder
	hs     *holderState // nil while the holder has nothing (see own)
	tier   int
	copies bool
	full   bool     // something of the event is refused, so all that is new is
	moved  []uint64 // names of refused blocks that the holder has elsewhere
	out    Outcome
}

// Store implements Index.
func (x *Radix) Store(h Holder, ev *event.Event, countCopies bool) Outcome {
	s := store{Radix: x, h: h, hs: x.state(h), tier: int(ev.Tier), copies: countCopies}
	switch {
	case ev.Tier >= event.NumTiers:
	case len(ev.Local) == 0:
		s.byName(ev.Engine)
	default:
		s.byContent(ev)
	}
	x.mergeRipe()
	x.retire(h)
	return s.out
}

// byContent stores blocks with their content.
func (s *store) byContent(ev *event.Event) {
	r, o := s.root, uint32(0)
	if ev.HasParent {
		p, ok := s.parent(ev.Parent)
		if !ok {
			s.out.UnknownParent = len(ev.Engine)
			return
		}
		r, o = p.run, p.pos+1
	}
	n := min(len(ev.Engine), len(ev.Local))
	names, local := ev.Engine[:n], ev.Local[:n]
	for len(names) > 0 {
		k := 0
		b := r.body.Load()
		if n := b.len(); o < n {
			if m := b.data.match(o, n, local); m > 0 {
				if k = s.join(r, o, names[:m]); k == 0 {
					k = m
					s.refuse(names[:m], r, o)
				}
				o += uint32(k)
			}
		}
		if k == 0 {
			if c := b.kids.Load().find(o, local[0]); c != nil {
				r, o = c, 0
				continue
			}
			if s.overBudget() {
				s.refuse(names, nil, 0)
				break
			}
			k, r, o = s.create(r, o, names, local)
		}
		names, local = names[k:], local[k:]
	}
	if s.full {
		s.out.Replaced += s.forget(s.h, s.moved)
		return
	}
	if o > 0 {
		s.hs.tails[s.hs.turn&3] = r.name(o - 1)
		s.hs.turn++
	}
}

// own makes what is kept of the holder, before the first block is held.
func (s *store) own() {
	if s.hs == nil {
		s.hs = s.holder(s.h)
	}
}

// parent resolves a parent name: usually where one of the last stores ended.
func (s *store) parent(name uint64) (place, bool) {
	if s.hs == nil {
		return place{}, false
	}
	for _, b := range s.hs.tails {
		if got, ok := s.arena.peek(b); ok && got == name {
			if p, ok := s.at(s.h, b); ok {
				return p, true
			}
		}
	}
	return s.lookup(s.h, name)
}

// byName stores blocks whose content is known by their names alone.
func (s *store) byName(names []uint64) {
	if s.hs == nil {
		s.out.UnknownBlock = len(names)
		return
	}
	for _, e := range names {
		p, ok := s.lookup(s.h, e)
		if !ok {
			s.out.UnknownBlock++
			continue
		}
		if s.overBudget() && (s.copies || !s.holdsAt(p)) {
			s.full = true
			s.out.Refused++
			continue
		}
		s.hold(p.run, p.pos, p.pos+1, p.spot)
	}
}

// join stores blocks whose content r already has from o on. It returns how
// many it took; none if they are to be refused.
func (s *store) join(r *run, o uint32, names []uint64) int {
	if s.overBudget() {
		return s.joinFull(r, o, names)
	}
	s.own()
	if k := s.sameNames(r, o, names); k > 0 {
		if s.dups.n > 0 {
			for i, e := range names[:k] {
				if _, ok := s.dups.get(e); !ok {
					continue
				}
				if i > 0 { // hold what is before: the name may repeat in it
					s.hold(r, o, o+uint32(i), spot{})
					return i
				}
				p, ok := s.lookup(s.h, e)
				s.tell(s.h, e, r.name(o))
				if ok && p != (place{run: r, pos: o}) {
					s.ordinary(s.hs, e)
					s.hold(r, o, o+1, spot{})
					s.rebound(p)
					return 1
				}
			}
		}
		s.hold(r, o, o+uint32(k), spot{})
		return k
	}
	// Names of the holder's own: take as many as go into one layer.
	k, at := 0, spot{}
	for k < len(names) && (k == 0 || s.arena.at(r.name(o+uint32(k))) != names[k]) {
		e, pos := names[k], o+uint32(k)
		if k%probeNames == 0 {
			s.dir.locate(s.spare[0], names[k:])
		}
		p, known := s.lookup(s.h, e)
		here := known && p.run == r && p.pos == pos
		if known && !here {
			if k == 0 {
				s.ordinary(s.hs, e)
				s.hold(r, pos, pos+1, s.ownName(s.makeRecord(r, s.h), pos, e))
				s.rebound(p)
				return 1
			}
			break
		}
		to := p.spot
		if !here {
			rc := s.makeRecord(r, s.h)
			if l := rc.freeLayer(pos); k > 0 && (l == piled || uint32(l) != at.layer) {
				break
			}
			to = s.ownName(rc, pos, e)
		}
		if k > 0 && to != at {
			break
		}
		at = to
		if k++; at.layer == piled {
			break
		}
	}
	s.hold(r, o, o+uint32(k), at)
	return k
}

// create stores blocks whose content is new after o blocks of r. It returns
// how many it took, at least one, and where that ended.
func (s *store) create(r *run, o uint32, names, local []uint64) (int, *run, uint32) {
	s.own()
	s.touch(r)
	t, base := r, o
	fresh := false
	if r == s.root || o < r.body.Load().len() {
		if r != s.root && s.swappable(r, o, len(names)) {
			s.swap(r, o, len(names))
		} else {
			t, base, fresh = s.newRun(r, o, local[0]), 0, true
		}
	}
	k, old, again := s.enterAll(t, base, names)
	if fresh {
		t.body.Store(s.newBody(newContent(local[:k]), uint32(k)))
	} else {
		b := s.roomFor(t, k)
		b.data.write(base, local[:k])
		b.n.Store(base + uint32(k))
	}
	s.hold(t, base, base+uint32(k), spot{})
	if fresh {
		s.attach(t)
	}
	if again {
		s.rebound(old)
	}
	return k, t, base + uint32(k)
}

// enterAll makes names the shared names of t from base on. It stops before one
// that is known to the holder elsewhere; if that is the first it takes it alone,
// and returns the place that the name had (again).
func (s *store) enterAll(t *run, base uint32, names []uint64) (k int, old place, again bool) {
	var blocks [probeNames]uint32
	batch := names[:min(probeNames, len(names))]
	now, ahead := s.now, s.spare[0]
	if !now.of(batch) {
		now = s.spare[1]
		s.dir.locate(now, batch)
	}
	for {
		// The next batch's cache misses pass while this one is entered.
		after := names[k+len(batch):]
		after = after[:min(probeNames, len(after))]
		if len(after) > 0 {
			s.dir.locate(ahead, after)
		}
		s.addNames(t, base+uint32(k), batch, &blocks)
		n := s.dir.insertAll(now, batch, &blocks)
		if k += n; n == len(batch) {
			if len(after) == 0 {
				return k, old, false
			}
			if now == s.now {
				now = s.spare[1]
			}
			now, ahead = ahead, now
			batch = after
			continue
		}
		// The next one is taken, or its leaf must grow.
		e := batch[n]
		_, taken := s.dir.find(e)
		if taken {
			if s.within(t, base, e) {
				return k, old, false // a repetition inside this event
			}
			p, known := s.lookup(s.h, e)
			if known && k > 0 {
				return k, old, false
			}
			if old, again = p, known; known {
				s.ordinary(s.hs, e)
			}
		}
		s.enter(s.h, e, blocks[n])
		if k++; again || k == len(names) {
			return k, old, again
		}
		batch = names[k:min(k+probeNames, len(names))]
		s.dir.locate(now, batch)
	}
}

// Prefetch implements Prefetcher.
func (x *Radix) Prefetch(ev *event.Event) {
	x.now, x.ahead = x.ahead, x.now
	x.dir.locate(x.ahead, ev.Engine)
}

// rebound ends what a name meant to the holder before it was bound anew.
func (s *store) rebound(old place) {
	s.out.Replaced++
	s.unbind(s.h, s.hs, old)
}

// hold makes positions lo … hi-1 of r held by the names of a layer, or one
// position by a piled name.
func (s *store) hold(r *run, lo, hi uint32, at spot) {
	if s.onDevice() {
		s.holdInferred(r, lo, hi, at)
		return
	}
	s.holdOrdinary(r, lo, hi, at)
}

func (s *store) holdOrdinary(r *run, lo, hi uint32, at spot) {
	s.touch(r)
	rc := s.rec(r, s.h)
	if rc == nil && at.layer == 0 && s.tier == 0 {
		b := r.body.Load()
		cut := b.cutOff(0, s.h)
		if lo <= cut && !(s.copies && lo < cut) {
			s.out.Duplicate += int(min(hi, cut) - lo)
			if hi > cut {
				if cut == 0 {
					s.joined(r, s.h)
				}
				s.setCuts(b, s.h, hi)
				s.count(int(hi - cut))
			}
			return
		}
	}
	rc = s.makeRecord(r, s.h)
	n := 0
	if at.layer == piled {
		if c := rc.copiesOf(at, s.tier, lo); c == 0 || s.copies {
			rc.setCopies(at, s.tier, lo, c+1)
			n = int(1 - min(c, 1))
		}
	} else {
		n = rc.layers[at.layer].hold(s.tier, lo, hi, s.copies)
	}
	s.account(rc)
	s.count(n)
	s.out.Duplicate += int(hi-lo) - n
	s.refresh(rc, lo)
	s.settle(rc)
}

// hold names positions lo … hi-1 and gives them a copy each, further ones if they
// are counted, and returns how many had none.
func (l *layer) hold(tier int, lo, hi uint32, copies bool) int {
	l.nNamed += l.named.set(lo, hi)
	if copies {
		for p := lo; p < hi; p++ {
			if l.held[tier].has(p) {
				k := copyKey(tier, p)
				l.copies.set(k, l.copies.m[k]+1)
			}
		}
	}
	n := l.held[tier].set(lo, hi)
	l.nHeld[tier] += n
	return n
}

func (s *store) count(n int) {
	s.out.Stored += n
	s.hs.held[s.tier] += n
	s.total += n
}
