package core

import "math/bits"

// A directory maps engine hashes to block numbers of an arena, one entry per
// block. It stores no hashes: an entry is a tag byte and a block number, and a
// candidate is checked against the name in the arena.
//
// It is an extendible hash table: the top bits of the hash pick a leaf through
// the top table, the rest a 64-byte chunk in it (one cache line: 12 tags, 4
// overflow counts, 12 block numbers; 5.3 bytes an entry). A leaf grows from 64
// to 256 chunks by halves and then splits, so no operation moves more than
// about 2,700 entries: the writer never stops for long. Only the writer uses
// it.
type directory struct {
	top    []leaf // 1<<depth entries; a leaf of depth d stands in 1<<(depth-d) of them
	depth  uint8
	count  int
	chunks int // in all leaves, for accounting
	arena  *arena
	sink   uint8    // keeps touch's loads alive
	tmp    []uint32 // scratch of a rebuild
}

// leaf is a part of the table that grows, splits and merges as one. Its copies
// in the top table are kept equal.
type leaf struct {
	chunks []chunk
	depth  uint8
	probe  uint32 // longest distance of an entry from its home chunk
	n      uint32
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

// leafSizes are the numbers of chunks a leaf may have.
var leafSizes = [...]int{1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256}

const leafMax = 256

// mix spreads an engine hash: some engines' hashes are small integers.
func mix(h uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return (hi ^ lo) * 0xFF51AFD7ED558CCD
}

func tagOf(m uint64) uint8 {
	t := uint8(m)
	if t == 0 {
		t = 1
	}
	return t
}

// leafAt returns the leaf of a mixed hash.
func (d *directory) leafAt(m uint64) *leaf { return &d.top[m>>1>>(63-d.depth)] }

// home returns the home chunk: hash bits below those that pick the leaf.
func home(m uint64, chunks int) int {
	return int(uint64(uint32(m>>16)) * uint64(chunks) >> 32)
}

// touch loads the home chunk of each name, independently of one another, so
// that the cache misses of a batch overlap instead of queueing: a random line
// costs 125–170 ns alone and 5–16 ns in a group.
func (d *directory) touch(names []uint64) {
	if len(d.top) == 0 {
		return
	}
	var s uint8
	for _, e := range names {
		m := mix(e)
		l := d.leafAt(m)
		s += l.chunks[home(m, len(l.chunks))].over[0]
	}
	d.sink += s
}

// matches returns a mask with the top bit of each byte set where tags may
// equal t; the bits above a true match may lie, so check (a free slot's block
// number may be of memory that is gone).
func matches(tags *[chunkSlots]uint8, t uint8) (lo uint64, hi uint32) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	a := uint64(tags[0]) | uint64(tags[1])<<8 | uint64(tags[2])<<16 | uint64(tags[3])<<24 |
		uint64(tags[4])<<32 | uint64(tags[5])<<40 | uint64(tags[6])<<48 | uint64(tags[7])<<56
	b := uint32(tags[8]) | uint32(tags[9])<<8 | uint32(tags[10])<<16 | uint32(tags[11])<<24
	a ^= ones * uint64(t)
	b ^= uint32(ones&0xFFFFFFFF) * uint32(t)
	return (a - ones) &^ a & tops, (b - uint32(ones&0xFFFFFFFF)) &^ b & (tops & 0xFFFFFFFF)
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
	at := home(m, len(l.chunks))
	c := &l.chunks[at]
	if b, ok := d.inChunk(c, t, name); ok {
		return b, true
	}
	if c.over[t&3] == 0 {
		return 0, false
	}
	for i := 1; i <= int(l.probe); i++ {
		if at++; at == len(l.chunks) {
			at = 0
		}
		if b, ok := d.inChunk(&l.chunks[at], t, name); ok {
			return b, true
		}
	}
	return 0, false
}

func (d *directory) inChunk(c *chunk, t uint8, name uint64) (uint32, bool) {
	lo, hi := matches(&c.tags, t)
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
		d.top = []leaf{{chunks: make([]chunk, 1)}}
		d.chunks = 1
	}
	m := mix(name)
	l := d.leafAt(m)
	for int(l.n)*8 >= len(l.chunks)*chunkSlots*7 {
		d.grow(m)
		l = d.leafAt(m)
	}
	probe := l.put(m, b)
	d.count++
	d.update(m, func(l *leaf) { l.n++; l.probe = max(l.probe, probe) })
}

// put places an entry and returns its distance from home.
func (l *leaf) put(m uint64, b uint32) uint32 {
	t := tagOf(m)
	at := home(m, len(l.chunks))
	first := &l.chunks[at]
	for dist := uint32(0); ; dist++ {
		c := &l.chunks[at]
		lo, hi := matches(&c.tags, 0)
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
			return dist
		}
		if at++; at == len(l.chunks) {
			at = 0
		}
	}
}

// update applies f to every copy of the leaf in the top table.
func (d *directory) update(m uint64, f func(*leaf)) {
	l := d.leafAt(m)
	span := 1 << (d.depth - l.depth)
	if span == 1 {
		f(l)
		return
	}
	i := int(m>>1>>(63-d.depth)) &^ (span - 1)
	for j := i; j < i+span; j++ {
		f(&d.top[j])
	}
}

// slot finds the entry of exactly this block: its chunk, slot, distance from
// home and the home chunk.
func (l *leaf) slot(m uint64, b uint32) (c *chunk, s, dist int, first *chunk) {
	t := tagOf(m)
	at := home(m, len(l.chunks))
	first = &l.chunks[at]
	for dist = 0; dist <= int(l.probe); dist++ {
		c = &l.chunks[at]
		for s = range c.blk {
			if c.blk[s] == b && c.tags[s] == t {
				return c, s, dist, first
			}
		}
		if at++; at == len(l.chunks) {
			at = 0
		}
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
	d.update(m, func(l *leaf) { l.n-- })
	if d.count == 0 {
		d.top, d.depth, d.chunks = nil, 0, 0
		return true
	}
	if l = d.leafAt(m); int(l.n)*4 < len(l.chunks)*chunkSlots && len(l.chunks) > 1 {
		d.shrink(m)
	}
	return true
}

// entries gathers the blocks of a leaf.
func (d *directory) entries(l *leaf) []uint32 {
	d.tmp = d.tmp[:0]
	for i := range l.chunks {
		c := &l.chunks[i]
		for s, t := range c.tags {
			if t != 0 {
				d.tmp = append(d.tmp, c.blk[s])
			}
		}
	}
	return d.tmp
}

// rebuild makes a leaf of the given size and depth with those of the blocks
// whose hash, shifted to the leaf's depth, equals prefix.
func (d *directory) rebuild(blocks []uint32, size int, depth uint8, prefix uint64) leaf {
	l := leaf{chunks: make([]chunk, size), depth: depth}
	for _, b := range blocks {
		m := mix(d.arena.at(b))
		if m>>1>>(63-depth) == prefix {
			l.probe = max(l.probe, l.put(m, b))
			l.n++
		}
	}
	d.chunks += size
	return l
}

func (d *directory) grow(m uint64) {
	l := *d.leafAt(m)
	blocks := d.entries(&l)
	d.chunks -= len(l.chunks)
	if len(l.chunks) >= leafMax && d.crowded(l.depth) {
		// Hashes chosen to share their leading bits must not double the top
		// table for ever: their leaf grows instead.
		d.place(m, d.rebuild(blocks, 2*len(l.chunks), l.depth, m>>1>>(63-l.depth)))
		return
	}
	if len(l.chunks) < leafMax {
		d.place(m, d.rebuild(blocks, sizeFor(len(l.chunks)+1), l.depth, m>>1>>(63-l.depth)))
		return
	}
	if l.depth == d.depth {
		nt := make([]leaf, 2*len(d.top))
		for i, tl := range d.top {
			nt[2*i], nt[2*i+1] = tl, tl
		}
		d.top = nt
		d.depth++
	}
	left := m >> 1 >> (63 - l.depth) << 1
	depth := l.depth + 1
	for _, prefix := range [2]uint64{left, left + 1} {
		nl := d.rebuild(blocks, 192, depth, prefix)
		d.fill(nl, prefix)
	}
}

// crowded reports whether splitting a leaf of that depth would make the top
// table out of proportion to the number of entries.
func (d *directory) crowded(depth uint8) bool {
	return depth == d.depth && len(d.top) > 64+d.count/64
}

// sizeFor returns the smallest leaf size of at least n chunks.
func sizeFor(n int) int {
	for _, s := range leafSizes {
		if s >= n {
			return s
		}
	}
	return leafMax
}

// fill writes the leaf into all its places in the top table.
func (d *directory) fill(l leaf, prefix uint64) {
	span := uint64(1) << (d.depth - l.depth)
	for i := prefix * span; i < (prefix+1)*span; i++ {
		d.top[i] = l
	}
}

func (d *directory) place(m uint64, l leaf) { d.fill(l, m>>1>>(63-l.depth)) }

// shrink makes the leaf smaller or joins it with its buddy.
func (d *directory) shrink(m uint64) {
	l := *d.leafAt(m)
	prefix := m >> 1 >> (63 - l.depth)
	if l.depth > 0 {
		buddy := d.top[(prefix^1)<<(d.depth-l.depth)]
		if buddy.depth == l.depth && int(l.n+buddy.n)*2 < leafMax*chunkSlots {
			blocks := append([]uint32(nil), d.entries(&l)...)
			blocks = append(blocks, d.entries(&buddy)...)
			d.chunks -= len(l.chunks) + len(buddy.chunks)
			nl := d.rebuild(blocks, sizeFor(int(l.n+buddy.n)*3/(2*chunkSlots)+1), l.depth-1, prefix>>1)
			d.fill(nl, prefix>>1)
			d.shrinkTop()
			return
		}
	}
	if size := sizeFor(int(l.n)*3/(2*chunkSlots) + 1); size < len(l.chunks) {
		blocks := d.entries(&l)
		d.chunks -= len(l.chunks)
		d.place(m, d.rebuild(blocks, size, l.depth, prefix))
	}
}

// shrinkTop halves the top table while no leaf needs its full depth.
func (d *directory) shrinkTop() {
	for d.depth > 0 {
		for i := range d.top {
			if d.top[i].depth == d.depth {
				return
			}
		}
		nt := make([]leaf, len(d.top)/2)
		for i := range nt {
			nt[i] = d.top[2*i]
		}
		d.top = nt
		d.depth--
	}
}

func (d *directory) bytes() int64 {
	return int64(d.chunks)*64 + int64(cap(d.top))*40 + int64(cap(d.tmp))*4
}
