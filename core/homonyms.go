package core

// A hash that leads to several blocks: holders may call different content alike,
// and what one of them calls by a hash says nothing about the others. The
// directory has one of the blocks; the others are here.

// openBlocks is how many blocks of a hash, besides the directory's, are looked at
// one after the other whoever asks. So the holders of few need no further memory.
const openBlocks = 3

// homonyms are the further blocks of one hash.
type homonyms struct {
	open   []uint32
	closed *closedBlocks // nil if there are none
}

// closedBlocks are those beyond: for them it is written down who may know the hash
// there, so that a lookup looks at one of them, however many there are. A block is
// closed from the moment it is entered, hence whoever comes to know the hash there
// is written down (noteKnows); who ceases to is not taken out, as Radix.at tells. A
// block may be moved among the open ones at any time. Sparse holders may know a hash
// there that are not written down, as they did when the block was entered: they are once the
// hash is searched for, asked about (enterForAll), or they become dense.
type closedBlocks struct {
	blocks []uint32        // by number; 0 is free, the last one is not
	free   []uint32        // numbers that may be free
	number thinMap[uint32] // of a block
	who    thinMap[uint32] // holder → number of the block
	known  int             // of who, at the last sweep
}

// enter makes a block findable by its hash. The holder, who knows the hash there,
// may be nobody for a shared one.
func (x *Radix) enter(h Holder, e uint64, b uint32) {
	x.arena.mark([]uint32{b})
	if _, taken := x.dir.find(e); !taken {
		x.dir.insert(e, b)
		return
	}
	f, _ := x.dups.get(e)
	x.dupRoom -= f.bytes()
	if len(f.open) < openBlocks {
		f.open = append(f.open, b)
	} else {
		if f.closed == nil {
			f.closed = &closedBlocks{}
		}
		f.closed.add(b)
		x.arena.markClosed(b)
	}
	x.dupRoom += f.bytes()
	x.dups.set(e, f)
	x.noteKnows(h, e, b)
}

// nobody is no holder.
const nobody = ^Holder(0)

// noteKnows notes that the holder comes to know the hash at the block, or that it does. It is called
// wherever a dense one comes to, and nobody else is told of the hash before it shows.
func (x *Radix) noteKnows(h Holder, e uint64, b uint32) {
	if x.dups.n == 0 || h == nobody {
		return
	}
	f, _ := x.dups.get(e)
	if f.closed == nil {
		return
	}
	n, ok := f.closed.number.m[uint64(b)]
	if !ok {
		return
	}
	x.dupRoom -= f.bytes()
	if len(f.closed.who.m) > 2*f.closed.known+16 {
		x.sweepWho(f.closed) // before: what the holder comes to know may not show yet
	}
	f.closed.who.set(uint64(h), n)
	x.dupRoom += f.bytes()
}

// sweepWho takes out holders that do not know the hash where they did.
func (x *Radix) sweepWho(c *closedBlocks) {
	for h, n := range c.who.m {
		x.steps++
		if _, ok := x.atClosed(c, Holder(h), n); !ok {
			c.who.drop(h)
		}
	}
	c.known = len(c.who.m)
}

func (x *Radix) atClosed(c *closedBlocks, h Holder, n uint32) (position, bool) {
	if int(n) >= len(c.blocks) || c.blocks[n] == 0 {
		return position{}, false
	}
	return x.at(h, c.blocks[n])
}

// lookupHomonym returns the position that a hash which the directory's block does not
// lead h to leads it to.
func (x *Radix) lookupHomonym(h Holder, hash uint64) (position, bool) {
	if x.dups.n == 0 {
		return position{}, false
	}
	f, _ := x.dups.get(hash)
	for _, b := range f.open {
		if p, ok := x.at(h, b); ok {
			return p, true
		}
	}
	if f.closed == nil {
		return position{}, false
	}
	n, ok := f.closed.who.m[uint64(h)]
	if !ok {
		return position{}, false
	}
	return x.atClosed(f.closed, h, n)
}

// within reports whether the hash is a shared one of t at base or later: whether
// the holder has just entered it there. Whether it knows it there does not tell, as
// nothing is held yet of what the event brings.
func (s *store) within(t *run, base uint32, hash uint64) bool {
	is := func(b uint32) bool {
		hd := s.arena.head(b >> segBits)
		return hd.run == t.id && hd.owner == 0 && hd.base+b&(segBlocks-1) >= base
	}
	if b, _ := s.dir.find(hash); is(b) {
		return true
	}
	f, _ := s.dups.get(hash)
	for _, b := range f.open {
		if is(b) {
			return true
		}
	}
	if c := f.closed; c != nil {
		n, ok := c.who.m[uint64(s.h)]
		return ok && int(n) < len(c.blocks) && c.blocks[n] != 0 && is(c.blocks[n])
	}
	return false
}

// dropHash takes a block out, if it is entered.
func (x *Radix) dropHash(e uint64, b uint32) {
	if x.arena.isEntered(b) {
		x.arena.unmark(b)
		x.takeOut(e, b)
	}
}

// takeOut undoes enter, but for the mark. The directory always has one of a hash's blocks, or none is
// left: lookups begin there, and dups is asked only about hashes that the directory has.
func (x *Radix) takeOut(e uint64, b uint32) {
	f, ok := x.dups.get(e)
	if !ok {
		x.dir.remove(e, b)
		return
	}
	x.dupRoom -= f.bytes()
	if c := f.closed; c == nil || !c.remove(b) {
		// Another one takes the place of the one that goes.
		var other uint32
		if n := len(f.open) - 1; n >= 0 {
			other, f.open = f.open[n], f.open[:n]
		} else {
			other = c.blocks[len(c.blocks)-1]
			c.remove(other)
		}
		if other != b && !x.dir.replace(e, b, other) {
			f.replace(b, other)
		}
	}
	if f.closed != nil && len(f.closed.blocks) == 0 {
		f.closed = nil
	}
	if len(f.open) == 0 {
		f.open = nil
	}
	if x.dupRoom += f.bytes(); f.open == nil && f.closed == nil {
		x.dups.drop(e)
		return
	}
	x.dups.set(e, f)
}

// moveHash makes the entry of block from name block to: the hash has moved in the arena,
// its position is the same, so nobody's knowledge of it changes.
func (x *Radix) moveHash(e uint64, from, to uint32) {
	if !x.arena.isEntered(from) {
		return
	}
	closed := x.arena.mayBeClosed(from)
	x.arena.unmark(from)
	x.arena.mark([]uint32{to})
	if closed {
		x.arena.markClosed(to)
	}
	if x.dir.replace(e, from, to) {
		return
	}
	f, _ := x.dups.get(e)
	f.replace(from, to)
}

// replace puts block to in the place of block from.
func (f *homonyms) replace(from, to uint32) {
	for i, b := range f.open {
		if b == from {
			f.open[i] = to
			return
		}
	}
	if c := f.closed; c != nil {
		if n, ok := c.number.m[uint64(from)]; ok {
			c.number.drop(uint64(from))
			c.number.set(uint64(to), n)
			c.blocks[n] = to
		}
	}
}

// add gives a block a number.
func (c *closedBlocks) add(b uint32) {
	n := uint32(len(c.blocks))
	for k := len(c.free); k > 0; k-- {
		f := c.free[k-1]
		if c.free = c.free[:k-1]; int(f) < len(c.blocks) && c.blocks[f] == 0 {
			n = f
			break
		}
	}
	if int(n) == len(c.blocks) {
		c.blocks = append(c.blocks, 0)
	}
	c.blocks[n] = b
	c.number.set(uint64(b), n)
}

// remove takes a block out, and reports whether it was in.
func (c *closedBlocks) remove(b uint32) bool {
	n, ok := c.number.m[uint64(b)]
	if !ok {
		return false
	}
	c.number.drop(uint64(b))
	c.blocks[n] = 0
	c.free = append(c.free, n)
	for k := len(c.blocks); k > 0 && c.blocks[k-1] == 0; k-- {
		c.blocks = c.blocks[:k-1]
	}
	return true
}

func (f homonyms) bytes() int64 {
	n := sizeClass(int64(cap(f.open)) * 4)
	if c := f.closed; c != nil {
		n += closedBytes + sizeClass(int64(cap(c.blocks))*4) + sizeClass(int64(cap(c.free))*4) + c.number.bytes(16) + c.who.bytes(16)
	}
	return n
}

const closedBytes = 96
