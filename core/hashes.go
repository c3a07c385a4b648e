package core

import "slices"

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
	now, ahead := x.spare[0], x.spare[1]
	n, from := x.lastHashes(r, lo, hi, now), 0
	if at, ok := x.now.find(now.hashes[:n]); ok {
		copy(x.now.blocks[at:], now.blocks[:n])
		now, from = x.now, at
	} else {
		x.dir.locate(now, now.hashes[:n])
	}
	for {
		hi -= uint32(n)
		more := 0
		if hi > lo { // the next batch's cache misses pass while this one is removed
			more = x.lastHashes(r, lo, hi, ahead)
			x.dir.locate(ahead, ahead.hashes[:more])
		}
		for k, end := from, from+n; k < end; k++ {
			if x.dups.n == 0 {
				if k += x.dir.removeAll(now, k, end); k == end {
					break
				}
			}
			x.dropHash(x.arena.at(now.blocks[k]), now.blocks[k])
		}
		if more == 0 {
			break
		}
		if now == x.now {
			now = x.spare[0]
		}
		now, ahead, n, from = ahead, now, more, 0
	}
	x.releaseSegs(r, lo)
}

// lastHashes gets the shared hashes of the last positions below hi, and their blocks, and
// returns how many: some, if there are any from lo on. They come downwards: so it is the
// order of the event that removed them, of which there may be a probe already.
func (x *Radix) lastHashes(r *run, lo, hi uint32, p *probe) int {
	n := 0
	for lo < hi && n <= probeHashes-segBlocks {
		b := r.block(hi - 1)
		seg := x.arena.hashes(b >> segBits)[:b&(segBlocks-1)+1]
		seg = seg[max(len(seg)-int(hi-lo), 0):]
		for j := range seg {
			i := (n + j) & (probeHashes - 1)
			p.hashes[i], p.blocks[i] = seg[len(seg)-1-j], b-uint32(j)
		}
		n += len(seg)
		hi -= uint32(len(seg))
	}
	return n
}

// probeOf returns a probe of the hashes and the index of the first in it: that
// of the present event, if it has them.
func (x *Radix) probeOf(hashes []uint64) (p *probe, from int) {
	if at, ok := x.now.find(hashes); ok {
		return x.now, at
	}
	x.dir.locate(x.spare[0], hashes)
	return x.spare[0], 0
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
	at := blocks[:len(hashes)]
	for len(hashes) > 0 {
		b := x.roomForHashes(r, pos)
		k := copy(x.arena.hashes(b >> segBits)[b&(segBlocks-1):], hashes)
		for j := range at[:k] {
			at[j] = b + uint32(j)
		}
		hashes, at, pos = hashes[k:], at[k:], pos+uint32(k)
	}
}

// expectHashes makes room in r's list of segments for hashes of n positions: where an event
// brings many, the list grows once and not by doublings.
func (x *Radix) expectHashes(r *run, n uint32) {
	need, c := int(n+segBlocks-1)>>segBits, cap(r.segs)
	if need <= c {
		return
	}
	r.segs = slices.Grow(r.segs, need-len(r.segs))
	x.mem.Runs += segsBytes(cap(r.segs)) - segsBytes(c)
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
