package core

import "slices"

// offsets is a multiset of offsets that knows its largest. Adding and removing
// cost O(log n), however the largest ones come and go: two heaps, one of what
// was added and one of what was removed since and is not yet on top.
type offsets struct {
	in, gone []uint32 // largest first; gone is part of in
}

func (s *offsets) add(o uint32) { s.in = pushOffset(s.in, o) }

func (s *offsets) remove(o uint32) {
	s.gone = pushOffset(s.gone, o)
	s.max()
	if len(s.gone)*2 > len(s.in)+16 {
		s.compact()
	}
}

// max returns the largest offset, 0 if there is none.
func (s *offsets) max() uint32 {
	for len(s.gone) > 0 && s.in[0] == s.gone[0] {
		s.in, s.gone = popOffset(s.in), popOffset(s.gone)
	}
	if len(s.in) == 0 {
		return 0
	}
	return s.in[0]
}

// compact takes what was removed out. Sorted, largest first, is a heap.
func (s *offsets) compact() {
	largest := func(a, b uint32) int { return int(int64(b) - int64(a)) }
	slices.SortFunc(s.in, largest)
	slices.SortFunc(s.gone, largest)
	keep, g := s.in[:0], 0
	for _, o := range s.in {
		if g < len(s.gone) && s.gone[g] == o {
			g++
			continue
		}
		keep = append(keep, o)
	}
	s.in, s.gone = slices.Clone(keep), nil
}

func pushOffset(h []uint32, o uint32) []uint32 {
	h = append(h, o)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up] >= h[i] {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	return h
}

func popOffset(h []uint32) []uint32 {
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h[c+1] > h[c] {
			c++
		}
		if h[i] >= h[c] {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	if cap(h) > 64 && len(h) < cap(h)/4 {
		h = append(make([]uint32, 0, cap(h)/2), h...)
	}
	return h
}

func (s *offsets) bytes() int64 {
	return sizeClass(int64(cap(s.in))*4) + sizeClass(int64(cap(s.gone))*4)
}
