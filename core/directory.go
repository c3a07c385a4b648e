package core

import (
	"math/bits"
	"unsafe"
)

// A directory maps engine hashes to block numbers of an arena, one entry per
// block. It stores no hashes: an entry is a tag byte and a block number, and a
// candidate is checked against the hash in the arena.
//
// It is an extendible hash table: the top bits of the hash pick a leaf through
// the top table, the next a 64-byte chunk in it (one cache line: 12 tags, which
// hold guests of other chunks, how many of its own are elsewhere and how far, 12 block
// numbers; 5.3 bytes an entry).
// A full leaf splits, so no operation moves more than about 2,300 entries: the
// writer never stops for long. Only the writer uses it.
type directory struct {
	top    []ref // 1<<depth entries; a leaf of depth d stands in 1<<(depth-d) of them
	depth  uint8
	count  int
	leaves int
	gen    uint32 // changes when leaves do: what a probe holds is then out of date
	key    hasher
	arena  *arena
	pages  *pages
	spill  map[uint64]uint32 // entries of full leaves that cannot split (see grow)
	blocks []uint32          // scratch of a rebuild
	hashes []uint64
}

// ref is the place of a leaf in the top table.
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
	window  uint8 // of the mixed hash, where the bits begin that slots have
}

const (
	pageSlots = pageChunks * chunkSlots
	leafHigh  = pageSlots * 3 / 4 // entries at which a leaf splits
	leafLow   = pageSlots / 5
)

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

// findIn returns the block of an entry of this hash in the chunk.
func (d *directory) findIn(c *chunk, of mark, hash uint64) (uint32, bool) {
	for k := c.match(of.tag); k != 0; k &= k - 1 {
		s := slotAt(k)
		if s >= chunkSlots {
			break
		}
		if b := c.blk[s] ^ of.more; b-1 < blockMask && d.arena.at(b) == hash {
			return b, true
		}
	}
	return 0, false
}

// insertAll enters the probe's blocks under the hashes, which it was made of,
// and returns how many it took: it stops before a hash that the directory may
// have, or whose leaf must grow first.
func (d *directory) insertAll(p *probe, hashes []uint64) int {
	if p.gen != d.gen {
		return 0
	}
	n := min(len(hashes), probeHashes)
	k := 0
	for {
		m, late := insertAt(p.at[k:n], p.blocks[k:n])
		for left := late; left != 0; left &= left - 1 {
			i := bits.TrailingZeros32(left)
			a := &p.at[k+i]
			if !d.absent(a.chunk(), a.mixed, hashes[k+i]) {
				d.takeBack(p, k, k+i+1, k+m, late)
				d.count += k + i
				return k + i
			}
			if c := a.chunk(); p.blocks[k+i]&3 == 0 && c.sticks(tagOf(a.mixed)) && c.free() < chunkSlots {
				d.recount(d.refAt(a.mixed), home(a.mixed))
			}
			d.refAt(a.mixed).put(a.mixed, p.blocks[k+i])
		}
		if k += m; k == n {
			break
		}
		a := &p.at[k]
		if a.leafOf().n >= leafHigh || !d.absent(a.chunk(), a.mixed, hashes[k]) {
			break
		}
		d.refAt(a.mixed).put(a.mixed, p.blocks[k])
		k++
	}
	d.count += k
	return k
}

// insertFirst is insertAll for the probe's first block, and reports whether it took it.
func (d *directory) insertFirst(p *probe, hashes []uint64) bool {
	if p.gen == d.gen {
		if n, late := insertAt(p.at[:1], p.blocks[:1]); n == 1 && late == 0 {
			d.count++
			return true
		}
	}
	return d.insertAll(p, hashes[:1]) == 1
}

// takeBack takes the probe's entries lo … hi-1 out again, but for those that are late of
// what was entered from the first on.
func (d *directory) takeBack(p *probe, first, lo, hi int, late uint32) {
	for i := lo; i < hi; i++ {
		if late>>(i-first)&1 == 0 {
			m := p.at[i].mixed
			d.refAt(m).remove(m, p.blocks[i])
		}
	}
}

// leadingAbsent returns how many of the probe's hashes from the i-th on are not in the
// directory, up to the first of which the home chunk alone does not show it.
func (d *directory) leadingAbsent(p *probe, i int) int {
	if p.gen != d.gen {
		return 0
	}
	for k := range p.at[i:p.n] {
		a := &p.at[i+k]
		of := a.leafOf().mark(a.mixed)
		if a.leafOf().spilled != 0 || a.chunk().overflowed(of.tag) || !a.chunk().lacks(of) {
			return k
		}
	}
	return p.n - i
}

// findAll notes in blocks what find returns for each of the probe's hashes, 0 where its home chunk
// does not lead to one. The cache misses of the hashes and of their segments' heads overlap as
// those of the home chunks do, where each search would wait for its own.
func (d *directory) findAll(p *probe, hashes []uint64, blocks *[probeHashes]uint32) (read uint32) {
	*blocks = [probeHashes]uint32{}
	if p.gen != d.gen {
		return 0
	}
	for i, e := range hashes[:p.n] {
		a := &p.at[i]
		b, _ := d.findIn(a.chunk(), a.leafOf().mark(a.mixed), e)
		blocks[i] = b
		read |= d.arena.head(b >> segBits).run
	}
	return read
}

// absent reports whether the directory does not have the hash, whose home is c.
func (d *directory) absent(c *chunk, m, hash uint64) bool {
	r := d.refAt(m)
	of := r.leaf.mark(m)
	if r.leaf.spilled == 0 && c.lacks(of) {
		if !c.overflowed(of.tag) {
			return true
		}
		at, k, reach := home(m), uint32(1), c.reach()
		for k <= reach && r.chunk(away(at, k)).lacks(of) {
			k++
		}
		if k > reach {
			return true
		}
	}
	_, taken := d.look(r, m, hash)
	return !taken
}

// removeAll takes out the entries of the probe's blocks from the lo-th up to the hi-th,
// and returns how many it took: it stops before one whose leaf must shrink.
func (d *directory) removeAll(p *probe, lo, hi int) int {
	if p.gen != d.gen {
		return 0
	}
	at, blocks := p.at[lo:hi], p.blocks[lo:hi]
	n, late := removeAt(at, blocks)
	d.count -= n
	spilled := uint32(0)
	for ; late != 0; late &= late - 1 {
		i := bits.TrailingZeros32(late)
		if m := at[i].mixed; !d.refAt(m).remove(m, blocks[i]) {
			spilled |= 1 << i
			d.count++
		}
	}
	for ; spilled != 0; spilled &= spilled - 1 {
		b := blocks[bits.TrailingZeros32(spilled)]
		d.remove(d.arena.at(b), b)
	}
	if d.count == 0 {
		d.clear()
	}
	return n
}

// removeFirst is removeAll for the probe's first block, and reports whether it took it.
func (d *directory) removeFirst(p *probe) bool {
	if p.gen == d.gen && d.count > 1 {
		if n, late := removeAt(p.at[:1], p.blocks[:1]); n == 1 && late == 0 {
			d.count--
			return true
		}
	}
	return d.removeAll(p, 0, 1) == 1
}

// find returns the block that holds the hash. With a hash entered for several
// blocks it is the entered one; the others are Radix.dups.
func (d *directory) find(hash uint64) (uint32, bool) {
	if len(d.top) == 0 {
		return 0, false
	}
	m := d.key.mix(hash)
	return d.look(d.refAt(m), m, hash)
}

func (d *directory) look(r *ref, m, hash uint64) (uint32, bool) {
	at, of := home(m), r.leaf.mark(m)
	c := r.chunk(at)
	if b, ok := d.findIn(c, of, hash); ok {
		return b, true
	}
	if c.overflowed(of.tag) {
		for k := uint32(1); k <= c.reach(); k++ {
			if b, ok := d.findIn(r.chunk(away(at, k)), of, hash); ok {
				return b, true
			}
		}
	}
	if r.leaf.spilled != 0 {
		b, ok := d.spill[hash]
		return b, ok
	}
	return 0, false
}

// insert enters the block under its hash, which must not be entered yet.
func (d *directory) insert(hash uint64, b uint32) {
	if len(d.top) == 0 {
		d.top = []ref{d.newRef(0)}
	}
	m := d.key.mix(hash)
	r := d.refAt(m)
	for r.leaf.n >= leafHigh {
		if !d.grow(m) {
			if d.spill == nil {
				d.spill = make(map[uint64]uint32)
			}
			d.spill[hash] = b
			r.leaf.spilled++
			d.count++
			return
		}
		r = d.refAt(m)
	}
	r.put(m, b)
	d.count++
}

// put makes an entry.
func (r *ref) put(m uint64, b uint32) {
	at, of := home(m), r.leaf.mark(m)
	first := r.chunk(at)
	r.leaf.n++
	c := first
	for k := uint32(0); ; {
		if s := c.free(); s < chunkSlots {
			c.set(s, of.tag, of.slot(b))
			if k > 0 {
				c.guest |= 1 << s
				first.overflow(of.tag, k)
			}
			return
		}
		k++
		c = r.chunk(away(at, k))
	}
}

// slot finds the entry of exactly this block: its chunk, slot, how many steps that is
// from its home, and the home chunk.
func (r *ref) slot(m uint64, b uint32) (c *chunk, s int, steps uint32, first *chunk) {
	at, of := home(m), r.leaf.mark(m)
	first = r.chunk(at)
	c = first
	for {
		if s = c.block(of, b); s >= 0 {
			return c, s, steps, first
		}
		if steps++; steps > first.reach() {
			return nil, 0, 0, first
		}
		c = r.chunk(away(at, steps))
	}
}

// remove takes the entry of the block out of the leaf. It reports false if the
// leaf does not have it.
func (r *ref) remove(m uint64, b uint32) bool {
	c, s, steps, first := r.slot(m, b)
	if c == nil {
		return false
	}
	c.drop(s)
	r.leaf.n--
	if steps > 0 {
		first.underflow(r.leaf.mark(m).tag)
	}
	return true
}

// recount finds out anew what of the chunk stands elsewhere: counts that stick would in time
// make each search a long one. It reads some hashes at random, so it is done for one in four of
// those who had to search for nothing.
func (d *directory) recount(r *ref, at uint32) {
	c := r.chunk(at)
	reach := c.reach()
	c.over = 0
	c.setReach(0)
	for k := uint32(1); k <= reach; k++ {
		o := r.chunk(away(at, k))
		for guests := o.guest & allSlots; guests != 0; guests &= guests - 1 {
			m := d.key.mix(d.arena.at(o.blk[bits.TrailingZeros16(guests)%chunkSlots] & blockMask))
			if home(m) == at {
				c.overflow(r.leaf.mark(m).tag, k)
			}
		}
	}
}

// replace makes the entry of block b name block nb instead. It reports false
// if block b is not entered.
func (d *directory) replace(hash uint64, b, nb uint32) bool {
	if len(d.top) == 0 {
		return false
	}
	m := d.key.mix(hash)
	r := d.refAt(m)
	if c, s, _, _ := r.slot(m, b); c != nil {
		c.blk[s] = r.leaf.mark(m).slot(nb)
		return true
	}
	if got, ok := d.spill[hash]; ok && got == b {
		d.spill[hash] = nb
		return true
	}
	return false
}

// replaceAt is replace for the probe's i-th hash, where the entry is in its home chunk.
func (d *directory) replaceAt(p *probe, i int, b, nb uint32) bool {
	if p.gen != d.gen {
		return false
	}
	a := &p.at[i]
	of := a.leafOf().mark(a.mixed)
	s := a.chunk().block(of, b)
	if s >= 0 {
		a.chunk().blk[s] = of.slot(nb)
	}
	return s >= 0
}

// remove takes the entry of block b out.
func (d *directory) remove(hash uint64, b uint32) {
	if len(d.top) == 0 {
		return
	}
	m := d.key.mix(hash)
	r := d.refAt(m)
	l := r.leaf
	if r.remove(m, b) {
		d.count--
	} else if got, ok := d.spill[hash]; ok && got == b {
		delete(d.spill, hash)
		l.spilled--
		d.count--
	}
	if d.count == 0 {
		d.clear()
	} else if l.n < l.low {
		d.shrink(m)
	}
}
