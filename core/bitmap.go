package core

import "math/bits"

// bitmap is a growable set of positions of one run.
type bitmap []uint64

func (b bitmap) has(p uint32) bool {
	w := int(p >> 6)
	return w < len(b) && b[w]>>(p&63)&1 != 0
}

// word returns the bits of the 64 positions around p.
func (b bitmap) word(p uint32) uint64 {
	if w := int(p >> 6); w < len(b) {
		return b[w]
	}
	return 0
}

// rangeMask returns the bits of word w that lie in [lo, hi).
func rangeMask(w int, lo, hi uint32) uint64 {
	m := ^uint64(0)
	if int(lo>>6) == w {
		m &= ^uint64(0) << (lo & 63)
	}
	if int(hi>>6) == w {
		m &= 1<<(hi&63) - 1
	}
	return m
}

// set adds [lo, hi) and returns how many positions were new.
func (b *bitmap) set(lo, hi uint32) int {
	if lo >= hi {
		return 0
	}
	last := int((hi - 1) >> 6)
	if last >= len(*b) {
		if last >= cap(*b) {
			nb := make(bitmap, last+1, last+1+last/4)
			copy(nb, *b)
			*b = nb
		} else {
			*b = (*b)[:last+1] // beyond len is always zero
		}
	}
	n := 0
	for w := int(lo >> 6); w <= last; w++ {
		m := rangeMask(w, lo, hi) &^ (*b)[w]
		n += bits.OnesCount64(m)
		(*b)[w] |= m
	}
	return n
}

// clear takes [lo, hi) out and returns how many positions were in.
func (b *bitmap) clear(lo, hi uint32) int {
	if end := uint32(len(*b)) << 6; hi > end {
		hi = end
	}
	if lo >= hi {
		return 0
	}
	n := 0
	for w := int(lo >> 6); w <= int((hi-1)>>6); w++ {
		m := rangeMask(w, lo, hi) & (*b)[w]
		n += bits.OnesCount64(m)
		(*b)[w] &^= m
	}
	for len(*b) > 0 && (*b)[len(*b)-1] == 0 {
		*b = (*b)[:len(*b)-1]
	}
	if len(*b) == 0 {
		*b = nil
	}
	return n
}

// next returns the first position from p on, if there is one.
func (b bitmap) next(p uint32) (uint32, bool) {
	for w := int(p >> 6); w < len(b); w++ {
		m := b[w]
		if w == int(p>>6) {
			m &= ^uint64(0) << (p & 63)
		}
		if m != 0 {
			return uint32(w<<6 + bits.TrailingZeros64(m)), true
		}
	}
	return 0, false
}

// end returns one more than the highest position, 0 if empty.
func (b bitmap) end() uint32 {
	if len(b) == 0 {
		return 0 // clear keeps the last word non-zero
	}
	return uint32(len(b)<<6 - bits.LeadingZeros64(b[len(b)-1]))
}

// each calls f for every maximal stretch [lo, hi) in order.
func (b bitmap) each(f func(lo, hi uint32)) {
	for p, end := uint32(0), b.end(); p < end; {
		if !b.has(p) {
			p++
			continue
		}
		q := p + 1
		for b.has(q) {
			q++
		}
		f(p, q)
		p = q
	}
}

// firstGap returns the first position from start on that is in none of several
// bitmaps, whose words around a position are or-ed by word; one from end on if
// all before are in one.
func firstGap(start, end uint32, word func(p uint32) uint64) uint32 {
	for p := start; p < end; p = p&^63 + 64 {
		if gaps := ^word(p) >> (p & 63); gaps != 0 {
			return p + uint32(bits.TrailingZeros64(gaps))
		}
	}
	return end
}
