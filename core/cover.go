package core

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event"
)

// Coverage says how many leading blocks of a run each holder has: its held length.
// Holes do not show here: what a holder has behind its first hole cannot be
// part of a match, so readers never need it (see exception).
//
// Readers scan coverage beside the writer. What makes that right:
//
//   - Held lengths are absolute, so neither an append to the run nor a truncation
//     changes what an entry means.
//   - An entry belongs to its holder for the life of the table that it is in:
//     changing a held length is one atomic store, and a free entry is not handed to
//     another holder. So a reader sees each holder once.
//   - In a wide table a holder may move from the full set to the part set, in
//     the order cut, part bit, full bit; readers look at full first, then at
//     part without full. It never moves back within the same table.
//   - Everything else (more room, another full length) is a new table, which
//     the old readers' table does not see: their view is the moment of the
//     replacement, which lies within their call.

// entry packs a holder and its held length; 0 is a free entry.
func entry(h Holder, held uint32) uint64 { return (uint64(h)+1)<<32 | uint64(held) }

func entryOf(e uint64) (h Holder, held uint32) { return Holder(e>>32 - 1), uint32(e) }

const (
	inlineEntries = 2  // held in the body itself: most runs have one or two holders
	listMax       = 16 // more holders than that make a wide table
)

// cover is a table of held lengths: a list of entries, or wide (full != nil).
type cover struct {
	used    atomic.Uint32 // list: entries[:used] are in use
	entries []atomic.Uint64

	fullHeld uint32 // held length of every holder in full
	full     []atomic.Uint64
	part     []atomic.Uint64        // holders whose held length is in heldLens
	heldLens []atomic.Pointer[lens] // by holder, 64 together: nil where none was in part

	// The writer's: wide tables with many part holders that could be full are
	// made anew.
	members, strays int32
	pages           int32 // of heldLens
}

// lens are the held lengths of 64 holders.
type lens [64]atomic.Uint32

const lensBytes = 256

func (c *cover) lenOf(h Holder) uint32 { return c.heldLens[h>>6].Load()[h&63].Load() }

// setLen is called before the part bit is set.
func (c *cover) setLen(h Holder, held uint32) {
	p := c.heldLens[h>>6].Load()
	if p == nil {
		p = new(lens)
		c.heldLens[h>>6].Store(p)
		c.pages++
	}
	p[h&63].Store(held)
}

// Looking through the coverage of a run, and copying it, costs as much as it has
// holders, and one rank could have it done with each of its events. So blocks pay
// for it, whichever run they are in: with more than fewHolders, it is only done if
// paid for, and what can wait waits for that (see tighten).
const (
	fewHolders = 64
	paidBy     = 16 // how many holders each block that is stored or removed pays for
)

// earn notes that so many blocks were stored or removed. What is not spent is kept
// up to some looks at everyone.
func (x *Radix) earn(blocks int) {
	x.credit = min(x.credit+paidBy*blocks, 64*fewHolders+2*event.NumTiers*len(x.holders))
}

// affords reports whether so many holders may be looked at.
func (x *Radix) affords(holders int) bool { return holders <= max(fewHolders, x.credit) }

// spend pays for a look at so many holders, if it affords that.
func (x *Radix) spend(holders int) bool {
	if !x.affords(holders) {
		return false
	}
	if holders > fewHolders {
		x.credit -= holders
	}
	return true
}

func (c *cover) get(h Holder) uint32 {
	if c.full == nil {
		for i := range c.entries[:c.used.Load()] {
			if e := c.entries[i].Load(); e>>32 == uint64(h)+1 {
				return uint32(e)
			}
		}
		return 0
	}
	if int(h>>6) >= len(c.full) {
		return 0
	}
	w, bit := h>>6, uint64(1)<<(h&63)
	if c.full[w].Load()&bit != 0 {
		return c.fullHeld
	}
	if c.part[w].Load()&bit != 0 {
		return c.lenOf(h)
	}
	return 0
}

// set changes h's held length in place. It reports false if the table has no room
// or should be made anew: the caller then replaces it by a new table that has
// the change.
func (c *cover) set(h Holder, held uint32) bool {
	if c.full == nil {
		n := c.used.Load()
		for i := range c.entries[:n] {
			if c.entries[i].Load()>>32 == uint64(h)+1 {
				c.entries[i].Store(entry(h, held))
				return true
			}
		}
		if held == 0 {
			return true
		}
		if int(n) == len(c.entries) {
			return false
		}
		c.entries[n].Store(entry(h, held))
		c.used.Store(n + 1)
		return true
	}
	if int(h>>6) >= len(c.full) {
		return held == 0
	}
	w, bit := h>>6, uint64(1)<<(h&63)
	full, part := c.full[w].Load(), c.part[w].Load()
	switch {
	case part&bit != 0:
		if held == c.fullHeld && c.lenOf(h) != held {
			c.strays++
		}
		if held == 0 {
			c.part[w].Store(part &^ bit)
			c.members--
		} else {
			c.setLen(h, held)
		}
	case full&bit != 0:
		if held == c.fullHeld {
			return true
		}
		if held > 0 {
			c.setLen(h, held)
			c.part[w].Store(part | bit)
		} else {
			c.members--
		}
		c.full[w].Store(full &^ bit)
	case held == 0:
	case held == c.fullHeld:
		c.full[w].Store(full | bit)
		c.members++
	default:
		c.setLen(h, held)
		c.part[w].Store(part | bit)
		c.members++
	}
	return c.strays <= 32 || c.strays*2 < c.members
}

// each calls f for every holder with a held length above 0, until f returns false.
func (c *cover) each(f func(h Holder, held uint32) bool) {
	if c.full == nil {
		for i := range c.entries[:c.used.Load()] {
			if h, held := entryOf(c.entries[i].Load()); held > 0 && !f(h, held) {
				return
			}
		}
		return
	}
	for w := range c.full {
		full, part := c.full[w].Load(), c.part[w].Load()
		for m := full | part; m != 0; m &= m - 1 {
			b := bits.TrailingZeros64(m)
			h, held := Holder(w*64+b), c.fullHeld
			if full>>b&1 == 0 {
				held = c.lenOf(h)
			}
			if !f(h, held) {
				return
			}
		}
	}
}

// newCover makes a table of the entries, with room for more: a wide one for up to
// an eighth more holders than the index knows, so that those who come one after
// the other do not each have it made anew.
func (x *Radix) newCover(es []uint64) *cover {
	x.steps += len(es)
	if len(es) <= listMax {
		c := &cover{entries: make([]atomic.Uint64, min(max(len(es)+len(es)/2, 4), listMax))}
		for i, e := range es {
			c.entries[i].Store(e)
		}
		c.used.Store(uint32(len(es)))
		return c
	}
	top := Holder(0)
	count := make(map[uint32]int, 16)
	for _, e := range es {
		h, held := entryOf(e)
		top = max(top, h)
		count[held]++
	}
	words := (max(len(x.holders), int(top)+1) + 63) / 64
	words += words / 8
	c := &cover{
		full:     make([]atomic.Uint64, words),
		part:     make([]atomic.Uint64, words),
		heldLens: make([]atomic.Pointer[lens], words),
	}
	for held, n := range count { // the most frequent held length, the longest of equals
		if n > count[c.fullHeld] || n == count[c.fullHeld] && held > c.fullHeld {
			c.fullHeld = held
		}
	}
	for _, e := range es {
		h, held := entryOf(e)
		w, bit := h>>6, uint64(1)<<(h&63)
		if held == c.fullHeld {
			c.full[w].Store(c.full[w].Load() | bit)
		} else {
			c.setLen(h, held)
			c.part[w].Store(c.part[w].Load() | bit)
		}
		c.members++
	}
	return c
}

const coverBytes = 128

func (c *cover) bytes() int64 {
	return coverBytes + sizeClass(int64(cap(c.entries))*8) + 3*sizeClass(int64(len(c.full))*8) + int64(c.pages)*lensBytes
}
