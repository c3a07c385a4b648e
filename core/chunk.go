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

func (c *chunk) set(s int, t uint8, slot uint32) {
	s %= chunkSlots
	c.tags[s], c.blk[s] = t, slot
	c.used |= 1 << s
}

// drop frees a slot. A tag that is not there any more is one false match less.
func (c *chunk) drop(s int) {
	s %= chunkSlots
	c.tags[s] = 0
	c.used &^= 1 << s
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

// match marks the slots whose tag may be t by the top bits of bytes. A mark may
// be false above a true one, and where the slot is not in use.
func (c *chunk) match(t uint8) (a, b uint64) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	a = binary.LittleEndian.Uint64(c.tags[:8]) ^ ones*uint64(t)
	b = uint64(binary.LittleEndian.Uint32(c.tags[8:])) ^ ones*uint64(t) | 0xFFFFFFFF<<32
	return (a - ones) &^ a & tops, (b - ones) &^ b & tops
}

// matches returns the slots in use whose tag may be t.
func (c *chunk) matches(t uint8) uint16 {
	a, b := c.match(t)
	const gather = 0x0102040810204080 // moves the marks together
	return uint16(a>>7*gather>>56|b>>7*gather>>56<<8) & c.used & allSlots
}

// lacks reports whether the chunk shows that it does not have the hash: no tag
// with its four further bits equals the hash's.
func (c *chunk) lacks(m uint64) bool {
	for k := c.matches(tagOf(m)); k != 0; k &= k - 1 {
		if s := bits.TrailingZeros16(k) % chunkSlots; c.blk[s]>>blockBits == slotOf(m, 0)>>blockBits {
			return false
		}
	}
	return true
}

// block returns the slot of exactly this entry, or -1.
func (c *chunk) block(t uint8, slot uint32) int {
	for m := c.matches(t); m != 0; m &= m - 1 {
		if s := bits.TrailingZeros16(m) % chunkSlots; c.blk[s] == slot && c.tags[s] == t {
			return s
		}
	}
	return -1
}
