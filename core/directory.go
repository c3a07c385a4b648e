package core

import (
	"encoding/binary"
	"math/bits"
)

// A directory maps engine hashes to block numbers of an arena, one entry per
// block. It stores no hashes: an entry is a tag byte and a block number, and a
// candidate is checked against the name in the arena.
//
// It is an extendible hash table: the top bits of the hash pick a leaf through
// the top table, the rest a 64-byte chunk in it (one cache line: 12 tags, 4
// overflow counts, 12 block numbers; 5.3 bytes an entry). A leaf grows page by
// page to leafMax and then splits, so no operation moves more than about 2,700
// entries: the writer never stops for long. Only the writer uses it.
type directory struct {
	top    []*leaf // 1<<depth entries; a leaf of depth d stands in 1<<(depth-d) of them
	depth  uint8
	count  int
	leaves int
	gen    uint32 // changes when leaves do: what a probe holds is then out of date
	arena  *arena
	pages  *pages
	blocks []uint32 // scratch of a rebuild
	names  []uint64
}

// leaf is a part of the table that grows, splits and merges as one.
type leaf struct {
	pages     []*page
	n         uint32
	low, high uint32 // entries at which it shrinks and grows
	probe     uint32 // longest distance of an entry from its home chunk
	depth     uint8
}

const chunkSlots = 12

// chunk is one cache line of entries. over[t&3] counts the entries with tags
// of class t&3 whose home is here but that stand in a later chunk; it sticks
// at 255. A tag of 0 is a free slot, so nothing needs tombstones.
type chunk struct {
	tags [chunkSlots]uint8
	over [4]uint8
	blk  [chunkSlots]uint32
}

const (
	leafMax   = 4                       // pages after which a leaf splits
	pageSlots = pageChunks * chunkSlots // entries of a page
)

// mix spreads an engine hash: some engines' hashes are small integers.
func mix(h uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return (hi ^ lo) * 0xFF51AFD7ED558CCD
}

// tagOf returns the hash's tag, 1 … 255: 0 means a free slot.
func tagOf(m uint64) uint8 { return uint8(m) | uint8((uint32(uint8(m))-1)>>31) }

func (d *directory) leafAt(m uint64) *leaf { return d.top[m>>1>>((63-d.depth)&63)] }

// home returns the home chunk's number: hash bits below those that pick the
// leaf.
func (l *leaf) home(m uint64) int {
	return int(uint64(uint32(m>>16)) * uint64(len(l.pages)*pageChunks) >> 32)
}

func (l *leaf) chunk(i int) *chunk { return &l.pages[i/pageChunks][i%pageChunks] }

// next returns the chunk number after i.
func (l *leaf) next(i int) int {
	if i++; i == len(l.pages)*pageChunks {
		return 0
	}
	return i
}

// A probe is where up to segBlocks names belong. Making it loads their home
// chunks, independently of one another, so that the cache misses of a batch
// overlap instead of queueing: a random line costs 125–170 ns alone and
// 5–16 ns in a group.
type probe struct {
	mixed [segBlocks]uint64
	leaf  [segBlocks]*leaf
	home  [segBlocks]*chunk
	gen   uint32
	sink  uint8
}

func (d *directory) locate(p *probe, names []uint64) {
	p.gen = d.gen
	if len(d.top) == 0 {
		p.gen--
		return
	}
	for i, e := range names {
		m := mix(e)
		l := d.leafAt(m)
		p.mixed[i], p.leaf[i], p.home[i] = m, l, l.chunk(l.home(m))
	}
	s := uint8(0)
	for _, c := range p.home[:len(names)] {
		s += c.over[0]
	}
	p.sink = s
}

// tagMatches returns a mask with the top bit of each byte set where tags may
// equal t; the bits above a true match may lie, so check (a free slot's block
// number may be of memory that is gone). The lowest bit never lies.
func (c *chunk) tagMatches(t uint8) (lo uint64, hi uint32) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	a := binary.LittleEndian.Uint64(c.tags[:8]) ^ ones*uint64(t)
	b := binary.LittleEndian.Uint32(c.tags[8:]) ^ ones&0xFFFFFFFF*uint32(t)
	return (a - ones) &^ a & tops, (b - ones&0xFFFFFFFF) &^ b & (tops & 0xFFFFFFFF)
}

// insertAt enters block b under the probe's i-th name if that takes no more
// than its home chunk: the name is not in the directory, there is room, and
// the leaf need not grow. It reports false, having done nothing, otherwise.
func (d *directory) insertAt(p *probe, i int, b uint32) bool {
	if p.gen != d.gen {
		return false
	}
	c, l := p.home[i], p.leaf[i]
	t := tagOf(p.mixed[i])
	lo, hi := c.tagMatches(t)
	if lo|uint64(hi)|uint64(c.over[t&3]) != 0 || l.n >= l.high {
		return false
	}
	lo, hi = c.tagMatches(0)
	s := 0
	switch {
	case lo != 0:
		s = bits.TrailingZeros64(lo) >> 3
	case hi != 0:
		s = 8 + bits.TrailingZeros32(hi)>>3
	default:
		return false
	}
	c.tags[s], c.blk[s] = t, b
	l.n++
	d.count++
	return true
}

// removeAt takes out the entry of block b under the probe's i-th name if it is
// in its home chunk and the leaf need not shrink. It reports false, having
// done nothing, otherwise.
func (d *directory) removeAt(p *probe, i int, b uint32) bool {
	c, l := p.home[i], p.leaf[i]
	if p.gen != d.gen || l.n <= l.low {
		return false
	}
	t := tagOf(p.mixed[i])
	lo, hi := c.tagMatches(t)
	for ; lo != 0; lo &= lo - 1 {
		if s := bits.TrailingZeros64(lo) >> 3; c.blk[s] == b && c.tags[s] == t {
			c.tags[s] = 0
			l.n--
			d.count--
			return true
		}
	}
	for ; hi != 0; hi &= hi - 1 {
		if s := 8 + bits.TrailingZeros32(hi)>>3; c.blk[s] == b && c.tags[s] == t {
			c.tags[s] = 0
			l.n--
			d.count--
			return true
		}
	}
	return false
}

// find returns the block that holds the name. With a name entered for several
// blocks it is the entered one; the others are Radix.dups.
func (d *directory) find(name uint64) (uint32, bool) {
	if len(d.top) == 0 {
		return 0, false
	}
	m := mix(name)
	l := d.leafAt(m)
	t := tagOf(m)
	at := l.home(m)
	c := l.chunk(at)
	if b, ok := d.inChunk(c, t, name); ok {
		return b, true
	}
	if c.over[t&3] == 0 {
		return 0, false
	}
	for i := uint32(1); i <= l.probe; i++ {
		at = l.next(at)
		if b, ok := d.inChunk(l.chunk(at), t, name); ok {
			return b, true
		}
	}
	return 0, false
}

func (d *directory) inChunk(c *chunk, t uint8, name uint64) (uint32, bool) {
	lo, hi := c.tagMatches(t)
	for ; lo != 0; lo &= lo - 1 {
		s := bits.TrailingZeros64(lo) >> 3
		if b := c.blk[s]; c.tags[s] == t && d.arena.at(b) == name {
			return b, true
		}
	}
	for ; hi != 0; hi &= hi - 1 {
		s := 8 + bits.TrailingZeros32(hi)>>3
		if b := c.blk[s]; c.tags[s] == t && d.arena.at(b) == name {
			return b, true
		}
	}
	return 0, false
}

// insert enters the block under its name, which must not be entered yet.
func (d *directory) insert(name uint64, b uint32) {
	if len(d.top) == 0 {
		d.top = []*leaf{d.newLeaf(1, 0)}
	}
	m := mix(name)
	l := d.leafAt(m)
	for l.n >= l.high {
		d.grow(m, l)
		l = d.leafAt(m)
	}
	l.put(m, b)
	d.count++
}

func (d *directory) newLeaf(size int, depth uint8) *leaf {
	d.leaves++
	d.gen++
	l := &leaf{pages: make([]*page, size), depth: depth}
	for i := range l.pages {
		l.pages[i] = d.pages.get()
	}
	l.high = uint32(size * pageSlots * 7 / 8)
	l.low = uint32(size * pageSlots / 4)
	if size == 1 && depth == 0 {
		l.low = 0
	}
	return l
}

func (d *directory) freeLeaf(l *leaf) {
	d.leaves--
	for _, g := range l.pages {
		d.pages.put(g)
	}
	l.pages = nil
}

// put places an entry.
func (l *leaf) put(m uint64, b uint32) {
	t := tagOf(m)
	at := l.home(m)
	first := l.chunk(at)
	l.n++
	for dist := uint32(0); ; dist++ {
		c := l.chunk(at)
		lo, hi := c.tagMatches(0)
		s := -1
		if lo != 0 {
			s = bits.TrailingZeros64(lo) >> 3
		} else if hi != 0 {
			s = 8 + bits.TrailingZeros32(hi)>>3
		}
		if s >= 0 {
			c.tags[s], c.blk[s] = t, b
			if dist > 0 && first.over[t&3] < 255 {
				first.over[t&3]++
			}
			l.probe = max(l.probe, dist)
			return
		}
		at = l.next(at)
	}
}

// slot finds the entry of exactly this block: its chunk, slot, distance from
// home and the home chunk.
func (l *leaf) slot(m uint64, b uint32) (c *chunk, s int, dist uint32, first *chunk) {
	t := tagOf(m)
	at := l.home(m)
	first = l.chunk(at)
	for dist = 0; dist <= l.probe; dist++ {
		c = l.chunk(at)
		for s = range c.blk {
			if c.blk[s] == b && c.tags[s] == t {
				return c, s, dist, first
			}
		}
		at = l.next(at)
	}
	return nil, 0, 0, nil
}

// replace makes the entry of block b name block nb instead.
func (d *directory) replace(name uint64, b, nb uint32) bool {
	if len(d.top) == 0 {
		return false
	}
	m := mix(name)
	c, s, _, _ := d.leafAt(m).slot(m, b)
	if c == nil {
		return false
	}
	c.blk[s] = nb
	return true
}

// remove takes the entry of block b out.
func (d *directory) remove(name uint64, b uint32) bool {
	if len(d.top) == 0 {
		return false
	}
	m := mix(name)
	l := d.leafAt(m)
	c, s, dist, first := l.slot(m, b)
	if c == nil {
		return false
	}
	t := c.tags[s]
	c.tags[s] = 0
	if dist > 0 && first.over[t&3] < 255 {
		first.over[t&3]--
	}
	d.count--
	if l.n--; d.count == 0 {
		for i, o := range d.top {
			if i == 0 || o != d.top[i-1] {
				d.freeLeaf(o)
			}
		}
		*d = directory{arena: d.arena, pages: d.pages, gen: d.gen + 1}
	} else if l.n < l.low {
		d.shrink(m, l)
	}
	return true
}

// gather lists the blocks of the leaves.
func (d *directory) gather(leaves ...*leaf) {
	d.blocks = d.blocks[:0]
	for _, l := range leaves {
		for _, g := range l.pages {
			for i := range g {
				for s, t := range g[i].tags {
					if t != 0 {
						d.blocks = append(d.blocks, g[i].blk[s])
					}
				}
			}
		}
	}
	// The names first, so that their cache misses overlap.
	d.names = d.names[:0]
	for _, b := range d.blocks {
		d.names = append(d.names, d.arena.at(b))
	}
}

// build makes a leaf of the gathered blocks whose hash begins with prefix, and
// puts it into its places in the top table.
func (d *directory) build(size int, depth uint8, prefix uint64) {
	l := d.newLeaf(size, depth)
	for i, e := range d.names {
		if m := mix(e); m>>1>>((63-depth)&63) == prefix {
			l.put(m, d.blocks[i])
		}
	}
	span := uint64(1) << (d.depth - depth)
	for i := prefix * span; i < (prefix+1)*span; i++ {
		d.top[i] = l
	}
}

func (d *directory) grow(m uint64, l *leaf) {
	prefix := m >> 1 >> ((63 - l.depth) & 63)
	d.gather(l)
	// Hashes chosen to share their leading bits must not double the top table
	// for ever: their leaf grows instead.
	crowded := l.depth == d.depth && len(d.top) > 64+d.count/64
	switch {
	case len(l.pages) < leafMax:
		d.build(len(l.pages)+1, l.depth, prefix)
	case crowded:
		d.build(2*len(l.pages), l.depth, prefix)
	default:
		if l.depth == d.depth {
			nt := make([]*leaf, 2*len(d.top))
			for i, o := range d.top {
				nt[2*i], nt[2*i+1] = o, o
			}
			d.top = nt
			d.depth++
		}
		d.build(leafMax/2+1, l.depth+1, 2*prefix)
		d.build(leafMax/2+1, l.depth+1, 2*prefix+1)
	}
	d.freeLeaf(l)
}

// pagesFor returns how many pages make a leaf of n entries two thirds full.
func pagesFor(n int) int { return max(1, (n*3/2+pageSlots-1)/pageSlots) }

// shrink makes the leaf smaller or joins it with its buddy.
func (d *directory) shrink(m uint64, l *leaf) {
	prefix := m >> 1 >> ((63 - l.depth) & 63)
	if l.depth > 0 {
		buddy := d.top[(prefix^1)<<(d.depth-l.depth)]
		if n := int(l.n + buddy.n); buddy.depth == l.depth && pagesFor(n) < leafMax {
			d.gather(l, buddy)
			d.build(pagesFor(n), l.depth-1, prefix>>1)
			d.freeLeaf(l)
			d.freeLeaf(buddy)
			d.shrinkTop()
			return
		}
	}
	if size := pagesFor(int(l.n)); size < len(l.pages) {
		d.gather(l)
		d.build(size, l.depth, prefix)
		d.freeLeaf(l)
		return
	}
	l.low = l.n / 2 // nothing to gain yet
}

// shrinkTop halves the top table while no leaf needs its full depth.
func (d *directory) shrinkTop() {
	for d.depth > 0 {
		for _, l := range d.top {
			if l.depth == d.depth {
				return
			}
		}
		nt := make([]*leaf, len(d.top)/2)
		for i := range nt {
			nt[i] = d.top[2*i]
		}
		d.top = nt
		d.depth--
	}
}

func (d *directory) bytes() int64 {
	return d.pages.bytes() + int64(d.leaves)*(64+32) + int64(cap(d.top))*8 + int64(cap(d.blocks))*4 + int64(cap(d.names))*8
}
