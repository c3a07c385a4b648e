package core

import "sync/atomic"

// Coverage says how many leading blocks of a run each holder has: its cut-off.
// Holes do not show here: what a holder has behind its first hole cannot be
// part of a match, so readers never need it (see record).
//
// Readers scan coverage beside the writer. What makes that right:
//
//   - Cut-offs are absolute, so neither an append to the run nor a truncation
//     changes what an entry means.
//   - An entry belongs to its holder for the life of the table that it is in:
//     changing a cut-off is one atomic store, and a free entry is not handed to
//     another holder. So a reader sees each holder once.
//   - In a wide table a holder may move from the full set to the part set, in
//     the order cut, part bit, full bit; readers look at full first, then at
//     part without full. It never moves back within the same table.
//   - Everything else (more room, another full length) is a new table, which
//     the old readers' table does not see: their view is the moment of the
//     replacement, which lies within their call.

// entry packs a holder and its cut-off; 0 is a free entry.
func entry(h Holder, cut uint32) uint64 { return (uint64(h)+1)<<32 | uint64(cut) }

func entryOf(e uint64) (h Holder, cut uint32) { return Holder(e>>32 - 1), uint32(e) }

const (
	inlineEntries = 2  // held in the body itself: most runs have one or two holders
	listMax       = 16 // more holders than that make a wide table
)

// cover is a table of cut-offs: a list of entries, or wide (full != nil).
type cover struct {
	used    atomic.Uint32 // list: entries[:used] are in use
	entries []atomic.Uint64

	fullLen uint32 // cut-off of every holder in full
	full    []atomic.Uint64
	part    []atomic.Uint64 // holders whose cut-off is in cut
	cut     []atomic.Uint32 // by holder

	// The writer's: wide tables with many part holders that could be full are
	// made anew.
	members, strays int
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
	if int(h) >= len(c.cut) {
		return 0
	}
	w, bit := h>>6, uint64(1)<<(h&63)
	if c.full[w].Load()&bit != 0 {
		return c.fullLen
	}
	if c.part[w].Load()&bit != 0 {
		return c.cut[h].Load()
	}
	return 0
}

// set changes h's cut-off in place. It reports false if the table has no room
// or should be made anew: the caller then replaces it by a new table that has
// the change.
func (c *cover) set(h Holder, cut uint32) bool {
	if c.full == nil {
		n := c.used.Load()
		for i := range c.entries[:n] {
			if c.entries[i].Load()>>32 == uint64(h)+1 {
				c.entries[i].Store(entry(h, cut))
				return true
			}
		}
		if cut == 0 {
			return true
		}
		if int(n) == len(c.entries) {
			return false
		}
		c.entries[n].Store(entry(h, cut))
		c.used.Store(n + 1)
		return true
	}
	if int(h) >= len(c.cut) {
		return cut == 0
	}
	w, bit := h>>6, uint64(1)<<(h&63)
	full, part := c.full[w].Load(), c.part[w].Load()
	switch {
	case part&bit != 0:
		if cut == c.fullLen && c.cut[h].Load() != cut {
			c.strays++
		}
		if cut == 0 {
			c.part[w].Store(part &^ bit)
			c.members--
		} else {
			c.cut[h].Store(cut)
		}
	case full&bit != 0:
		if cut == c.fullLen {
			return true
		}
		if cut > 0 {
			c.cut[h].Store(cut)
			c.part[w].Store(part | bit)
		} else {
			c.members--
		}
		c.full[w].Store(full &^ bit)
	case cut == 0:
	case cut == c.fullLen:
		c.full[w].Store(full | bit)
		c.members++
	default:
		c.cut[h].Store(cut)
		c.part[w].Store(part | bit)
		c.members++
	}
	return c.strays <= 32 || c.strays*2 < c.members
}

// each calls f for every holder with a cut-off above 0, until f returns false.
func (c *cover) each(f func(h Holder, cut uint32) bool) {
	if c.full == nil {
		for i := range c.entries[:c.used.Load()] {
			if h, cut := entryOf(c.entries[i].Load()); cut > 0 && !f(h, cut) {
				return
			}
		}
		return
	}
	for w := range c.full {
		full, part := c.full[w].Load(), c.part[w].Load()
		for b, m := 0, full|part; m != 0; b, m = b+1, m>>1 {
			if m&1 == 0 {
				continue
			}
			h, cut := Holder(w*64+b), c.fullLen
			if full>>b&1 == 0 {
				cut = c.cut[h].Load()
			}
			if !f(h, cut) {
				return
			}
		}
	}
}

// newCover makes a table of the entries, with room for more; holders is the
// number of holders that the index knows.
func newCover(es []uint64, holders int) *cover {
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
		h, cut := entryOf(e)
		top = max(top, h)
		count[cut]++
	}
	words := (max(holders, int(top)+1) + 63) / 64
	c := &cover{
		full: make([]atomic.Uint64, words),
		part: make([]atomic.Uint64, words),
		cut:  make([]atomic.Uint32, words*64),
	}
	for cut, n := range count { // the most frequent cut-off, the longest of equals
		if n > count[c.fullLen] || n == count[c.fullLen] && cut > c.fullLen {
			c.fullLen = cut
		}
	}
	for _, e := range es {
		h, cut := entryOf(e)
		w, bit := h>>6, uint64(1)<<(h&63)
		if cut == c.fullLen {
			c.full[w].Store(c.full[w].Load() | bit)
		} else {
			c.cut[h].Store(cut)
			c.part[w].Store(c.part[w].Load() | bit)
		}
		c.members++
	}
	return c
}

const coverBytes = 128

func (c *cover) bytes() int64 {
	return coverBytes + sizeClass(int64(cap(c.entries))*8) + 2*sizeClass(int64(len(c.full))*8) + sizeClass(int64(len(c.cut))*4)
}
