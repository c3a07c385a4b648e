package core

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// Matches is the answer to one Find, kept compactly: holders that match to the
// same depth share one bitset. The zero value is ready; reusing one Matches
// makes Find allocate nothing. It is not safe for concurrent use.
//
// Depths are in blocks and cumulative over tiers: level Device counts device
// memory only, level HostPinned device or host, and so on. A holder that
// matches no block at a level is absent from it.
type Matches struct {
	level  level // the answer at all levels, unless tiered
	tiered bool  // the path has lower tiers: the answer is in depth, by holder

	// depth is the answer of the holders in seen and zero for the others. They
	// are joined by holder because the levels are read one after the other
	// beside a writer, and only together can be made cumulative (see join).
	depth [][event.NumTiers]uint32
	seen  []Holder

	walk walk // the reader's scratch

	// EarlyExit makes Find stop once a single holder is left: its depth is
	// then a lower bound. The caller sets it.
	EarlyExit bool
}

// level is the answer of one tier level: disjoint groups and single holders.
type level struct {
	groups []group
	words  []uint64 // the groups' bitsets, one after the other
	single []single
}

type group struct {
	depth      uint32
	start, end uint32 // words[start:end]; bit i of word w is holder 64w+i
}

type single struct {
	holder Holder
	depth  uint32
}

// Reset empties m and keeps its memory.
func (m *Matches) Reset() {
	m.level.reset()
	for _, h := range m.seen {
		m.depth[h] = [event.NumTiers]uint32{}
	}
	m.seen, m.tiered = m.seen[:0], false
}

// Tiered reports whether levels may differ: otherwise lower tiers lengthen no
// match, and the answer at level Device is that of all levels.
func (m *Matches) Tiered() bool { return m.tiered }

// EachHolder calls f once for every holder that matches at least one block on
// any tier, in no particular order. Depths are cumulative, also beside a
// writer: depth[t] ≤ depth[t+1].
func (m *Matches) EachHolder(f func(h Holder, depth [event.NumTiers]uint32)) {
	if !m.tiered {
		m.Each(event.Device, func(h Holder, d uint32) { f(h, [event.NumTiers]uint32{d, d, d, d}) })
		return
	}
	for _, h := range m.seen {
		f(h, m.depth[h])
	}
}

// Each calls f once for every holder that matches at least one block at the
// tier level, in no particular order.
func (m *Matches) Each(t event.Tier, f func(h Holder, depth uint32)) {
	for _, h := range m.seen {
		if d := m.depth[h][t]; d > 0 {
			f(h, d)
		}
	}
	l := &m.level
	for _, g := range l.groups {
		for i, w := range l.words[g.start:g.end] {
			for ; w != 0; w &= w - 1 {
				f(Holder(i*64+bits.TrailingZeros64(w)), g.depth)
			}
		}
	}
	for _, s := range l.single {
		f(s.holder, s.depth)
	}
}

// Fill writes each matching holder's depth at the tier level into
// depth[holder] and leaves the others as they are; holders beyond
// len(depth) are skipped.
func (m *Matches) Fill(t event.Tier, depth []uint32) {
	m.Each(t, func(h Holder, d uint32) {
		if int(h) < len(depth) {
			depth[h] = d
		}
	})
}

// Sum returns how many holders match at the tier level and the sum of their
// depths in blocks.
func (m *Matches) Sum(t event.Tier) (holders int, blocks uint64) {
	for _, h := range m.seen {
		if d := m.depth[h][t]; d > 0 {
			holders, blocks = holders+1, blocks+uint64(d)
		}
	}
	l := &m.level
	for _, g := range l.groups {
		n := 0
		for _, w := range l.words[g.start:g.end] {
			n += bits.OnesCount64(w)
		}
		holders += n
		blocks += uint64(n) * uint64(g.depth)
	}
	for _, s := range l.single {
		blocks += uint64(s.depth)
	}
	return holders + len(l.single), blocks
}

// keepLevel moves what was found as level t into depth.
func (m *Matches) keepLevel(t event.Tier) {
	l := &m.level
	for _, g := range l.groups {
		for i, w := range l.words[g.start:g.end] {
			for ; w != 0; w &= w - 1 {
				m.at(Holder(i*64 + bits.TrailingZeros64(w)))[t] = g.depth
			}
		}
	}
	for _, s := range l.single {
		m.at(s.holder)[t] = s.depth
	}
	l.reset()
}

// at returns the depths of a holder that is in the answer.
func (m *Matches) at(h Holder) *[event.NumTiers]uint32 {
	if int(h) >= len(m.depth) {
		m.depth = append(m.depth, make([][event.NumTiers]uint32, int(h)+1-len(m.depth))...)
	}
	d := &m.depth[h]
	if *d == [event.NumTiers]uint32{} {
		m.seen = append(m.seen, h)
	}
	return d
}

// makeCumulative makes the answer what take has moved, cumulative.
//
// Each level is right for itself: of its depth d, each block before d was
// present at some moment during the call, and block d was absent at one. But
// the levels were read one after the other, and the writer may have been faster:
// a level may end before one below it. Then the block at which it ends was
// absent on all of its tiers at that moment, so on the fewer of the lower level
// as well, and the blocks before were present there: the shorter depth is right
// for the lower level, too.
func (m *Matches) makeCumulative() {
	m.tiered = true
	keep := m.seen[:0]
	for _, h := range m.seen {
		d := &m.depth[h]
		for t := event.NumTiers - 2; t >= 0; t-- {
			d[t] = min(d[t], d[t+1])
		}
		if d[event.NumTiers-1] > 0 {
			keep = append(keep, h)
		}
	}
	m.seen = keep
}

func (l *level) reset() { l.groups, l.words, l.single = l.groups[:0], l.words[:0], l.single[:0] }

// add records a single holder; depth 0 is no match.
func (l *level) add(h Holder, depth uint32) {
	if depth > 0 {
		l.single = append(l.single, single{h, depth})
	}
}

// addGroup records the holders of a bitset.
func (l *level) addGroup(words []uint64, depth uint32) {
	if depth == 0 {
		return
	}
	any := uint64(0)
	for _, w := range words {
		any |= w
	}
	if any == 0 {
		return
	}
	start := len(l.words)
	l.words = append(l.words, words...)
	l.groups = append(l.groups, group{depth, uint32(start), uint32(len(l.words))})
}
