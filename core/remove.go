package core

import "github.com/kvatlas/kvatlas/event"

// removal is the state of one Remove call: a stretch of neighbouring blocks of
// one run is gathered and then dropped with one change of coverage.
//
// The blocks of a stretch are all of one kind: one copy each on the event's tier, by
// the hashes of one layer (by), and not dropped yet. So nothing of the run changes while
// it is gathered, and held, which stands for the run's exception where there is none,
// stays true. Whatever is of another kind ends the stretch (next). Runs that removals
// leave short are merged once the event is done (pendingMerges), not under a stretch.
type removal struct {
	store
	run       *run
	by        spot
	lo, hi    uint32 // the stretch; empty if lo == hi
	held      uint32 // run's held length for the holder, where it has no exception
	exception *exception
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
	if m.dropOne(ev) {
		x.mergePending()
		return Outcome{Removed: 1}
	}
	i, short := 0, 0
	if len(ev.Engine) > 0 && m.goOn(ev.Engine[0]) {
		i = 1
	} else {
		i = x.leadingUnknown(h, ev.Engine)
		m.out.Unknown = i
	}
	for i < len(ev.Engine) {
		if k := m.extend(ev.Engine[i:]); k > 0 {
			i += k
			short = 0
			continue
		}
		// Stretches of one block: the removals are not in chain order.
		if short++; short > 2 && hs.filter == nil {
			i += m.scattered(ev.Engine[i:])
			continue
		}
		m.next(ev.Engine[i], short == 1)
		i++
	}
	m.flush()
	x.mergePending()
	x.releaseHolder(h)
	return m.out
}

// askAhead is how many segments are asked for before they are compared.
const askAhead = 8

// extend takes blocks that follow the stretch, downwards or upwards, as far as
// the hashes say so, and returns how many. Engines evict from the tail, so most
// removals end here, at no look-up.
func (m *removal) extend(hashes []uint64) int {
	if m.lo == m.hi || m.by.layer == piled {
		return 0
	}
	k := 0
	if m.exception == nil {
		// Everything below the held length is held, once. Where segments lie says nothing, so
		// that the processor does not see what is needed next: they are asked for.
		if s := int((m.lo - 1) >> segBits); m.lo > 0 && len(hashes) > int(m.lo&(segBlocks-1)) {
			m.arena.ask(m.run.segs[max(0, s-askAhead, s-len(hashes)>>segBits):s])
		}
		for k < len(hashes) && m.lo > 0 {
			s := int((m.lo - 1) >> segBits)
			if k > 0 && s >= askAhead && len(hashes)-k > askAhead<<segBits {
				m.arena.ask(m.run.segs[s-askAhead : s-askAhead+1])
			}
			b := m.run.block(m.lo - 1)
			seg := m.arena.hashes(b >> segBits)
			o := int(b & (segBlocks - 1))
			n := 0
			for n <= o && k+n < len(hashes) && seg[o-n] == hashes[k+n] {
				n++
			}
			k += n
			m.lo -= uint32(n)
			if n <= o {
				break
			}
		}
	} else {
		for k < len(hashes) && m.lo > 0 && m.arena.at(m.block(m.lo-1)) == hashes[k] && m.holds(m.lo-1) {
			m.lo--
			k++
		}
	}
	if k > 0 {
		return k
	}
	for k < len(hashes) && m.hi < m.run.body.Load().len() && m.arena.at(m.block(m.hi)) == hashes[k] && m.holds(m.hi) {
		m.hi++
		k++
	}
	return k
}

// block returns the block of the stretch's layer at a position of its run: one of segment 0, which is nobody's, where
// the layer has none.
func (m *removal) block(pos uint32) uint32 {
	if m.by.layer == 0 {
		return m.run.block(pos)
	}
	if segs := m.exception.layers[m.by.layer].segs; int(pos>>segBits) < len(segs) {
		return segs[pos>>segBits]<<segBits | pos&(segBlocks-1)
	}
	return 0
}

// holds reports whether the holder has exactly one copy of pos in the
// stretch's run by the hash of the stretch's layer.
func (m *removal) holds(pos uint32) bool {
	if m.exception == nil {
		return m.tier == 0 && pos < m.held
	}
	l := &m.exception.layers[m.by.layer]
	return l.held[m.tier].has(pos) && l.copies.m[copyKey(m.tier, pos)] == 0
}

// next begins a new stretch with the block of that hash. If goesOn, that may
// be the one before the last stretch. It drops the last one first: that may free the
// run, so no position is looked up before.
func (m *removal) next(e uint64, goesOn bool) {
	m.flush()
	if goesOn && m.goOn(e) {
		return
	}
	if p, ok := m.lookup(m.h, e); ok {
		m.begin(p)
	} else {
		m.out.Unknown++
	}
}

// beginAt begins a stretch with the hash, for which the directory has the block.
func (m *removal) beginAt(e uint64, b uint32) {
	if p, ok := m.leads(m.h, e, b); ok {
		m.begin(p)
	} else {
		m.out.Unknown++
	}
}

// begin begins a stretch. A hash without a copy on the tier, or one of several copies,
// is done here.
func (m *removal) begin(p position) {
	ex := m.Radix.exceptionOf(p.run, m.h)
	if ex == nil {
		held := p.run.body.Load().heldLen(0, m.h)
		if m.tier != 0 || p.pos >= held {
			m.out.Unknown++
			return
		}
		m.held = held
	} else {
		c := ex.copiesOf(p.spot, m.tier, p.pos)
		if c == 0 {
			m.out.Unknown++
			return
		}
		if c > 1 && m.copies {
			m.preserve(p.run)
			ex.setCopies(p.spot, m.tier, p.pos, c-1)
			if c == 2 {
				m.recomputeBytes(ex)
				m.trimException(ex)
			}
			m.out.Decremented++
			return
		}
	}
	m.run, m.by, m.lo, m.hi, m.exception = p.run, p.spot, p.pos, p.pos+1, ex
}

// goOn begins a stretch before the last removal's, if it has that hash there: an
// engine that evicts goes on where it stopped, in this event or the one before. The run
// may be gone since, and its id another's, so the block decides.
func (m *removal) goOn(e uint64) bool {
	r := m.Radix.run(m.hs.last)
	if r == nil || m.hs.lastPos == 0 || m.hs.lastPos > r.body.Load().len() {
		return false
	}
	b := r.block(m.hs.lastPos - 1)
	if m.arena.at(b) != e {
		return false
	}
	p, ok := m.at(m.h, b)
	if ok {
		m.begin(p)
	}
	return ok
}

// flush drops the stretch.
func (m *removal) flush() {
	if m.lo == m.hi {
		return
	}
	if m.hs.last != m.run.id && m.hs.lastPos > 0 {
		m.keepCursor()
	}
	m.hs.last, m.hs.lastPos = m.run.id, m.lo
	m.drop(m.run, m.by, m.lo, m.hi)
	m.lo, m.hi, m.run, m.exception = 0, 0, nil, nil
}

// keepCursor notes where removals stopped before they went on elsewhere.
func (m *removal) keepCursor() {
	if r := m.made(m.hs.last); r != nil && m.hs.lastPos <= r.body.Load().len() {
		pos := m.hs.lastPos - 1
		m.putTail(m.hs, m.arena.at(r.block(pos)), end{r.id, pos | notEntered})
	}
}

// drop ends the tier's copies of positions lo … hi-1, all of which the holder
// has there by the hashes of the spot. The end of what it has in the run is dropped by
// a shorter held length; anything before leaves a hole, which needs an exception. r
// and its ancestors may be gone afterwards.
func (s *store) drop(r *run, at spot, lo, hi uint32) {
	s.preserve(r)
	b := r.body.Load()
	n := int(hi - lo)
	if s.onDevice() {
		s.forgetInferred(r, at, lo, hi)
	}
	ex := s.exceptionOf(r, s.h)
	// ends: what it has in r may be less, or known for less long, or the ordinary case again. With
	// more held by the same layer behind, and no copies that may be gone, a hole is all that is new.
	ends := true
	if ex == nil && hi == b.heldLen(0, s.h) {
		s.setHeldLens(b, s.h, lo)
		s.unhold(r, b, lo, hi)
	} else {
		if ex == nil {
			ex = s.makeException(r, s.h)
		}
		less := true
		if at.layer == piled {
			ex.setCopies(at, s.tier, lo, 0)
		} else {
			l := &ex.layers[at.layer]
			less = l.drop(s.tier, lo, hi)
			ends = less || l.held[s.tier].end() <= hi
		}
		if less {
			s.recomputeBytes(ex)
		}
		s.recomputeCoverage(ex, lo, hi)
	}
	s.out.Removed += n
	s.hs.held[s.tier] -= n
	s.total -= n
	s.earn(n)
	if ends && (ex != nil || lo == 0) {
		s.releasePresence(r, s.h, true)
	}
	if hi >= b.len() || s.isLoose(r) {
		s.shrink(r)
	}
}

// drop takes all copies of positions lo … hi-1 away. It reports whether the layer may
// take less memory.
func (l *layer) drop(tier int, lo, hi uint32) (less bool) {
	less = len(l.copies.m) > 0
	l.nHeld[tier] -= l.held[tier].clear(lo, hi)
	for p := lo; p < hi && len(l.copies.m) > 0; p++ {
		l.copies.drop(copyKey(tier, p))
	}
	return less || l.held[tier] == nil
}
