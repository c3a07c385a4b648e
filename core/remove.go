package core

import "github.com/kvatlas/kvatlas/event"

// removal is the state of one Remove call: a stretch of neighbouring blocks of
// one run is gathered and then dropped with one change of coverage.
type removal struct {
	store
	run    *run
	by     spot
	lo, hi uint32 // the stretch; empty if lo == hi
	cut    uint32 // run's cut-off for the holder, where it has no record
	rec    *record
}

// Remove implements Index.
func (x *Radix) Remove(h Holder, ev *event.Event, countCopies bool) Outcome {
	if ev.Tier >= event.NumTiers {
		return Outcome{}
	}
	hs := x.state(h)
	if hs == nil {
		return Outcome{Unknown: len(ev.Engine)}
	}
	m := removal{store: store{Radix: x, h: h, hs: hs, tier: int(ev.Tier), copies: countCopies}}
	short, located := 0, 0
	i := x.strange(ev.Engine)
	m.out.Unknown = i
	for i < len(ev.Engine) {
		if k := m.extend(ev.Engine[i:]); k > 0 {
			i += k
			short = 0
			continue
		}
		// Stretches of one block: the removals are not in chain order, and what
		// follows will need the directory as well.
		if short++; short > 1 && i >= located {
			located = i + probeNames
			x.dir.locate(x.spare[0], ev.Engine[i:])
		}
		m.next(ev.Engine[i], short == 1)
		i++
	}
	m.flush()
	x.mergeRipe()
	x.retire(h)
	return m.out
}

// extend takes blocks that follow the stretch, downwards or upwards, as far as
// the names say so, and returns how many. Engines evict from the tail, so most
// removals end here, at no look-up.
func (m *removal) extend(names []uint64) int {
	if m.lo == m.hi || m.by.layer != 0 {
		return 0
	}
	k := 0
	if m.rec == nil {
		// Everything below the cut-off is held, once.
		for k < len(names) && m.lo > 0 {
			b := m.run.name(m.lo - 1)
			seg := m.arena.names(b >> segBits)
			o := int(b & (segBlocks - 1))
			n := 0
			for n <= o && k+n < len(names) && seg[o-n] == names[k+n] {
				n++
			}
			k += n
			m.lo -= uint32(n)
			if n <= o {
				break
			}
		}
	} else {
		for k < len(names) && m.lo > 0 && m.arena.at(m.run.name(m.lo-1)) == names[k] && m.holds(m.lo-1) {
			m.lo--
			k++
		}
	}
	if k > 0 {
		return k
	}
	for k < len(names) && m.hi < m.run.body.Load().len() && m.arena.at(m.run.name(m.hi)) == names[k] && m.holds(m.hi) {
		m.hi++
		k++
	}
	return k
}

// holds reports whether the holder has exactly one copy of pos in the
// stretch's run by its shared name.
func (m *removal) holds(pos uint32) bool {
	if m.rec == nil {
		return m.tier == 0 && pos < m.cut
	}
	l := &m.rec.layers[0]
	return l.held[m.tier].has(pos) && l.copies.m[copyKey(m.tier, pos)] == 0
}

// next begins a new stretch with the block of that name. If goesOn, that may
// be the one before the last stretch.
func (m *removal) next(e uint64, goesOn bool) {
	m.flush()
	var p place
	ok := false
	if goesOn {
		p, ok = m.cursor(e)
	}
	if !ok {
		p, ok = m.lookup(m.h, e)
	}
	if !ok {
		m.out.Unknown++
		return
	}
	rc := m.Radix.rec(p.run, m.h)
	if rc == nil {
		cut := p.run.body.Load().cutOff(0, m.h)
		if m.tier != 0 || p.pos >= cut {
			m.out.Unknown++
			return
		}
		m.cut = cut
	} else {
		c := rc.copiesOf(p.spot, m.tier, p.pos)
		if c == 0 {
			m.out.Unknown++
			return
		}
		if c > 1 && m.copies {
			m.touch(p.run)
			rc.setCopies(p.spot, m.tier, p.pos, c-1)
			if c == 2 {
				m.account(rc)
				m.settle(rc)
			}
			m.out.Decremented++
			return
		}
	}
	m.run, m.by, m.lo, m.hi, m.rec = p.run, p.spot, p.pos, p.pos+1, rc
}

// cursor returns the place before the last removal's, if it has that name: an
// engine that evicts goes on where it stopped.
func (m *removal) cursor(e uint64) (place, bool) {
	r := m.Radix.run(m.hs.last)
	if r == nil || m.hs.lastPos == 0 || m.hs.lastPos > r.body.Load().len() {
		return place{}, false
	}
	b := r.name(m.hs.lastPos - 1)
	if m.arena.at(b) != e {
		return place{}, false
	}
	return m.at(m.h, b)
}

// flush drops the stretch.
func (m *removal) flush() {
	if m.lo == m.hi {
		return
	}
	m.hs.last, m.hs.lastPos = m.run.id, m.lo
	m.drop(m.run, m.by, m.lo, m.hi)
	m.lo, m.hi, m.run, m.rec = 0, 0, nil, nil
}

// drop ends the tier's copies of positions lo … hi-1, all of which the holder
// has there by the names of the spot.
func (s *store) drop(r *run, at spot, lo, hi uint32) {
	s.touch(r)
	b := r.body.Load()
	n := int(hi - lo)
	if s.onDevice() {
		s.forgetInferred(r, at, lo, hi)
	}
	rc := s.rec(r, s.h)
	if rc == nil && hi == b.cutOff(0, s.h) {
		s.setCuts(b, s.h, lo)
	} else {
		if rc == nil {
			rc = s.makeRecord(r, s.h)
		}
		if at.layer == piled {
			rc.setCopies(at, s.tier, lo, 0)
		} else {
			rc.layers[at.layer].drop(s.tier, lo, hi)
		}
		s.account(rc)
		s.refresh(rc, lo)
	}
	s.out.Removed += n
	s.hs.held[s.tier] -= n
	s.total -= n
	if rc != nil || lo == 0 {
		s.tidy(r, s.h, true)
	}
	if hi >= b.len() {
		s.shrink(r)
	}
}

// drop takes all copies of positions lo … hi-1 away.
func (l *layer) drop(tier int, lo, hi uint32) {
	l.nHeld[tier] -= l.held[tier].clear(lo, hi)
	for p := lo; p < hi && len(l.copies.m) > 0; p++ {
		l.copies.drop(copyKey(tier, p))
	}
}

// Clear implements Index.
func (x *Radix) Clear(h Holder, tier event.Tier, allTiers bool) Outcome {
	if tier >= event.NumTiers || x.Empty(h) {
		return Outcome{}
	}
	s := store{Radix: x, h: h, hs: x.holders[h]}
	for _, id := range append([]uint32(nil), s.hs.runs...) {
		for t := 0; t < event.NumTiers; t++ {
			r := x.run(id)
			if r == nil || !allTiers && t != int(tier) {
				continue
			}
			s.tier = t
			s.clearRun(r)
		}
	}
	if tier == event.Device || allTiers {
		x.mem.Holders -= s.hs.inferred.bytes(8)
		s.hs.inferred = thinMap[struct{}]{}
	}
	if allTiers {
		s.hs.tails = [4]uint32{}
	}
	x.mergeRipe()
	x.retire(h)
	return s.out
}

// clearRun drops all that the holder has in r on one tier.
func (s *store) clearRun(r *run) {
	s.touch(r)
	rc := s.rec(r, s.h)
	if rc == nil {
		if cut := r.body.Load().cutOff(0, s.h); cut > 0 && s.tier == 0 {
			s.drop(r, spot{}, 0, cut)
		}
		return
	}
	n := rc.clearPile(s.tier)
	for i := range rc.layers {
		l := &rc.layers[i]
		n += l.nHeld[s.tier]
		l.nHeld[s.tier], l.held[s.tier] = 0, nil
		for k := range l.copies.m {
			if int(k>>32) == s.tier {
				l.copies.drop(k)
			}
		}
	}
	s.account(rc)
	if n == 0 {
		return
	}
	s.out.Removed += n
	s.hs.held[s.tier] -= n
	s.total -= n
	s.refresh(rc, 0)
	s.tidy(r, s.h, true)
	s.shrink(r)
}
