package core

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// step is one run on a lookup's path: from block base on, n blocks of the
// request equal the run's.
type step struct {
	body *body
	base uint32
	n    uint32
	last bool
}

// walk is a lookup's scratch: the path, and the holders that have matched all
// of it so far at one level, as a list or as a bitset.
type walk struct {
	steps []step
	list  []Holder
	bits  []uint64
	dense bool // bits, not list
	first bool // nothing seen yet: everyone

	lost, full []uint64 // of the run being taken
}

// Find implements Index.
func (x *Radix) Find(local []uint64, m *Matches) {
	m.Reset()
	if len(local) == 0 {
		return
	}
	w := &m.walk
	w.steps, w.first = w.steps[:0], true
	r := x.root.body.Load().kids.Load().find(0, local[0])
	tiers := false
	for base := 0; r != nil; {
		b := r.body.Load()
		n := matchLen(b.data[:b.len()], local[base:])
		var next *run
		if base+n < len(local) {
			next = b.kids.Load().find(uint32(n), local[base+n])
			if next != nil && r.body.Load() != b {
				continue // the child may hang below other content than b's
			}
		}
		st := step{b, uint32(base), uint32(n), next == nil}
		tiers = tiers || b.tiers.Load() != nil
		w.steps = append(w.steps, st)
		alive := w.take(&st, 0, m)
		if !alive && !tiers || m.EarlyExit && alive && !tiers && w.single() {
			w.finish(&st, &m.levels[0])
			break
		}
		base += n
		r = next
	}
	if tiers {
		for t := event.Tier(1); t < event.NumTiers; t++ {
			w.level(t, m)
		}
	}
}

// level takes the path of the walk again for a level above device.
func (w *walk) level(t event.Tier, m *Matches) {
	w.first = true
	for i := range w.steps {
		if !w.take(&w.steps[i], int(t), m) {
			break
		}
	}
	m.same[t] = t
}

// single reports whether one holder is left.
func (w *walk) single() bool {
	if !w.dense {
		return len(w.list) == 1
	}
	n := 0
	for _, b := range w.bits {
		if n += bits.OnesCount64(b); n > 1 {
			return false
		}
	}
	return n == 1
}

// take takes one run of the path: it emits the holders that drop out in it
// with their depths, and leaves those that go on. It reports whether any do.
func (w *walk) take(s *step, level int, m *Matches) bool {
	l := &m.levels[level]
	if level > 0 {
		if t := s.body.tiers.Load(); t != nil {
			return w.takeCover(s, t.level[level-1].Load(), l)
		}
	}
	if c := s.body.cov.Load(); c != nil {
		return w.takeCover(s, c, l)
	}
	var es [inlineEntries]uint64
	for i := range es {
		es[i] = s.body.in[i].Load()
	}
	return w.takeList(s, es[:], l)
}

func (w *walk) takeCover(s *step, c *cover, l *level) bool {
	if c.full != nil {
		return w.takeWide(s, c, l)
	}
	var buf [listMax]uint64
	es := buf[:c.used.Load()]
	for i := range es {
		es[i] = c.entries[i].Load()
	}
	return w.takeList(s, es, l)
}

// takeList takes a run whose coverage is the list es.
func (w *walk) takeList(s *step, es []uint64, l *level) bool {
	if w.first {
		w.first, w.dense, w.list = false, false, w.list[:0]
		for _, e := range es {
			w.meet(s, e, l)
		}
		return len(w.list) > 0
	}
	if w.dense {
		w.list = w.list[:0]
		for _, e := range es {
			h, cut := entryOf(e)
			if i := int(h >> 6); cut > 0 && i < len(w.bits) && w.bits[i]>>(h&63)&1 != 0 {
				w.bits[i] &^= 1 << (h & 63)
				w.meet(s, e, l)
			}
		}
		l.addGroup(w.bits, s.base)
		w.dense = false
		return len(w.list) > 0
	}
	was := w.list
	w.list = w.list[:0] // never overtakes the reading of was
next:
	for _, h := range was {
		for _, e := range es {
			if e>>32 == uint64(h)+1 && uint32(e) > 0 {
				w.meet(s, e, l)
				continue next
			}
		}
		l.add(h, s.base)
	}
	return len(w.list) > 0
}

// meet emits or keeps one holder of the run.
func (w *walk) meet(s *step, e uint64, l *level) {
	h, cut := entryOf(e)
	if cut >= s.n && !s.last {
		w.list = append(w.list, h)
		return
	}
	l.add(h, s.base+min(cut, s.n))
}

// takeWide takes a run whose coverage is a wide table.
func (w *walk) takeWide(s *step, c *cover, l *level) bool {
	if !w.first && !w.dense {
		was := w.list
		w.list = w.list[:0]
		for _, h := range was {
			w.meet(s, entry(h, c.get(h)), l)
		}
		return len(w.list) > 0
	}
	words := len(w.bits)
	if w.first {
		words = len(c.full)
	}
	w.size(words)
	out := s.last || c.fullLen < s.n // the full set ends here
	goOn := uint64(0)
	for i := range words {
		alive := ^uint64(0)
		if !w.first {
			alive = w.bits[i]
		}
		var full, part uint64
		if i < len(c.full) {
			full = c.full[i].Load() & alive // full before part: see cover
			part = c.part[i].Load() & alive &^ full
		}
		w.lost[i] = alive &^ full &^ part
		w.full[i] = full
		keep := uint64(0)
		if !out {
			keep = full
		}
		for ; part != 0; part &= part - 1 {
			b := bits.TrailingZeros64(part)
			h := Holder(i*64 + b)
			if cut := c.cut[h].Load(); cut >= s.n && !s.last {
				keep |= 1 << b
			} else {
				l.add(h, s.base+min(cut, s.n))
			}
		}
		w.bits[i] = keep
		goOn |= keep
	}
	if !w.first {
		l.addGroup(w.lost[:words], s.base)
	}
	if out {
		l.addGroup(w.full[:words], s.base+min(c.fullLen, s.n))
	}
	w.first, w.dense = false, true
	return goOn != 0
}

// size makes the bitsets that many words long.
func (w *walk) size(words int) {
	if cap(w.lost) < words {
		w.lost = make([]uint64, words)
		w.full = make([]uint64, words)
	}
	w.lost, w.full = w.lost[:words], w.full[:words]
	if cap(w.bits) < words {
		w.bits = append(w.bits[:0], make([]uint64, words)...)
	}
	w.bits = w.bits[:words]
}

// finish emits the holders that are left after a path that was cut short.
func (w *walk) finish(s *step, l *level) {
	if w.dense {
		l.addGroup(w.bits, s.base+s.n)
		return
	}
	for _, h := range w.list {
		l.add(h, s.base+s.n)
	}
}
