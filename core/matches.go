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
	levels [event.NumTiers]level
	same   [event.NumTiers]event.Tier // same[t] = the lowest level that has t's answer
	walk   walk                       // the reader's scratch

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
	for t := range m.levels {
		l := &m.levels[t]
		l.groups, l.words, l.single = l.groups[:0], l.words[:0], l.single[:0]
		m.same[t] = 0
	}
}

// Each calls f once for every holder that matches at least one block at the
// tier level, in no particular order.
func (m *Matches) Each(t event.Tier, f func(h Holder, depth uint32)) {
	l := &m.levels[m.same[t]]
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

// Same reports whether the answer at level t is that of level Device: no
// lower tier lengthens any match.
func (m *Matches) Same(t event.Tier) bool { return m.same[t] == event.Device }

// Sum returns how many holders match at the tier level and the sum of their
// depths in blocks.
func (m *Matches) Sum(t event.Tier) (holders int, blocks uint64) {
	l := &m.levels[m.same[t]]
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

// add records one holder's depth at a level.
func (m *Matches) add(t event.Tier, h Holder, depth uint32) {
	if depth > 0 {
		m.levels[t].single = append(m.levels[t].single, single{h, depth})
	}
}

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
