package core

import "unsafe"

// A probe is where up to probeHashes hashes belong. Making it asks for their home
// chunks, so that the cache misses of a batch overlap with one another and with
// the work before them: a random line costs 125–170 ns alone and 5–16 ns in a
// group.
type probe struct {
	at     [probeHashes]aim
	hashes [probeHashes]uint64 // a copy of the first named ones, made before it is known what it is for (Prefetch)
	blocks [probeHashes]uint32 // what is entered or taken out under them
	n      int
	named  int
	gen    uint32
}

const probeHashes = 32

// aim is the place of one hash: its home chunk, the leaf of that, and the mixed hash.
//
// The places are addresses, not pointers: so assembly may write them, which knows no write
// barriers. What is there is the directory's as long as the probe's gen is, and so
// nobody looks there after.
type aim struct {
	home, leaf uintptr
	mixed      uint64
}

func (a *aim) chunk() *chunk { return *(**chunk)(unsafe.Pointer(&a.home)) }
func (a *aim) leafOf() *leaf { return *(**leaf)(unsafe.Pointer(&a.leaf)) }

// of reports whether the probe was made of hashes, or of hashes and more.
func (p *probe) of(hashes []uint64) bool {
	return len(hashes) <= p.named && equalWords(hashes, p.hashes[:len(hashes)])
}

// find returns where in the probe the hashes are, if it was made of them and others.
func (p *probe) find(hashes []uint64) (at int, ok bool) {
	for i, e := range p.hashes[:p.named] {
		if len(hashes) > 0 && e == hashes[0] && len(hashes) <= p.named-i && equalWords(hashes, p.hashes[i:i+len(hashes)]) {
			return i, true
		}
	}
	return 0, false
}

func (d *directory) locate(p *probe, hashes []uint64) {
	p.gen = d.gen
	p.n, p.named = min(len(hashes), probeHashes), 0
	if len(d.top) == 0 {
		p.gen--
		return
	}
	d.aimAt(p.at[:p.n], hashes)
}

// The three loops below call nothing, so that what
// they work with stays in registers; probe_amd64.s has them again, the last two for
// processors with vectors.

// aimEach finds the places of as many hashes as there are aims.
func (d *directory) aimEach(at []aim, hashes []uint64) {
	top, shift, key := d.top, (63-d.depth)&63, d.key
	hashes = hashes[:len(at)]
	for i := range at {
		m := key.mix(hashes[i])
		r := &top[m>>1>>shift]
		c := r.chunk(home(m))
		at[i] = aim{uintptr(unsafe.Pointer(c)), uintptr(unsafe.Pointer(r.leaf)), m}
	}
}

// insertEach enters blocks under the hashes aimed at, up to the first that the home chunk
// may have, or whose leaf must grow. It returns how many it took. Those of them that the home chunk
// has no room for, or of whose class it has entries elsewhere, are not entered but late: bit i for the
// i-th. Their next chunk is asked for, so that it comes while the rest is entered.
func insertEach(at []aim, blocks []uint32) (n int, late uint32) {
	blocks = blocks[:len(at)]
	for i := range at {
		a := &at[i]
		c, l, m := a.chunk(), a.leafOf(), a.mixed
		of := l.mark(m)
		if l.n >= leafHigh || l.spilled != 0 || c.match(of.tag) != 0 && !c.lacks(of) {
			return i, late
		}
		s := c.free()
		if s >= chunkSlots || c.overflowed(of.tag) {
			late |= 1 << (i & (probeHashes - 1))
			continue
		}
		c.set(s, of.tag, of.slot(blocks[i]))
		l.n++
	}
	return len(at), late
}

// removeEach takes entries of blocks out, up to the first whose leaf must shrink. It returns how
// many it took; those of them that are not in their home chunks are late, as insertEach's are.
func removeEach(at []aim, blocks []uint32) (n int, late uint32) {
	blocks = blocks[:len(at)]
next:
	for i := range at {
		a := &at[i]
		c, l, m := a.chunk(), a.leafOf(), a.mixed
		if l.n <= l.low {
			return i, late
		}
		of := l.mark(m)
		slot := of.slot(blocks[i])
		for k := c.match(of.tag); k != 0; k &= k - 1 {
			if s := slotAt(k); s < chunkSlots && c.blk[s] == slot {
				c.drop(s)
				l.n--
				continue next
			}
		}
		late |= 1 << (i & (probeHashes - 1))
	}
	return len(at), late
}
