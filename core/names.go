package core

// name returns the shared name's block number at a position.
func (r *run) name(pos uint32) uint32 { return r.segs[pos>>segBits]<<segBits | pos&(segBlocks-1) }

// sameNames returns how many of the names equal the shared ones from pos on.
func (x *Radix) sameNames(r *run, pos uint32, names []uint64) int {
	n := 0
	for n < len(names) {
		s := r.segs[pos>>segBits]
		o := pos & (segBlocks - 1)
		k := min(segBlocks-int(o), len(names)-n)
		m := matchLen(x.arena.names(s)[o:int(o)+k], names[n:n+k])
		n += m
		if m < k {
			break
		}
		pos += uint32(k)
	}
	return n
}

// dropNames takes the shared names of positions lo … hi-1 out of the directory
// and frees the segments that lie beyond lo.
func (x *Radix) dropNames(r *run, lo, hi uint32) {
	var names [probeNames]uint64
	var blocks [probeNames]uint32
	// Downwards: so the names come in the order of the event that removed
	// them, of which there may be a probe already.
	for p := hi; p > lo; {
		n := min(int(p-lo), probeNames)
		for i := range n {
			blocks[i] = r.name(p - 1 - uint32(i))
			names[i] = x.arena.at(blocks[i])
		}
		k := 0
		if x.dups.n == 0 {
			at, from := x.probeOf(names[:n])
			k = x.dir.removeAll(at, from, blocks[:n])
		}
		if k < n {
			x.dropName(names[k], blocks[k])
			k++
		}
		p -= uint32(k)
	}
	x.cutSegs(r, lo)
}

// probeOf returns a probe of the names and the place of the first in it: that
// of the present event, if it has them.
func (x *Radix) probeOf(names []uint64) (p *probe, from int) {
	p = x.now
	for i, e := range p.names[:p.n] {
		if e == names[0] && len(names) <= p.n-i && equalWords(names, p.names[i:i+len(names)]) {
			return p, i
		}
	}
	p = x.spare[0]
	x.dir.locate(p, names)
	return p, 0
}

// strange returns how many of the first names nobody knows, as far as one look at
// each shows it: those of other shards' chains.
func (x *Radix) strange(names []uint64) (n int) {
	for n < len(names) {
		batch := names[n:min(n+probeNames, len(names))]
		p, from := x.probeOf(batch)
		k := min(x.dir.lacks(p, from), len(batch))
		if n += k; k < len(batch) {
			break
		}
	}
	return n
}

// getNames returns the shared names from pos on, and their blocks.
func (x *Radix) getNames(r *run, pos uint32, names []uint64, blocks *[probeNames]uint32) {
	for i := 0; i < len(names); {
		b := r.name(pos + uint32(i))
		seg := x.arena.names(b >> segBits)[b&(segBlocks-1):]
		for j := range min(len(seg), len(names)-i) {
			names[i], blocks[i] = seg[j], b+uint32(j)
			i++
		}
	}
}

// addNames puts names at pos and on of r's shared names, and returns their
// blocks, which are not in the directory yet.
func (x *Radix) addNames(r *run, pos uint32, names []uint64, blocks *[probeNames]uint32) {
	for i := 0; i < len(names); {
		b := x.roomForNames(r, pos+uint32(i))
		k := copy(x.arena.names(b >> segBits)[b&(segBlocks-1):], names[i:])
		for j := range k {
			blocks[i+j] = b + uint32(j)
		}
		i += k
	}
}

// roomForNames returns the block of position pos, the first without a name or
// one before.
func (x *Radix) roomForNames(r *run, pos uint32) uint32 {
	if int(pos>>segBits) == len(r.segs) {
		c := cap(r.segs)
		r.segs = append(r.segs, x.arena.alloc(r.id, pos&^(segBlocks-1), 0))
		if c != cap(r.segs) {
			x.mem.Runs += segsBytes(cap(r.segs)) - segsBytes(c)
		}
	}
	return r.name(pos)
}
