package core

import (
	"math/bits"
	"slices"
)

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

// isEntered reports whether the block is in the directory, or in dups.
func (a *arena) isEntered(b uint32) bool { return a.head(b>>segBits).entered>>(b&(segBlocks-1))&1 != 0 }

// mark notes that blocks are entered.
func (a *arena) mark(blocks []uint32) {
	for i := 0; i < len(blocks); {
		s := blocks[i] >> segBits
		m := uint32(0)
		for ; i < len(blocks) && blocks[i]>>segBits == s; i++ {
			m |= 1 << (blocks[i] & (segBlocks - 1))
		}
		a.head(s).entered |= m
	}
}

func (a *arena) unmark(b uint32) {
	a.head(b >> segBits).entered &^= (1<<segBlocks | 1) << (b & (segBlocks - 1))
}

// markClosed notes that a block which is entered is a closed one. It stays so when the block is moved among the open ones.
func (a *arena) markClosed(b uint32) {
	a.head(b >> segBits).entered |= 1 << segBlocks << (b & (segBlocks - 1))
}

func (a *arena) mayBeClosed(b uint32) bool {
	return a.head(b>>segBits).entered>>segBlocks>>(b&(segBlocks-1))&1 != 0
}

// span returns the bits of a segment's blocks lo … hi-1.
func span(lo, hi uint32) uint32 { return 1<<hi - 1<<lo }

// enterRange enters those of r's shared hashes at lo … hi-1 that are not, and returns how many those were. Sparse
// holders may know them, of which it is not noted (closedBlocks).
func (x *Radix) enterRange(r *run, lo, hi uint32) (entered int) {
	now, ahead := x.spare[2], x.spare[3]
	n, lo := x.firstUnentered(r, lo, hi, now)
	x.dir.locate(now, now.hashes[:n])
	for n > 0 {
		entered += n
		more := 0
		if lo < hi { // the next batch's cache misses pass while this one is entered
			more, lo = x.firstUnentered(r, lo, hi, ahead)
			x.dir.locate(ahead, ahead.hashes[:more])
		}
		k := x.dir.insertAll(now, now.hashes[:n])
		x.arena.mark(now.blocks[:k])
		for ; k < n; k++ {
			x.enter(nobody, now.hashes[k], now.blocks[k])
		}
		if more > 0 && ahead.gen != x.dir.gen {
			x.dir.locate(ahead, ahead.hashes[:more])
		}
		now, ahead, n = ahead, now, more
	}
	return entered
}

// firstUnentered gets those of r's shared hashes from lo on that are not entered, and their blocks, and returns how many, and
// where it stopped: at hi, if there are none.
func (x *Radix) firstUnentered(r *run, lo, hi uint32, p *probe) (n int, at uint32) {
	for ; lo < hi && n <= probeHashes-segBlocks; lo = lo&^(segBlocks-1) + segBlocks {
		s := r.segs[lo>>segBits]
		in := span(lo&(segBlocks-1), min(segBlocks, hi-lo&^(segBlocks-1))) &^ x.arena.head(s).entered
		for seg := x.arena.hashes(s); in != 0; in &= in - 1 {
			i := bits.TrailingZeros32(in) & (segBlocks - 1)
			p.hashes[n&(probeHashes-1)], p.blocks[n&(probeHashes-1)] = seg[i], s<<segBits|uint32(i)
			n++
		}
	}
	return n, min(lo, hi)
}

// dropHashes takes the shared hashes of positions lo … hi-1 out of the directory
// and frees the segments that lie beyond lo.
func (x *Radix) dropHashes(r *run, lo, hi uint32) {
	now, ahead := x.spare[0], x.spare[1]
	n, hi := x.lastEntered(r, lo, hi, now)
	from := 0
	if at, ok := x.now.find(now.hashes[:n]); ok {
		copy(x.now.blocks[at:], now.blocks[:n])
		now, from = x.now, at
	} else {
		x.dir.locate(now, now.hashes[:n])
	}
	for n > 0 {
		more := 0
		if hi > lo { // the next batch's cache misses pass while this one is removed
			more, hi = x.lastEntered(r, lo, hi, ahead)
			x.dir.locate(ahead, ahead.hashes[:more])
		}
		for k, end := from, from+n; k < end; k++ {
			if x.dups.n == 0 {
				if k += x.dir.removeAll(now, k, end); k == end {
					break
				}
			}
			x.takeOut(x.arena.at(now.blocks[k]), now.blocks[k])
		}
		if now == x.now {
			now = x.spare[0]
		}
		now, ahead, n, from = ahead, now, more, 0
	}
	x.releaseSegs(r, lo)
}

// lastEntered gets entered ones of the shared hashes of the last positions below hi, and their blocks, and unmarks them.
// It returns how many, and where it stopped: at lo, if there are none. They come downwards: so it is the
// order of the event that removed them, of which there may be a probe already.
func (x *Radix) lastEntered(r *run, lo, hi uint32, p *probe) (n int, at uint32) {
	for lo < hi && n <= probeHashes-segBlocks {
		s := r.segs[(hi-1)>>segBits]
		first := (hi - 1) &^ (segBlocks - 1)
		hd := x.arena.head(s)
		in := hd.entered & span(max(first, lo)-first, hi-first)
		hd.entered &^= in | in<<segBlocks
		for seg := x.arena.hashes(s); in != 0; n++ {
			i := bits.Len32(in) - 1
			in &^= 1 << i
			p.hashes[n&(probeHashes-1)], p.blocks[n&(probeHashes-1)] = seg[i&(segBlocks-1)], s<<segBits|uint32(i)
		}
		hi = max(first, lo)
	}
	return n, hi
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
func (x *Radix) leadingUnknown(h Holder, hashes []uint64) (n int) {
	if f := x.filterOf(h, x.holders[h]); f != nil {
		return f.leadingAbsent(&x.key, hashes)
	}
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

// putHashes puts hashes at pos and on of r's shared hashes, not entered.
func (x *Radix) putHashes(r *run, pos uint32, hashes []uint64) {
	for len(hashes) > 0 {
		b := x.roomForHashes(r, pos)
		k := copy(x.arena.hashes(b >> segBits)[b&(segBlocks-1):], hashes)
		hashes, pos = hashes[k:], pos+uint32(k)
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
