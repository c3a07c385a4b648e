package core

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// step is one run on a lookup's path: from block base on, n blocks of the
// request equal the run's.
type step struct {
	run  *run
	body *body
	base uint32
	n    uint32
	last bool
}

// walk is a lookup's scratch: the path, and the holders that have matched all
// of it so far at one level, as a list or as a bitset.
//
// After each run of the path the list or bitset has those that hold every block compared
// so far, and go on; every other holder of the first block was emitted, once, with the
// depth at which it ended. A holder ends where its coverage of a run ends, or in the
// last run. They are a list after a run of few holders and a bitset after one of many,
// whichever its coverage is: thousands are narrowed 64 at a time, and two are not.
type walk struct {
	steps []step // the levels above device walk the same path, without comparing again
	list  []Holder
	bits  []uint64
	dense bool // bits, not list
	first bool // nothing seen yet: everyone

	lost, full []uint64 // of the run being taken
}

// Find implements Index.
func (x *Radix) Find(local []uint64, m *Matches) {
	for !x.find(local, m) {
		// A run changed in a way that its parts do not show: look again.
	}
}

func (x *Radix) find(local []uint64, m *Matches) bool {
	m.Reset()
	tiers, ok := x.findDevice(local, m)
	if !tiers || !ok {
		return ok
	}
	m.keepLevel(event.Device)
	for t := event.HostPinned; t < event.NumTiers; t++ {
		if !x.findLevel(t, m) {
			return false
		}
		m.keepLevel(t)
	}
	m.makeCumulative()
	return true
}

// findDevice finds the path, and on the way the device level. It reports
// whether the path has lower tiers, so that the levels above remain to be found,
// and whether what it read belongs together.
func (x *Radix) findDevice(local []uint64, m *Matches) (tiers, ok bool) {
	if len(local) == 0 {
		return false, true
	}
	w := &m.walk
	w.steps, w.first = w.steps[:0], true
	r := x.root.body.Load().children.Load().find(0, local[0])
	if r != nil {
		r.ask()
	}
	for base := 0; r != nil; {
		b := r.body.Load()
		b.children.Load().ask() // to be there when the first block that differs is known
		n := b.data.match(0, b.len(), local[base:])
		var next *run
		if base+n < len(local) {
			next = b.children.Load().find(uint32(n), local[base+n])
			if next != nil {
				if r.body.Load() != b {
					continue // the child may hang below other content than b's
				}
				next.ask() // while this run's holders are looked at
			}
		}
		w.steps = append(w.steps, step{r, b, uint32(base), uint32(n), next == nil})
		st := &w.steps[len(w.steps)-1]
		tiers = tiers || b.tiers.Load() != nil
		alive := w.narrowDevice(st, &m.level)
		// Once more: it may have appeared while the device level was read, which then
		// is not that of all levels. With lower tiers the path is walked to its end, as
		// a level above may go on where this one has nobody left.
		if tiers = tiers || b.tiers.Load() != nil; !tiers && x.moved(st) {
			return false, false
		}
		if !tiers && (!alive || m.EarlyExit && w.single()) {
			w.finish(st, &m.level)
			return false, true
		}
		base += n
		r = next
	}
	return tiers, true
}

// findLevel finds a level above device along the path. It reports whether what
// it read belongs together.
func (x *Radix) findLevel(t event.Tier, m *Matches) bool {
	w := &m.walk
	w.first = true
	for i := range w.steps {
		st := &w.steps[i]
		alive := false
		if tc := st.body.tiers.Load(); tc != nil {
			alive = w.narrowCover(st, tc.level[t-1].Load(), &m.level)
		} else {
			alive = w.narrowDevice(st, &m.level)
			if st.body.tiers.Load() != nil || x.moved(st) {
				return false
			}
		}
		if !alive {
			break
		}
	}
	return true
}

// moved reports whether what was read as the device level of a body without
// tierCover may not be right for the levels above it. In the body that is
// current a tierCover stays once it is there, so having seen none after the
// device level was read is enough; of a body that was replaced meanwhile that
// cannot be told. Where no holder ever had a lower tier, there is no question.
func (x *Radix) moved(s *step) bool { return x.tiered.Load() && s.run.body.Load() != s.body }

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

// narrowDevice takes one run of the path at the device level: it emits the
// holders that drop out in it with their depths, and leaves those that go on.
// It reports whether any do.
func (w *walk) narrowDevice(s *step, l *level) bool {
	if c := s.body.cov.Load(); c != nil {
		return w.narrowCover(s, c, l)
	}
	var es [inlineEntries]uint64
	for i := range es {
		es[i] = s.body.in[i].Load()
	}
	return w.narrowList(s, es[:], l)
}

func (w *walk) narrowCover(s *step, c *cover, l *level) bool {
	if c.full != nil {
		return w.narrowWide(s, c, l)
	}
	var buf [listMax]uint64
	es := buf[:c.used.Load()]
	for i := range es {
		es[i] = c.entries[i].Load()
	}
	return w.narrowList(s, es, l)
}

// narrowList takes a run whose coverage is the list es. Who was alive and is not in it
// holds no block of the run, so ended where the run begins.
func (w *walk) narrowList(s *step, es []uint64, l *level) bool {
	if w.first {
		w.first, w.dense, w.list = false, false, w.list[:0]
		for _, e := range es {
			w.keepOrEmit(s, e, l)
		}
		return len(w.list) > 0
	}
	if w.dense {
		w.list = w.list[:0]
		for _, e := range es {
			h, held := entryOf(e)
			if i := int(h >> 6); held > 0 && i < len(w.bits) && w.bits[i]>>(h&63)&1 != 0 {
				w.bits[i] &^= 1 << (h & 63)
				w.keepOrEmit(s, e, l)
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
				w.keepOrEmit(s, e, l)
				continue next
			}
		}
		l.add(h, s.base)
	}
	return len(w.list) > 0
}

// keepOrEmit emits or keeps one holder of the run.
func (w *walk) keepOrEmit(s *step, e uint64, l *level) {
	h, held := entryOf(e)
	if held >= s.n && !s.last {
		w.list = append(w.list, h)
		return
	}
	l.add(h, s.base+min(held, s.n))
}

// narrowWide takes a run whose coverage is a wide table, a word of holders at a time:
// those in neither set ended where the run begins, those in full go on or end together,
// those in part each by their own held length.
func (w *walk) narrowWide(s *step, c *cover, l *level) bool {
	if !w.first && !w.dense {
		was := w.list
		w.list = w.list[:0]
		for _, h := range was {
			w.keepOrEmit(s, entry(h, c.get(h)), l)
		}
		return len(w.list) > 0
	}
	words := len(w.bits)
	if w.first {
		words = len(c.full)
	}
	w.size(words)
	out := s.last || c.fullHeld < s.n // the full set ends here
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
			if held := c.lenOf(h); held >= s.n && !s.last {
				keep |= 1 << b
			} else {
				l.add(h, s.base+min(held, s.n))
			}
		}
		w.bits[i] = keep
		goOn |= keep
	}
	if !w.first {
		l.addGroup(w.lost[:words], s.base)
	}
	if out {
		l.addGroup(w.full[:words], s.base+min(c.fullHeld, s.n))
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
