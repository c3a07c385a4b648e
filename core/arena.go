package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// An arena holds engine hashes in segments of segBlocks words. A
// block number is segment*segBlocks + offset, below 1<<blockBits. Only the
// writer touches it, so segments are reused at once and memory may move.
//
// Segments live in slabs of slabSegs, which the collector never scans. The
// first slab grows by doubling, so a small index is small; a slab whose
// segments are all free is given back.
type arena struct {
	slabs []slab
	avail []uint32 // slabs that may have free segments (a hint; checked)
	gone  []uint32 // slab numbers whose memory was given back
	inUse int      // segments
	size  int64    // bytes of all slabs

	stock *hugemem.Stock // of slabs, each a block of it
}

type slab struct {
	names []uint64
	heads []seg
	free  []uint16 // stack of free segments
	block hugemem.Block
}

const (
	segBits   = 4
	segBlocks = 1 << segBits // hashes per segment: 128 bytes, two cache lines
	slabBits  = 14
	slabSegs  = 1 << slabBits // hugemem.Size bytes of hashes per slab: one huge page
	slabMask  = slabSegs*segBlocks - 1

	slabFirst = 64 // segments of the first slab to begin with

	// maxSegs leaves room for the longest event beyond it: a message's size
	// bounds that far below a million blocks.
	maxSegs = (1<<blockBits - 1<<20) / segBlocks

	segBytes = segBlocks*8 + 16 + 2 // hashes, header, place in the free stack
)

// seg says whose hashes a segment holds: positions base … base+segBlocks-1 of
// a run, by everyone (owner 0) or by one holder (owner = holder + 1).
type seg struct {
	run     uint32 // 0: free
	base    uint32
	owner   uint32
	entered uint32 // a bit for each block that the directory, or dups, has; above them, for each that may be closed (closedBlocks)
}

func (a *arena) at(b uint32) uint64 { return a.slabs[b>>(segBits+slabBits)].names[b&slabMask] }

func (a *arena) set(b uint32, hash uint64) {
	a.slabs[b>>(segBits+slabBits)].names[b&slabMask] = hash
}

// hashes returns the words of a segment.
func (a *arena) hashes(s uint32) []uint64 {
	i := (s & (slabSegs - 1)) << segBits
	return a.slabs[s>>slabBits].names[i : i+segBlocks : i+segBlocks]
}

// searchEach returns the first of the segments that has the hash, len(segs) if none has.
func (a *arena) searchEach(segs []uint32, hash uint64) int {
	for i, s := range segs {
		if slices.Contains(a.hashes(s), hash) {
			return i
		}
	}
	return len(segs)
}

func (a *arena) head(s uint32) *seg { return &a.slabs[s>>slabBits].heads[s&(slabSegs-1)] }

// alloc returns a segment for the given run, base and owner. Segment 0 is
// never handed out, so 0 can mean none.
func (a *arena) alloc(run, base, owner uint32) uint32 {
	for len(a.avail) > 0 {
		n := a.avail[len(a.avail)-1]
		sl := &a.slabs[n]
		if f := len(sl.free); f > 0 {
			s := n<<slabBits | uint32(sl.free[f-1])
			sl.free = sl.free[:f-1]
			a.inUse++
			*a.head(s) = seg{run, base, owner, 0}
			return s
		}
		a.avail = a.avail[:len(a.avail)-1]
	}
	a.addRoom()
	return a.alloc(run, base, owner)
}

// addRoom doubles the first slab or adds another.
func (a *arena) addRoom() {
	if len(a.slabs) == 0 {
		a.slabs = make([]slab, 1)
		a.growFirst(slabFirst)
		a.avail = append(a.avail, 0)
		return
	}
	if n := len(a.slabs[0].heads); n < slabSegs {
		a.growFirst(2 * n)
		a.avail = append(a.avail, 0)
		return
	}
	var n uint32
	if g := len(a.gone); g > 0 {
		n = a.gone[g-1]
		a.gone = a.gone[:g-1]
	} else {
		n = uint32(len(a.slabs))
		a.slabs = append(a.slabs, slab{})
	}
	sl := &a.slabs[n]
	sl.block = a.stock.Get()
	sl.names = sl.block.Words
	sl.heads = make([]seg, slabSegs)
	sl.free = stack(0, slabSegs)
	a.size += slabSegs * segBytes
	a.avail = append(a.avail, n)
}

// need returns how many bytes room for n more hashes may take, in runs of their own.
func (a *arena) need(n int) int64 {
	segs := a.inUse + n/segBlocks + 3 // one is never handed out
	have, first := 0, 0
	if len(a.slabs) > 0 {
		first = len(a.slabs[0].heads)
		have = first + (len(a.slabs)-1-len(a.gone))*slabSegs
	}
	if segs <= have {
		return 0
	}
	room := have
	for first = max(first, slabFirst/2); first < slabSegs && room < segs; {
		first *= 2
		room = first
	}
	for room < segs {
		room += slabSegs
	}
	return int64(room-have) * segBytes
}

// growFirst moves the first slab to one of n segments.
func (a *arena) growFirst(n int) {
	sl := &a.slabs[0]
	had := len(sl.heads)
	a.size += int64(n-had) * segBytes
	hashes, heads := make([]uint64, n*segBlocks), make([]seg, n)
	copy(hashes, sl.names)
	copy(heads, sl.heads)
	sl.names, sl.heads = hashes, heads
	sl.free = append(stack(max(had, 1), n), sl.free...)
}

// stack returns the numbers lo … hi-1, the lowest on top.
func stack(lo, hi int) []uint16 {
	f := make([]uint16, 0, hi)
	for i := hi - 1; i >= lo; i-- {
		f = append(f, uint16(i))
	}
	return f
}

func (a *arena) release(s uint32) {
	*a.head(s) = seg{}
	n := s >> slabBits
	sl := &a.slabs[n]
	if len(sl.free) == 0 {
		a.avail = append(a.avail, n)
	}
	sl.free = append(sl.free, uint16(s&(slabSegs-1)))
	a.inUse--
	switch {
	case a.inUse == 0:
		a.reset()
	case n > 0 && len(sl.free) == slabSegs && a.spare():
		a.stock.Put(sl.block)
		*sl = slab{}
		a.size -= slabSegs * segBytes
		a.gone = append(a.gone, n)
	}
}

// reset gives all memory back.
func (a *arena) reset() {
	for i := range a.slabs {
		if len(a.slabs[i].block.Words) > 0 {
			a.stock.Put(a.slabs[i].block)
		}
	}
	*a = arena{stock: a.stock}
}

// spare reports whether a slab's worth of segments is free besides the slab
// that just became empty: without that slack, a steady state at a slab's edge
// would map and unmap it over and over.
func (a *arena) spare() bool {
	return (len(a.slabs)-len(a.gone))*slabSegs-a.inUse >= 2*slabSegs
}

func (a *arena) bytes() int64 {
	return a.size + int64(cap(a.slabs))*104 + int64(cap(a.avail)+cap(a.gone))*4
}
