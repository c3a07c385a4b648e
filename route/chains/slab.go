package chains

// Slab is elements by number, of which the first, 0, is never given back. An element does not move: to
// have more copies a pointer for each page there is, and no element, as who waits for its user's lock
// waits for that too. The zero Slab is empty.
type Slab[T any] struct {
	pages []*page[T]
	taken uint32 // numbers below are in use or free
	free  uint32 // the first that is free; 0 without
	live  int
}

const pageSize = 256

type page[T any] struct {
	is   [pageSize]T
	next [pageSize]uint32 // of a free number, the next one; 0 behind the last
}

// At returns an element.
func (s *Slab[T]) At(at uint32) *T { return &s.pages[at/pageSize].is[at%pageSize] }

// Len returns the number below which all are.
func (s *Slab[T]) Len() int { return int(s.taken) }

// Live returns how many are in use.
func (s *Slab[T]) Live() int { return s.live }

// Take returns the number of an element that was not in use; it is zero.
func (s *Slab[T]) Take() uint32 {
	s.live++
	if at := s.free; at != 0 {
		s.free = s.pages[at/pageSize].next[at%pageSize]
		return at
	}
	at := s.taken
	if s.taken++; at%pageSize == 0 {
		s.pages = append(s.pages, new(page[T]))
	}
	return at
}

// Give gives an element back.
func (s *Slab[T]) Give(at uint32) {
	*s.At(at) = *new(T)
	s.pages[at/pageSize].next[at%pageSize], s.free = s.free, at
	s.live--
}
