package core

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// A directory maps engine hashes to block numbers of an arena, one entry per
// block. It stores no hashes: an entry is a tag byte and a block number, and a
// candidate is checked against the name in the arena.
//
// It is an extendible hash table: the top bits of the hash pick a leaf through
// the top table, the next a 64-byte chunk in it (one cache line: 12 tags, how
// many entries overflowed and how far, 12 block numbers; 5.3 bytes an entry).
// A full leaf splits, so no operation moves more than about 2,300 entries: the
// writer never stops for long. Only the writer uses it.
type directory struct {
	top    []ref // 1<<depth entries; a leaf of depth d stands in 1<<(depth-d) of them
	depth  uint8
	count  int
	leaves int
	gen    uint32 // changes when leaves do: what a probe holds is then out of date
	arena  *arena
	pages  *pages
	spill  map[uint64]uint32 // entries of full leaves that cannot split (see grow)
	blocks []uint32          // scratch of a rebuild
	names  []uint64
}

// ref is a place of a leaf in the top table.
type ref struct {
	page *page
	leaf *leaf
}

// leaf is a part of the table that splits and merges as one.
type leaf struct {
	n       uint32
	low     uint32 // entries below which it may be merged
	spilled uint32
	depth   uint8
}

const (
	chunkSlots = 12
	pageSlots  = pageChunks * chunkSlots
	leafHigh   = pageSlots * 3 / 4 // entries at which a leaf splits
	leafLow    = pageSlots / 5
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
	allSlots = 1<<chunkSlots - 1
	farthest = 15 // a reach that means anywhere in the leaf
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

const (
	blockBits = 28 // of a block number
	blockMask = 1<<blockBits - 1
)

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

// mix spreads an engine hash: some engines' hashes are small integers.
func mix(h uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	return hi ^ lo
}

// tagOf returns the hash's tag.
func tagOf(m uint64) uint8 { return uint8(m) }

func (d *directory) refAt(m uint64) *ref { return &d.top[m>>1>>((63-d.depth)&63)] }

// home returns the home chunk's number: hash bits below those that pick leaves.
func home(m uint64) uint32 { return uint32(m>>32) % pageChunks }

// chunk returns a chunk by number. It does so without the check for nil that
// indexing the page would bring: that check reads the page's first line, which
// is one more cache miss.
func (r *ref) chunk(i uint32) *chunk {
	return (*chunk)(unsafe.Add(unsafe.Pointer(r.page), i%pageChunks*uint32(unsafe.Sizeof(chunk{}))))
}

// away returns the number of the k-th chunk to try for entries whose home is
// full, k ≥ 1: first the other half of a pair of lines, which the processor
// mostly has loaded along with the home, then those after it.
func away(home, k uint32) uint32 {
	if k == 1 {
		return home ^ 1
	}
	return (home&^1 + k) % pageChunks
}

// A probe is where up to probeNames names belong. Making it asks for their home
// chunks, so that the cache misses of a batch overlap with one another and with
// the work before them: a random line costs 125–170 ns alone and 5–16 ns in a
// group.
type probe struct {
	at    [probeNames]aim
	names [probeNames]uint64
	n     int
	gen   uint32
}

// of reports whether the probe was made of names, or of names and more.
func (p *probe) of(names []uint64) bool {
	return len(names) <= p.n && equalWords(names, p.names[:len(names)])
}

type aim struct {
	home  *chunk
	leaf  *leaf
	mixed uint64
}

const probeNames = 32

func (d *directory) locate(p *probe, names []uint64) {
	p.gen = d.gen
	p.n = copy(p.names[:], names)
	if len(d.top) == 0 {
		p.gen--
		return
	}
	names = p.names[:p.n]
	top, shift := d.top, (63-d.depth)&63
	for i, e := range names {
		m := mix(e)
		r := &top[m>>1>>shift]
		p.at[i] = aim{r.chunk(home(m)), r.leaf, m}
	}
	prefetch(&p.at[0], len(names))
}

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

// lacks reports whether the chunk shows that it does not have the name: no tag
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

// named returns the block of an entry of this name in the chunk.
func (d *directory) named(c *chunk, m, name uint64) (uint32, bool) {
	t, more := tagOf(m), slotOf(m, 0)
	for k := c.matches(t); k != 0; k &= k - 1 {
		s := bits.TrailingZeros16(k) % chunkSlots
		b := c.blk[s] ^ more
		if b <= blockMask && c.tags[s] == t && d.arena.at(b) == name {
			return b, true
		}
	}
	return 0, false
}

// insertAll enters the blocks under the names, which the probe was made of,
// and returns how many it took: it stops before a name that the directory may
// have, or whose leaf must grow first.
func (d *directory) insertAll(p *probe, names []uint64, blocks *[probeNames]uint32) int {
	if p.gen != d.gen {
		return 0
	}
	for i, e := range names[:min(len(names), probeNames)] {
		a := &p.at[i]
		c, l := a.home, a.leaf
		if l.n >= leafHigh {
			d.count += i
			return i
		}
		t := tagOf(a.mixed)
		if x, y := c.match(t); x|y|uint64(l.spilled) != 0 || c.overflowed(t) {
			if !d.absent(c, a.mixed, e) {
				d.count += i
				return i
			}
		}
		if s := c.free(); s < chunkSlots {
			c.set(s, t, slotOf(a.mixed, blocks[i]))
			l.n++
		} else {
			d.refAt(a.mixed).put(a.mixed, blocks[i])
		}
	}
	d.count += len(names)
	return len(names)
}

// absent reports whether the directory does not have the name, whose home is c.
func (d *directory) absent(c *chunk, m, name uint64) bool {
	r := d.refAt(m)
	if r.leaf.spilled == 0 && c.lacks(m) {
		if !c.overflowed(tagOf(m)) || c.reach() == 1 && r.chunk(away(home(m), 1)).lacks(m) {
			return true
		}
	}
	_, taken := d.look(r, m, name)
	return !taken
}

// removeAll takes out the entries of the blocks, whose names the probe has from
// its i-th on, and returns how many it took: it stops before one whose leaf
// must shrink.
func (d *directory) removeAll(p *probe, from int, blocks []uint32) int {
	if p.gen != d.gen {
		return 0
	}
	n := len(blocks)
	for i, a := range p.at[from : from+n] {
		if a.leaf.n <= a.leaf.low {
			d.count -= i
			return i
		}
		if s := a.home.block(tagOf(a.mixed), slotOf(a.mixed, blocks[i])); s >= 0 {
			a.home.drop(s)
			a.leaf.n--
		} else if !d.refAt(a.mixed).take(a.mixed, blocks[i]) {
			d.count -= i
			return i
		}
	}
	if d.count -= n; d.count == 0 {
		d.clear()
	}
	return n
}

// find returns the block that holds the name. With a name entered for several
// blocks it is the entered one; the others are Radix.dups.
func (d *directory) find(name uint64) (uint32, bool) {
	if len(d.top) == 0 {
		return 0, false
	}
	m := mix(name)
	return d.look(d.refAt(m), m, name)
}

func (d *directory) look(r *ref, m, name uint64) (uint32, bool) {
	at := home(m)
	c := r.chunk(at)
	if b, ok := d.named(c, m, name); ok {
		return b, true
	}
	if c.overflowed(tagOf(m)) {
		for k := uint32(1); k <= c.reach(); k++ {
			if b, ok := d.named(r.chunk(away(at, k)), m, name); ok {
				return b, true
			}
		}
	}
	if r.leaf.spilled != 0 {
		b, ok := d.spill[name]
		return b, ok
	}
	return 0, false
}

// insert enters the block under its name, which must not be entered yet.
func (d *directory) insert(name uint64, b uint32) {
	if len(d.top) == 0 {
		d.top = []ref{d.newRef(0)}
	}
	m := mix(name)
	r := d.refAt(m)
	for r.leaf.n >= leafHigh {
		if !d.grow(m) {
			if d.spill == nil {
				d.spill = make(map[uint64]uint32)
			}
			d.spill[name] = b
			r.leaf.spilled++
			d.count++
			return
		}
		r = d.refAt(m)
	}
	r.put(m, b)
	d.count++
}

func (d *directory) newRef(depth uint8) ref {
	d.leaves++
	d.gen++
	r := ref{d.pages.get(), &leaf{depth: depth}}
	if depth > 0 {
		r.leaf.low = leafLow
	}
	return r
}

func (d *directory) freeRef(r ref) {
	d.leaves--
	d.pages.put(r.page)
}

// put places an entry.
func (r *ref) put(m uint64, b uint32) {
	t := tagOf(m)
	at := home(m)
	first := r.chunk(at)
	r.leaf.n++
	c := first
	for k := uint32(0); ; {
		if s := c.free(); s < chunkSlots {
			c.set(s, t, slotOf(m, b))
			if k > 0 {
				first.overflow(t, k)
			}
			return
		}
		k++
		c = r.chunk(away(at, k))
	}
}

// slot finds the entry of exactly this block: its chunk, slot, whether that is
// its home, and the home chunk.
func (r *ref) slot(m uint64, b uint32) (c *chunk, s int, moved bool, first *chunk) {
	t := tagOf(m)
	at := home(m)
	first = r.chunk(at)
	c = first
	for k := uint32(0); ; {
		if s = c.block(t, slotOf(m, b)); s >= 0 {
			return c, s, k > 0, first
		}
		if k++; k > first.reach() {
			return nil, 0, false, first
		}
		c = r.chunk(away(at, k))
	}
}

// take takes the entry of the block out of the leaf. It reports false if the
// leaf does not have it.
func (r *ref) take(m uint64, b uint32) bool {
	c, s, moved, first := r.slot(m, b)
	if c == nil {
		return false
	}
	c.drop(s)
	r.leaf.n--
	if moved {
		first.underflow(tagOf(m))
	}
	return true
}

// replace makes the entry of block b name block nb instead. It reports false
// if block b is not entered.
func (d *directory) replace(name uint64, b, nb uint32) bool {
	if len(d.top) == 0 {
		return false
	}
	m := mix(name)
	r := d.refAt(m)
	if c, s, _, _ := r.slot(m, b); c != nil {
		c.blk[s] = slotOf(m, nb)
		return true
	}
	if got, ok := d.spill[name]; ok && got == b {
		d.spill[name] = nb
		return true
	}
	return false
}

// remove takes the entry of block b out.
func (d *directory) remove(name uint64, b uint32) {
	if len(d.top) == 0 {
		return
	}
	m := mix(name)
	r := d.refAt(m)
	l := r.leaf
	if r.take(m, b) {
		d.count--
	} else if got, ok := d.spill[name]; ok && got == b {
		delete(d.spill, name)
		l.spilled--
		d.count--
	}
	if d.count == 0 {
		d.clear()
	} else if l.n < l.low {
		d.shrink(m)
	}
}

// clear gives all memory back.
func (d *directory) clear() {
	var last *leaf
	for _, r := range d.top {
		if r.leaf != last {
			last = r.leaf
			d.freeRef(r)
		}
	}
	*d = directory{arena: d.arena, pages: d.pages, gen: d.gen + 1}
}

// gather lists the entries of the leaves, but for spilled ones.
func (d *directory) gather(refs ...ref) {
	d.blocks = d.blocks[:0]
	for _, r := range refs {
		for i := range r.page {
			c := &r.page[i]
			for u := c.used & allSlots; u != 0; u &= u - 1 {
				d.blocks = append(d.blocks, c.blk[bits.TrailingZeros16(u)%chunkSlots]&blockMask)
			}
		}
	}
	// The names first, so that their cache misses overlap.
	d.names = d.names[:0]
	for _, b := range d.blocks {
		d.names = append(d.names, d.arena.at(b))
	}
}

// build makes leaves of the gathered entries, and puts them into their places in
// the top table: one for the prefix or, if split, one for each of the two that
// are one bit longer.
func (d *directory) build(depth uint8, prefix uint64, split bool) {
	var made [2]ref
	n := uint64(1)
	if split {
		n = 2
		depth++
		prefix *= 2
	}
	for i := range n {
		made[i] = d.newRef(depth)
	}
	shift := (63 - depth) & 63
	for i, e := range d.names {
		m := mix(e)
		r := &made[m>>1>>shift&(n-1)]
		if c := r.chunk(home(m)); c.free() < chunkSlots {
			c.set(c.free(), tagOf(m), slotOf(m, d.blocks[i]))
			r.leaf.n++
		} else {
			r.put(m, d.blocks[i])
		}
	}
	for e := range d.spill {
		if m := mix(e); m>>1>>shift&^(n-1) == prefix {
			made[m>>1>>shift&(n-1)].leaf.spilled++
		}
	}
	span := uint64(1) << (d.depth - depth)
	for i := range n * span {
		d.top[prefix*span+i] = made[i/span]
	}
}

// grow splits the leaf of m. Hashes chosen to share their leading bits must not
// double the top table for ever: then it reports false.
func (d *directory) grow(m uint64) bool {
	r := *d.refAt(m)
	l := r.leaf
	if l.depth == d.depth {
		if len(d.top) > 64+d.count/64 {
			return false
		}
		nt := make([]ref, 2*len(d.top))
		for i, o := range d.top {
			nt[2*i], nt[2*i+1] = o, o
		}
		d.top = nt
		d.depth++
	}
	prefix := m >> 1 >> ((63 - l.depth) & 63)
	d.gather(r)
	d.build(l.depth, prefix, true)
	d.freeRef(r)
	return true
}

// shrink joins the leaf of m with its buddy, if the two fit well into one.
func (d *directory) shrink(m uint64) {
	r := *d.refAt(m)
	l := r.leaf
	prefix := m >> 1 >> ((63 - l.depth) & 63)
	buddy := d.top[(prefix^1)<<(d.depth-l.depth)]
	if buddy.leaf.depth != l.depth || (l.n+buddy.leaf.n)*5 > leafHigh*4 {
		l.low = l.n / 2 // look again then
		return
	}
	d.gather(r, buddy)
	d.build(l.depth-1, prefix>>1, false)
	d.freeRef(r)
	d.freeRef(buddy)
	d.shrinkTop()
}

// shrinkTop halves the top table while no leaf needs its full depth.
func (d *directory) shrinkTop() {
	for d.depth > 0 {
		for i := range d.top {
			if d.top[i].leaf.depth == d.depth {
				return
			}
		}
		nt := make([]ref, len(d.top)/2)
		for i := range nt {
			nt[i] = d.top[2*i]
		}
		d.top = nt
		d.depth--
		d.gen++
	}
}

const (
	refBytes  = 16
	leafBytes = 16
)

func (d *directory) bytes() int64 {
	return d.pages.bytes() + int64(d.leaves)*leafBytes + int64(cap(d.top))*refBytes +
		int64(cap(d.blocks))*4 + int64(cap(d.names))*8 + int64(len(d.spill))*32
}
