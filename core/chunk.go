package core

import (
	"encoding/binary"
	"math/bits"
)

// chunk is one cache line of entries. Entries whose home is full stand in
// another chunk: over counts them by class of tag, two bits a class.
type chunk struct {
	tags  [chunkSlots]uint8 // 0: not in use
	guest uint16            // a bit per slot whose entry has another home; above them, how far the overflowed are
	over  uint16
	blk   [chunkSlots]uint32 // block number, and four more bits of the hash above it
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
	if k := uint32(c.guest >> chunkSlots); k < farthest {
		return k
	}
	return pageChunks - 1
}

// setReach makes it k or, if that is more than can be said, anywhere.
func (c *chunk) setReach(k uint32) { c.guest = c.guest&allSlots | uint16(min(k, farthest))<<chunkSlots }

// free returns the first free slot; chunkSlots or more if there is none.
func (c *chunk) free() int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	a := binary.LittleEndian.Uint64(c.tags[:8])
	if a = (a - ones) &^ a & tops; a != 0 {
		return bits.TrailingZeros64(a) >> 3
	}
	b := uint64(binary.LittleEndian.Uint32(c.tags[8:])) | 0xFFFFFFFF<<32
	return 8 + bits.TrailingZeros64((b-ones)&^b&tops)>>3
}

// A slot that is not in use has tag 0, which no entry has, and block 0, which is no block's
// number: so who looks for an entry need not ask which slots are in use.
func (c *chunk) set(s int, t uint8, slot uint32) {
	if uint(s) < chunkSlots {
		c.tags[s], c.blk[s] = t, slot
	}
}

// drop frees a slot.
func (c *chunk) drop(s int) {
	if uint(s) < chunkSlots {
		c.tags[s], c.blk[s] = 0, 0
		c.guest &^= 1 << (s & 15)
	}
}

// mark is what an entry shows of its hash: a tag, and four bits more above the number of
// its block. Of these two to four differ within a leaf, by its depth: so one candidate in 1,000
// to 4,000 is false instead of one in 250, and a false one costs a cache miss.
type mark struct {
	tag  uint8
	more uint32
}

// tagOf returns a hash's tag.
func tagOf(m uint64) uint8 {
	if t := uint8(m); t > 0 {
		return t
	}
	return 1
}

// mark returns the mark of a hash in the leaf. The four bits are of those that pick leaves,
// from the leaf's window on: what a split needs of an entry is mostly in its slot.
func (l *leaf) mark(m uint64) mark {
	return mark{tagOf(m), uint32(m<<(l.window&63)>>60) << blockBits}
}

// slot is what stands for a block of that mark.
func (k mark) slot(b uint32) uint32 { return k.more | b }

// overflowed reports whether entries with tags of t's class, one of eight, may
// stand elsewhere.
func (c *chunk) overflowed(t uint8) bool { return c.over>>(t&7*2)&3 != 0 }

// overflow counts one more entry that stands k steps away; the count of a
// class sticks at 3 until it is made anew (directory.recount).
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

// sticks reports whether the count of t's class does.
func (c *chunk) sticks(t uint8) bool { return c.over>>(t&7*2)&3 == 3 }

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

// lacks reports whether the chunk shows that it does not have a hash of this mark.
func (c *chunk) lacks(of mark) bool {
	for k := c.match(of.tag); k != 0; k &= k - 1 {
		if s := slotAt(k); s < chunkSlots && c.blk[s]>>blockBits == of.more>>blockBits && c.blk[s] != 0 {
			return false
		}
	}
	return true
}

// block returns the slot of the block's entry, which has this mark, or -1.
func (c *chunk) block(of mark, b uint32) int {
	slot := of.slot(b)
	for k := c.match(of.tag); k != 0; k &= k - 1 {
		if s := slotAt(k); s < chunkSlots && c.blk[s] == slot {
			return s
		}
	}
	return -1
}
