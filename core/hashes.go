package core

// block returns the shared hash's block number at a position.
func (r *run) block(pos uint32) uint32 { return r.segs[pos>>segBits]<<segBits | pos&(segBlocks-1) }

// sameHashes returns how many of the hashes equal the shared ones from pos on.
func (x *Radix) sameHashes(r *run, pos uint32, hashes []uint64) int {
	n := 0
	for n < len(hashes) {
		s := r.segs[pos>>segBits]
		o := pos & (segBlocks - 1)
		k := min(segBlocks-int(o), len(hashes)-n)
		m := matchLen(x.arena.hashes(s)[o:int(o)+k], hashes[n:n+k])
		n += m
		if m < k {
			break
		}
		pos += uint32(k)
	}
	return n
}

// dropHashes takes the shared hashes of positions lo … hi-1 out of the directory
// and frees the segments that lie beyond lo.
func (x *Radix) dropHashes(r *run, lo, hi uint32) {
	var hashes [probeHashes]uint64
	var blocks [probeHashes]uint32
	// Downwards: so the hashes come in the order of the event that removed
	// them, of which there may be a probe already.
	for p := hi; p > lo; {
		n := min(int(p-lo), probeHashes)
		for i := range n {
			blocks[i] = r.block(p - 1 - uint32(i))
			hashes[i] = x.arena.at(blocks[i])
		}
		k := 0
		if x.dups.n == 0 {
			at, from := x.probeOf(hashes[:n])
			k = x.dir.removeAll(at, from, blocks[:n])
		}
		if k < n {
			x.dropHash(hashes[k], blocks[k])
			k++
		}
		p -= uint32(k)
	}
	x.releaseSegs(r, lo)
}

// probeOf returns a probe of the hashes and the index of the first in it: that
// of the present event, if it has them.
func (x *Radix) probeOf(hashes []uint64) (p *probe, from int) {
	p = x.now
	for i, e := range p.hashes[:p.n] {
		if e == hashes[0] && len(hashes) <= p.n-i && equalWords(hashes, p.hashes[i:i+len(hashes)]) {
			return p, i
		}
	}
	p = x.spare[0]
	x.dir.locate(p, hashes)
	return p, 0
}

// leadingUnknown returns how many of the first hashes nobody knows, as far as one look at
// each shows it: those of other shards' chains.
func (x *Radix) leadingUnknown(hashes []uint64) (n int) {
	for n < len(hashes) {
		batch := hashes[n:min(n+probeHashes, len(hashes))]
		p, from := x.probeOf(batch)
		k := min(x.dir.leadingAbsent(p, from), len(batch))
		if n += k; k < len(batch) {
			break
		}
	}
	return n
}

// getHashes returns the shared hashes from pos on, and their blocks.
func (x *Radix) getHashes(r *run, pos uint32, hashes []uint64, blocks *[probeHashes]uint32) {
	for i := 0; i < len(hashes); {
		b := r.block(pos + uint32(i))
		seg := x.arena.hashes(b >> segBits)[b&(segBlocks-1):]
		for j := range min(len(seg), len(hashes)-i) {
			hashes[i], blocks[i] = seg[j], b+uint32(j)
			i++
		}
	}
}

// addHashes puts hashes at pos and on of r's shared hashes, and returns their
// blocks, which are not in the directory yet.
func (x *Radix) addHashes(r *run, pos uint32, hashes []uint64, blocks *[probeHashes]uint32) {
	for i := 0; i < len(hashes); {
		b := x.roomForHashes(r, pos+uint32(i))
		k := copy(x.arena.hashes(b >> segBits)[b&(segBlocks-1):], hashes[i:])
		for j := range k {
			blocks[i+j] = b + uint32(j)
		}
		i += k
	}
}

// roomForHashes returns the block of position pos, the first without a hash or
// one before.
func (x *Radix) roomForHashes(r *run, pos uint32) uint32 {
	if int(pos>>segBits) == len(r.segs) {
		c := cap(r.segs)
		r.segs = append(r.segs, x.arena.alloc(r.id, pos&^(segBlocks-1), 0))
		if c != cap(r.segs) {
			x.mem.Runs += segsBytes(cap(r.segs)) - segsBytes(c)
		}
	}
	return r.block(pos)
}
