package core

import (
	"fmt"
	"slices"
)

// SetSparse makes new holders sparse up to so many hashes: none for 0.
func (x *Radix) SetSparse(n int) { x.maxSparse = n }

// SetJoinedBound makes holders that store little but what others have dense beyond so many.
func (x *Radix) SetJoinedBound(n int) { x.joinedBound = n }

// SetEntered has so many hashes of who becomes dense entered at a time.
func (x *Radix) SetEntered(n int) { x.enteredAtOnce = n }

// Entered returns how many hashes are in the directory, those of several blocks once.
func (x *Radix) Entered() (n int) {
	var last *leaf
	for _, r := range x.dir.top {
		if r.leaf != last {
			last = r.leaf
			n += int(r.leaf.n + r.leaf.spilled)
		}
	}
	return n
}

// Entering returns how many holders are noted as becoming dense.
func (x *Radix) Entering() int { return len(x.entering) }

// Enter has a sparse holder become dense.
func (x *Radix) Enter(h Holder) {
	if hs := x.state(h); hs != nil && hs.filter != nil {
		x.becomeDense(h, hs)
	}
}

// SetSaved leaves each holder so much to search with, and SetAsked so many questions to filters until holders are made
// dense for it.
func (x *Radix) SetSaved(n int) {
	for _, hs := range x.holders {
		if hs != nil {
			hs.saved = n
		}
	}
}

func (x *Radix) SetAsked(n int) { x.asked = n }

// Turn makes a sparse holder dense, and a dense one sparse as a Loader leaves it.
func (x *Radix) Turn(h Holder) {
	switch hs := x.state(h); {
	case hs == nil || hs.leaving:
	case hs.filter != nil:
		x.makeDense(h, hs)
	default:
		hs.filter, hs.unfiltered = newFilter(30), true // with room, and lacking all
		x.mem.Holders += hs.filter.bytes()
		x.sparse++
	}
}

// Refill makes a sparse holder's filter anew, with no more room than is of need.
func (x *Radix) Refill(h Holder) {
	if hs := x.state(h); hs != nil && hs.filter != nil {
		x.typical = 0
		x.refill(h, hs, 0)
	}
}

// IsSparse reports whether the holder is.
func (x *Radix) IsSparse(h Holder) bool { hs := x.state(h); return hs != nil && hs.filter != nil }

// Holders returns one more than the highest holder that there has been.
func (x *Radix) Holders() Holder { return Holder(len(x.holders)) }

// HashUnder returns a hash that has, under the zero Key, the tags in every filter, and the home line in one of eight lines;
// others for other rest.
func HashUnder(home int, tags uint32, rest uint64) uint64 {
	key := Key{}.hasher()
	t := uint64(home)<<61 | rest>>35<<32 | uint64(tags)<<8 | rest&0xFF
	inverse := func(odd uint64) uint64 {
		x := odd
		for range 6 { // each doubles the bits that are right
			x *= 2 - odd*x
		}
		return x
	}
	undo := inverse(spreading)
	t *= inverse(key.b | 1)
	t = (t ^ t>>32) * undo
	t = (t ^ t>>32) * undo
	hash := t ^ key.a
	f := filter{lines: make([]filterLine, 8)}
	if p := f.place(&key, hash); p.home() != home || uint32(p&(1<<24-1)) != tags {
		panic("not the place that was asked for")
	}
	return hash
}

// checkSparse verifies that dense holders' hashes are entered, that filters have an entry for each one of sparse ones' and no others, and no
// other holder has a filter.
func (x *Radix) checkSparse() error {
	sparse := 0
	for h, hs := range x.holders {
		if hs == nil || hs.leaving {
			if hs != nil && hs.filter != nil {
				return fmt.Errorf("holder %d is leaving and has a filter", h)
			}
			continue
		}
		if hs.entering.hashes > 0 && (hs.filter == nil || !slices.Contains(x.entering, Holder(h))) {
			return fmt.Errorf("holder %d becomes dense, and is so or is not noted", h)
		}
		var left *filter
		if hs.filter != nil {
			if sparse++; !hs.unfiltered {
				left = &filter{lines: slices.Clone(hs.filter.lines), n: hs.filter.n}
			}
		}
		for r := range x.allRuns() {
			ex := x.exceptionOf(r, Holder(h))
			for p := uint32(0); r != x.root && p < r.body.Load().len(); p++ {
				e, ok := x.hashAt(r, Holder(h), p)
				if !ok {
					continue
				}
				hashes := []uint64{e}
				if ex != nil {
					hashes = hashes[:0]
					ex.spots(p, func(at spot) bool { hashes = append(hashes, x.hashAtSpot(ex, at, p)); return true })
				}
				if hs.filter == nil && (ex == nil || ex.layers[0].known.has(p)) && !x.arena.isEntered(r.block(p)) {
					return fmt.Errorf("run %d position %d is not entered, and known to the dense holder %d, exception: %v", r.id, p, h, ex != nil)
				}
				for _, e := range hashes {
					if left == nil {
						continue
					}
					if !left.has(&x.key, e) {
						return fmt.Errorf("run %d position %d: the filter of holder %d lacks hash %d, or has it for another", r.id, p, h, e)
					}
					left.drop(&x.key, []uint64{e})
				}
			}
		}
		if left != nil && left.n > 0 {
			return fmt.Errorf("the filter of holder %d has %d entries of hashes that it does not know", h, left.n)
		}
	}
	if sparse != x.sparse {
		return fmt.Errorf("%d holders are sparse, counted %d", sparse, x.sparse)
	}
	return x.checkTold()
}

// checkTold verifies that it is written down of each closed block which dense holders know the hash there, and that what lies behind
// the ends of runs is marked as entered nowhere.
func (x *Radix) checkTold() error {
	for e, f := range x.dups.all() {
		if f.closed == nil {
			continue
		}
		for h := range x.holders {
			if x.Empty(Holder(h)) || x.holders[h].filter != nil {
				continue
			}
			for n, b := range f.closed.blocks {
				if b == 0 {
					continue
				}
				if !x.arena.mayBeClosed(b) {
					return fmt.Errorf("block %d of hash %d is closed, and not marked so", b, e)
				}
				if _, ok := x.at(Holder(h), b); ok && f.closed.who.m[uint64(h)] != uint32(n) {
					return fmt.Errorf("holder %d knows hash %d at closed block %d, and nobody was told", h, e, b)
				}
			}
		}
	}
	for r := range x.allRuns() {
		n := r.body.Load().len()
		for i, s := range r.segs {
			there := span(0, uint32(min(segBlocks, max(0, int(n)-i*segBlocks))))
			if in := x.arena.head(s).entered &^ (there<<segBlocks | there); in != 0 {
				return fmt.Errorf("run %d of %d blocks: of segment %d, %b are entered", r.id, n, i, in)
			}
		}
	}
	return nil
}

// Entries returns how many entries the filter of a sparse holder has.
func (x *Radix) Entries(h Holder) int {
	if hs := x.state(h); hs != nil && hs.filter != nil {
		return hs.filter.n
	}
	return 0
}
