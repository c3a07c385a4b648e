package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

func (d *directory) newRef(depth uint8) ref {
	d.leaves++
	d.gen++
	r := ref{d.pages.get(), &leaf{depth: depth, window: windowOf(depth)}}
	if depth > 0 {
		r.leaf.low = leafLow
	}
	return r
}

// windowOf returns the window of a leaf of this depth: it moves with each third depth.
// The bits of a slot that its leaf's depth is beyond are alike in all of the leaf.
func windowOf(depth uint8) uint8 {
	if depth < 2 {
		return 0
	}
	return depth - (depth+1)%3
}

func (d *directory) freeRef(r ref) {
	d.leaves--
	d.pages.put(r.page)
}

// reserve makes the leaves that n entries need, if there are none: to come to them by
// splitting would move every entry once more.
func (d *directory) reserve(n int) {
	if len(d.top) > 0 || n <= leafHigh {
		return
	}
	for n>>d.depth > leafHigh-leafHigh/16 { // hashes do not spread quite evenly
		d.depth++
	}
	d.top = make([]ref, 1<<d.depth)
	for i := range d.top {
		d.top[i] = d.newRef(d.depth)
	}
}

// trim joins leaves until none is as empty as those that reserve made for entries that
// never came.
func (d *directory) trim() {
	if d.count == 0 {
		d.clear()
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(d.top); i++ {
			if l, had := d.top[i].leaf, d.leaves; l.n < l.low {
				d.shrink(uint64(i) << 1 << (63 - d.depth))
				again = again || d.leaves < had
			}
		}
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
	*d = directory{key: d.key, arena: d.arena, pages: d.pages, gen: d.gen + 1}
}

// gather lists the entries of the leaves, but for spilled ones.
func (d *directory) gather(refs ...ref) {
	d.blocks = slices.Grow(d.blocks[:0], len(refs)*pageSlots)
	for _, r := range refs {
		for i := range r.page {
			for _, b := range &r.page[i].blk {
				if b != 0 {
					d.blocks = append(d.blocks, b&blockMask)
				}
			}
		}
	}
	d.getHashes()
}

// getHashes gets the hashes of the gathered blocks: all at once, so that their cache misses
// overlap.
func (d *directory) getHashes() {
	d.hashes = slices.Grow(d.hashes[:0], len(d.blocks))[:len(d.blocks)]
	for i, b := range d.blocks {
		d.hashes[i] = d.arena.at(b)
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
	for i, e := range d.hashes {
		m := d.key.mix(e)
		r := &made[m>>1>>shift&(n-1)]
		of, c := r.leaf.mark(m), r.chunk(home(m))
		if s := c.free(); s < chunkSlots {
			c.set(s, of.tag, of.slot(d.blocks[i]))
			r.leaf.n++
		} else {
			r.put(m, d.blocks[i])
		}
	}
	d.place(depth, prefix, made[:n])
}

// place puts the leaves of a depth, one or two neighbours, where they belong in the top
// table: the first has the prefix.
func (d *directory) place(depth uint8, prefix uint64, made []ref) {
	shift, n := (63-depth)&63, uint64(len(made))
	for e := range d.spill {
		if m := d.key.mix(e); m>>1>>shift&^(n-1) == prefix {
			made[m>>1>>shift&(n-1)].leaf.spilled++
		}
	}
	span := uint64(1) << (d.depth - depth)
	for i := range n * span {
		d.top[prefix*span+i] = made[i/span]
	}
}

// split makes two leaves of one, in whose slots the bit is that tells which of the two:
// only the hashes of guests are read, whose homes are not known else. The first of the two
// is the leaf itself.
func (d *directory) split(r ref, prefix uint64) {
	l := r.leaf
	bit := 31 - (l.depth - l.window)
	o := d.newRef(l.depth + 1)
	d.blocks = d.blocks[:0]
	went := 0
	for i := range r.page {
		c, to := &r.page[i], &o.page[i]
		guests := c.guest & allSlots
		k := 0
		for s := range chunkSlots {
			b := c.blk[s]
			if guests>>s&1 != 0 {
				d.blocks = append(d.blocks, b&blockMask)
				c.tags[s], c.blk[s] = 0, 0
				continue
			}
			// Which of the two cannot be foretold: so no branch.
			goes := b >> (bit & 31) & 1
			to.tags[k], to.blk[k] = c.tags[s], b
			c.tags[s] &= uint8(goes) - 1
			c.blk[s] = b & (goes - 1)
			k += int(goes)
		}
		if k < chunkSlots {
			to.tags[k], to.blk[k] = 0, 0
		}
		c.guest, c.over = 0, 0
		went += k
	}
	l.n -= uint32(went + len(d.blocks))
	l.depth, l.low, l.spilled = o.leaf.depth, leafLow, 0
	o.leaf.n = uint32(went)
	made := [2]ref{r, o}
	d.getHashes()
	for i, e := range d.hashes {
		m := d.key.mix(e)
		made[m>>1>>((63-l.depth)&63)&1].put(m, d.blocks[i])
	}
	d.place(l.depth, prefix*2, made[:])
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
	if windowOf(l.depth+1) == l.window {
		d.split(r, prefix)
		return true
	}
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

// need returns how many bytes n more entries may take. A leaf splits once in a thousand
// entries and more, but all may be close to it at once: one in sixteen is beyond what
// chance brings. Those that come of it split in turn once they have as many. A split has two new pages before it frees one.
func (d *directory) need(n int) int64 {
	pages := min(n/16, d.leaves+n/(leafHigh*15/32)) + 2
	b := int64(cap(d.top))*refBytes + int64(pages)*leafBytes
	if pages -= d.pages.free(); pages <= 0 {
		return b
	}
	heap := min(pages, smallPages-d.pages.small)
	blocks := (pages - heap + blockPages - 1) / blockPages
	return b + int64(heap)*pageBytes + int64(blocks)*hugemem.Size
}

func (d *directory) bytes() int64 {
	return d.pages.bytes() + int64(d.leaves)*leafBytes + int64(cap(d.top))*refBytes +
		int64(cap(d.blocks))*4 + int64(cap(d.hashes))*8 + int64(len(d.spill))*32
}

const (
	refBytes  = 16
	leafBytes = 16
)
