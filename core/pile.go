package core

import "github.com/kvatlas/kvatlas/event"

// maxLayers is how many hashes of one holder at one position are found by looking
// through layers: the shared one and others. The rest are piled.
const maxLayers = 4

// spot says which of a holder's hashes at a position is meant: that of a layer or,
// if the layer is piled, the one in the block. The zero value is the shared hash.
type spot struct {
	layer uint32
	block uint32
}

const piled = maxLayers

// A pile has the hashes of a holder at positions of a run where every layer has one
// already. An engine that does not tell what besides tokens its hashes are made of
// (salts, adapters) names the same content thousands of times; what is done with
// one of these hashes takes the same time however many there are: the bitmaps say where
// there is something, the counts of a heap when a bit has to change, and the list of idle
// ones which may be forgotten, so that nobody looks through a heap for that.
type pile struct {
	known  bitmap                 // positions with hashes here
	idle   bitmap                 // those with some that have no copies
	held   [event.NumTiers]bitmap // those with some that have copies on the tier
	nHeld  [event.NumTiers]int    // hashes with copies on the tier
	heaps  thinMap[*heap]         // by position
	hashes thinMap[piledHash]     // by block
	room   int64                  // bytes of the heaps
}

// heap has the hashes at one position: the first n blocks of segments of its own,
// whose base is pileBase and the position.
type heap struct {
	segs []uint32
	n    uint32
	idle []uint32               // blocks of hashes without copies
	held [event.NumTiers]uint32 // hashes with copies on the tier
}

// piledHash is a hash of a heap. Without copies it is in the heap's idle list, and
// knows where, as unpile moves hashes to other blocks.
type piledHash struct {
	copies [event.NumTiers]uint32
	idle   uint32 // its index in the heap's idle ones, from 1; 0: it has copies
}

// pileBase marks the base of a heap's segments. Positions are below 1<<blockBits.
const pileBase = 1 << 31

func (h *heap) block(i uint32) uint32 { return h.segs[i>>segBits]<<segBits | i&(segBlocks-1) }

func (h *heap) bytes() int64 {
	return heapBytes + sizeClass(int64(cap(h.segs))*4) + sizeClass(int64(cap(h.idle))*4)
}

func (p *pile) bytes() int64 {
	if p == nil {
		return 0
	}
	n := pileBytes + p.room + p.heaps.bytes(16) + p.hashes.bytes(32) + sizeClass(int64(cap(p.known))*8) + sizeClass(int64(cap(p.idle))*8)
	for t := range p.held {
		n += sizeClass(int64(cap(p.held[t])) * 8)
	}
	return n
}

const (
	heapBytes = 80
	pileBytes = 224
)

// has reports whether the block is a hash's.
func (p *pile) has(b uint32) bool {
	if p == nil {
		return false
	}
	_, ok := p.hashes.m[uint64(b)]
	return ok
}

// at calls f for the block of every hash at a position, until f returns false.
func (p *pile) at(pos uint32, f func(b uint32) bool) {
	if p == nil || !p.known.has(pos) {
		return
	}
	h := p.heaps.m[uint64(pos)]
	for i := range h.n {
		if !f(h.block(i)) {
			return
		}
	}
}

// set gives the hash in a block that many copies on the tier.
func (p *pile) set(pos, b uint32, tier int, copies uint32) {
	h, e := p.heaps.m[uint64(pos)], p.hashes.m[uint64(b)]
	was := e.copies[tier]
	e.copies[tier] = copies
	switch {
	case was == 0 && copies > 0:
		p.nHeld[tier]++
		if h.held[tier]++; h.held[tier] == 1 {
			p.held[tier].set(pos, pos+1)
		}
	case was > 0 && copies == 0:
		p.nHeld[tier]--
		if h.held[tier]--; h.held[tier] == 0 {
			p.held[tier].clear(pos, pos+1)
		}
	}
	switch none := e.copies == [event.NumTiers]uint32{}; {
	case none && e.idle == 0:
		p.room -= h.bytes()
		h.idle = append(h.idle, b)
		p.room += h.bytes()
		e.idle = uint32(len(h.idle))
		p.idle.set(pos, pos+1)
	case !none && e.idle > 0:
		p.wake(pos, h, e.idle)
		e.idle = 0
	}
	p.hashes.set(uint64(b), e)
}

// wake takes the i-th idle hash of a heap out of the list of those.
func (p *pile) wake(pos uint32, h *heap, i uint32) {
	last := len(h.idle) - 1
	if b := h.idle[last]; int(i-1) < last {
		e := p.hashes.m[uint64(b)]
		e.idle, h.idle[i-1] = i, b
		p.hashes.set(uint64(b), e)
	}
	p.room -= h.bytes()
	if h.idle = h.idle[:last]; last == 0 {
		h.idle = nil
		p.idle.clear(pos, pos+1)
	} else if cap(h.idle) > 32 && last < cap(h.idle)/4 {
		h.idle = append([]uint32(nil), h.idle...)
	}
	p.room += h.bytes()
}

// pileUp gives the holder one more hash at a position, without copies yet, and
// returns its block.
func (x *Radix) pileUp(ex *exception, pos uint32, e uint64) uint32 {
	if ex.pile == nil {
		ex.pile = &pile{}
	}
	p := ex.pile
	h := p.heaps.m[uint64(pos)]
	if h == nil {
		h = &heap{}
		p.heaps.set(uint64(pos), h)
		p.known.set(pos, pos+1)
		p.room += h.bytes()
	}
	if int(h.n) == len(h.segs)<<segBits {
		p.room -= h.bytes()
		h.segs = append(h.segs, x.arena.alloc(ex.run.id, pileBase|pos, ex.holder+1))
		p.room += h.bytes()
	}
	b := h.block(h.n)
	h.n++
	x.arena.set(b, e)
	x.enter(ex.holder, e, b)
	p.set(pos, b, 0, 0)
	return b
}

// unpile forgets the hash in a block. The heap's last hash takes its block.
func (x *Radix) unpile(ex *exception, pos, b uint32) {
	p := ex.pile
	h := p.heaps.m[uint64(pos)]
	x.unlearnHash(x.holders[ex.holder], x.arena.at(b))
	x.dropHash(x.arena.at(b), b)
	for t := range p.held {
		p.set(pos, b, t, 0)
	}
	p.wake(pos, h, p.hashes.m[uint64(b)].idle)
	p.hashes.drop(uint64(b))
	h.n--
	if last := h.block(h.n); last != b {
		hash, e := x.arena.at(last), p.hashes.m[uint64(last)]
		x.arena.set(b, hash)
		x.moveHash(hash, last, b)
		p.hashes.drop(uint64(last))
		p.hashes.set(uint64(b), e)
		if e.idle > 0 {
			h.idle[e.idle-1] = b
		}
	}
	if h.n&(segBlocks-1) == 0 {
		p.room -= h.bytes()
		x.arena.release(h.segs[len(h.segs)-1])
		if h.segs = h.segs[:len(h.segs)-1]; cap(h.segs) > 32 && len(h.segs) < cap(h.segs)/4 {
			h.segs = append([]uint32(nil), h.segs...)
		}
		p.room += h.bytes()
	}
	if h.n == 0 {
		p.room -= h.bytes()
		p.heaps.drop(uint64(pos))
		if p.known.clear(pos, pos+1); p.known == nil {
			ex.pile = nil
		}
	}
}

// trimPile forgets the idle hashes from a position on.
func (x *Radix) trimPile(ex *exception, from uint32) (less bool) {
	for ex.pile != nil {
		pos, ok := ex.pile.idle.next(from)
		if !ok {
			break
		}
		h := ex.pile.heaps.m[uint64(pos)]
		x.unpile(ex, pos, h.idle[len(h.idle)-1])
		x.steps++
		less = true
	}
	return less
}

// clearPile takes all copies on a tier away, and returns how many hashes had some.
func (ex *exception) clearPile(tier int) int {
	p := ex.pile
	if p == nil {
		return 0
	}
	n := p.nHeld[tier]
	for {
		pos, ok := p.held[tier].next(0)
		if !ok {
			return n
		}
		h := p.heaps.m[uint64(pos)]
		for i := range h.n {
			p.set(pos, h.block(i), tier, 0)
		}
	}
}
