package core

// An arena holds engine hashes ("names") in segments of segBlocks words. A
// block number is segment*segBlocks + offset, so 32 bits name any block of a
// shard; the directory stores nothing else. Only the writer touches it, so
// segments are reused at once.
//
// Segments live in slabs of slabSegs: big pointer-free allocations that the
// collector never scans. A slab whose segments are all free is given back.
type arena struct {
	words [][]uint64 // slab → slabSegs*segBlocks names
	heads [][]seg    // slab → slabSegs headers
	free  [][]uint16 // slab → stack of free segments
	avail []uint32   // slabs that may have free segments (a hint; checked)
	gone  []uint32   // slab numbers whose memory was given back
	inUse int        // segments
	slabs int        // slabs with memory
}

const (
	segBits   = 4
	segBlocks = 1 << segBits // names per segment: 128 bytes, two cache lines
	slabBits  = 10
	slabSegs  = 1 << slabBits // 128 KiB of names per slab
	slabBytes = slabSegs * (segBlocks*8 + segHeadBytes)

	segHeadBytes = 12
)

// seg says whose names a segment holds: positions base … base+segBlocks-1 of
// a run, by everyone (owner 0) or by one holder (owner = holder + 1).
type seg struct {
	run   uint32 // 0: free
	base  uint32
	owner uint32
}

func (a *arena) at(b uint32) uint64 {
	s := b >> segBits
	return a.words[s>>slabBits][b&(slabSegs*segBlocks-1)]
}

// peek is at for a block that may be gone.
func (a *arena) peek(b uint32) (uint64, bool) {
	s := b >> segBits
	if s == 0 || int(s>>slabBits) >= len(a.words) || a.words[s>>slabBits] == nil || a.head(s).run == 0 {
		return 0, false
	}
	return a.at(b), true
}

func (a *arena) set(b uint32, name uint64) {
	s := b >> segBits
	a.words[s>>slabBits][b&(slabSegs*segBlocks-1)] = name
}

// names returns the words of a segment.
func (a *arena) names(s uint32) []uint64 {
	i := (s & (slabSegs - 1)) << segBits
	return a.words[s>>slabBits][i : i+segBlocks : i+segBlocks]
}

func (a *arena) head(s uint32) *seg { return &a.heads[s>>slabBits][s&(slabSegs-1)] }

// alloc returns a segment for the given run, base and owner. Segment 0 is
// never handed out, so 0 can mean none.
func (a *arena) alloc(run, base, owner uint32) uint32 {
	for len(a.avail) > 0 {
		sl := a.avail[len(a.avail)-1]
		if f := a.free[sl]; len(f) > 0 {
			s := sl<<slabBits | uint32(f[len(f)-1])
			a.free[sl] = f[:len(f)-1]
			a.inUse++
			*a.head(s) = seg{run, base, owner}
			return s
		}
		a.avail = a.avail[:len(a.avail)-1]
	}
	var sl uint32
	if n := len(a.gone); n > 0 {
		sl = a.gone[n-1]
		a.gone = a.gone[:n-1]
	} else {
		sl = uint32(len(a.words))
		a.words = append(a.words, nil)
		a.heads = append(a.heads, nil)
		a.free = append(a.free, nil)
	}
	a.words[sl] = make([]uint64, slabSegs*segBlocks)
	a.heads[sl] = make([]seg, slabSegs)
	a.slabs++
	f := make([]uint16, 0, slabSegs)
	for i := slabSegs - 1; i >= 0; i-- {
		if sl == 0 && i == 0 {
			continue // segment 0 is reserved
		}
		f = append(f, uint16(i))
	}
	a.free[sl] = f
	a.avail = append(a.avail, sl)
	return a.alloc(run, base, owner)
}

func (a *arena) release(s uint32) {
	*a.head(s) = seg{}
	sl := s >> slabBits
	f := a.free[sl]
	if len(f) == 0 {
		a.avail = append(a.avail, sl)
	}
	a.free[sl] = append(f, uint16(s&(slabSegs-1)))
	a.inUse--
	if full := slabSegs; sl == 0 {
		if len(a.free[0]) == full-1 && a.inUse == 0 {
			*a = arena{}
		}
	} else if len(a.free[sl]) == full && a.spare() {
		a.words[sl], a.heads[sl], a.free[sl] = nil, nil, nil
		a.slabs--
		a.gone = append(a.gone, sl)
	}
}

// spare reports whether a slab's worth of segments is free besides the slab
// that just became empty: without that slack, a steady state at a slab's edge
// would allocate and free it over and over.
func (a *arena) spare() bool { return a.slabs*slabSegs-a.inUse >= 2*slabSegs }

func (a *arena) bytes() int64 {
	return int64(a.slabs)*(slabBytes+slabSegs*2) + int64(cap(a.words)+cap(a.heads)+cap(a.free))*24 + int64(cap(a.avail)+cap(a.gone))*4
}
