package core

import (
	"encoding/binary"
	"math/bits"
)

// chunk is one cache line of entries. Entries whose home is full stand in
// another chunk: over counts them by class of tag, two bits a class.
type chunk struct {
	tags [chunkSlots]uint8
	used uint16 // a bit per slot in use; above them, how far the overflowed are
	over uint16
	blk  [chunkSlots]uint32 // block number, and four more bits of the hash above it
}

const (
	chunkSlots = 12
	allSlots   = 1<<chunkSlots - 1
	farthest   = 15 // a reach that means anywhere in the leaf

	blockBits = 28 // of a block number
	blockMask = 1<<blockBits - 1
)

// reach returns how many steps away entries whose home is c may be, at most.
func (c *chunk) reach() uint32 {
	if k := uint32(c.used >> chunkSlots); k < farthest {
		return k
	}
	return pageChunks - 1
}

// setReach makes it k or, if that is more than can be said, anywhere.
func (c *chunk) setReach(k uint32) { c.used = c.used&allSlots | uint16(min(k, farthest))<<chunkSlots }

// free returns a free slot; chunkSlots or more if there is none.
func (c *chunk) free() int { return bits.TrailingZeros16(^c.used) }

// A slot that is not in use has tag 0 and block 0, which is no block's number: so who
// looks for an entry need not ask which slots are in use.
func (c *chunk) set(s int, t uint8, slot uint32) {
	if uint(s) < chunkSlots {
		c.tags[s], c.blk[s] = t, slot
		c.used |= 1 << (s & 15)
	}
}

// drop frees a slot.
func (c *chunk) drop(s int) {
	if uint(s) < chunkSlots {
		c.tags[s], c.blk[s] = 0, 0
		c.used &^= 1 << (s & 15)
	}
}

// slotOf returns what a slot holds for a block: with four bits more than the
// tag has, one candidate in 4,000 is false instead of one in 250, and a false
// one costs a cache miss.
func slotOf(m uint64, b uint32) uint32 { return uint32(m>>8)<<blockBits | b }

// overflowed reports whether entries with tags of t's class, one of eight, may
// stand elsewhere.
func (c *chunk) overflowed(t uint8) bool { return c.over>>(t&7*2)&3 != 0 }

// overflow counts one more entry that stands k steps away; the count of a
// class sticks at 3.
func (c *chunk) overflow(t uint8, k uint32) {
	if s := t & 7 * 2; c.over>>s&3 < 3 {
		c.over += 1 << s
	}
	c.setReach(max(c.reach(), k))
}

// underflow counts one less.
func (c *chunk) underflow(t uint8) {
	if s := t & 7 * 2; c.over>>s&3 < 3 {
		if c.over -= 1 << s; c.over == 0 {
			c.setReach(0)
		}
	}
}

// tagOf returns the hash's tag.
func tagOf(m uint64) uint8 { return uint8(m) }

// match marks the slots whose tag may be t, each by one bit that slotAt knows. A mark
// may be false above a true one, and where the slot is not in use.
func (c *chunk) match(t uint8) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	a := binary.LittleEndian.Uint64(c.tags[:8]) ^ ones*uint64(t)
	b := uint64(binary.LittleEndian.Uint32(c.tags[8:])) ^ ones*uint64(t)
	return (a-ones)&^a&tops | (b-ones)&^b&(tops>>32)>>4
}

// slotAt returns the slot of the lowest mark: the first eight have the top bits of
// bytes, the others the middle ones.
func slotAt(marks uint64) int {
	i := bits.TrailingZeros64(marks)
	return i>>3&7 | (^i&4)<<1
}

// lacks reports whether the chunk shows that it does not have the hash: no tag
// with its four further bits equals the hash's.
func (c *chunk) lacks(m uint64) bool {
	for k := c.match(tagOf(m)); k != 0; k &= k - 1 {
		if s := slotAt(k); s < chunkSlots && c.blk[s]>>blockBits == slotOf(m, 0)>>blockBits && c.blk[s] != 0 {
			return false
		}
	}
	return true
}

// block returns the slot of exactly this entry, or -1.
func (c *chunk) block(t uint8, slot uint32) int {
	for k := c.match(t); k != 0; k &= k - 1 {
		if s := slotAt(k); s < chunkSlots && c.blk[s] == slot {
			return s
		}
	}
	return -1
}
