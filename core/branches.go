package core

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// This file looks at what is held as a tree, beside the writer and without a lock, as Find
// does. A run has children at any offset; a branch ends at the first of them: it is a
// stretch of a run, and what follows it are the children there and the rest of the run.
//
// What is read is of several moments: unlike Find's, an answer is of no one state, and says
// only what was so at some moment during the call.

// Step names a block: how many are before it in its chain, and its local hash. A path of
// steps leads to a branch, whose first block the last one is; each goes on from the run that
// the one before has led to.
type Step struct {
	Depth uint32
	First uint64
}

// Branch is a stretch of a chain in which nothing forks.
type Branch struct {
	Step
	Blocks  int
	Holders int // that have its first block, on any tier
	// Children are the branches that follow it; below 0 if there are too many to count.
	Children int
	// Joins says that it goes on in the run of the branch before it: then its step stands
	// in a path in place of that one's, if that one joins too, and else after it.
	Joins bool
}

// Branching is what follows a branch.
type Branching struct {
	List   []Branch // those of most holders first, then of most blocks
	Looked int      // how many there are, or were looked at
	Whole  bool     // all were
}

// seat is a branch that a path leads to.
type seat struct {
	run      *run
	body     *body
	base     uint32 // blocks of the chain before the run
	from, to uint32 // of the run
	whole    bool   // the end is known
}

// budget bounds the children that a call looks at.
type budget int

func (b *budget) take() bool {
	*b--
	return *b >= 0
}

// seatAt returns the branch at the end of the path, and calls f, if not nil, for each stretch
// on the way to its end. The empty path is the root. It reports false if nothing is there
// any more.
func (x *Radix) seatAt(path []Step, most *budget, f func(b *body, base, from, to uint32)) (seat, bool) {
	s := seat{run: x.root}
	for _, st := range path {
		if s.body = s.run.body.Load(); st.Depth < s.base {
			return s, false
		}
		off := st.Depth - s.base
		if off < s.body.len() && s.run != x.root && s.body.data.at(off) == st.First {
			s.from = off
			continue
		}
		next := s.body.children.Load().find(off, st.First)
		if next == nil {
			return s, false
		}
		if f != nil && s.run != x.root {
			f(s.body, s.base, 0, off)
		}
		s.run, s.base, s.from = next, st.Depth, 0
	}
	s.body = s.run.body.Load()
	if s.run == x.root {
		return s, true
	}
	if s.from >= s.body.len() {
		return s, false
	}
	s.to, s.whole = s.body.forkAfter(s.from, most)
	s.to = max(s.to, s.from) // the run may have become shorter meanwhile
	if f != nil {
		f(s.body, s.base, 0, s.to)
	}
	return s, true
}

// forkAfter returns where the branch ends that begins at block from of the run, and whether
// all children were looked at.
func (b *body) forkAfter(from uint32, most *budget) (to uint32, whole bool) {
	to, whole = b.len(), true
	b.children.Load().eachPlace(func(off uint32, _ *run) bool {
		if !most.take() {
			whole = false
			return false
		}
		if off > from && off < to {
			to = off
		}
		return true
	})
	return to, whole
}

// eachPlace calls f for every child with its offset until f returns false.
func (k *childSet) eachPlace(f func(off uint32, c *run) bool) {
	k.each(func(c *run) bool { return f(c.off, c) })
}

// Branches returns what follows the branch at the end of the path, at most limit of it;
// it looks at no more than most children. It reports false if nothing is there any more.
func (x *Radix) Branches(path []Step, limit, most int) (found Branching, ok bool) {
	left := budget(most)
	limit = max(limit, 0)
	s, ok := x.seatAt(path, &left, nil)
	if !ok {
		return found, false
	}
	type candidate struct {
		Branch
		seat seat
	}
	var all []candidate
	worse := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.Holders, a.Holders), cmp.Compare(b.Blocks, a.Blocks), cmp.Compare(a.First, b.First))
	}
	add := func(c candidate) {
		found.Looked++
		if all = append(all, c); (len(all)-64)/2 >= limit { // as many as that are kept, not all
			slices.SortFunc(all, worse)
			all = all[:limit]
		}
	}
	if n := s.body.len(); s.run != x.root && s.to < n {
		add(candidate{
			Branch{Step: Step{s.base + s.to, s.body.data.at(s.to)}, Blocks: int(n - s.to), Holders: s.body.holdersFrom(s.to), Joins: true},
			seat{run: s.run, body: s.body, base: s.base, from: s.to},
		})
	}
	found.Whole = true
	s.body.children.Load().eachPlace(func(off uint32, c *run) bool {
		if !left.take() {
			found.Whole = false
			return false
		}
		if off != s.to {
			return true
		}
		b := c.body.Load()
		if n := b.len(); n > 0 {
			add(candidate{
				Branch{Step: Step{s.base + off, c.first}, Blocks: int(n), Holders: b.holdersFrom(0)},
				seat{run: c, body: b, base: s.base + off},
			})
		}
		return true
	})
	slices.SortFunc(all, worse)
	all = all[:min(limit, len(all))]
	for i := range all {
		c := &all[i]
		to, whole := c.seat.body.forkAfter(c.seat.from, &left)
		c.Blocks = int(max(to, c.seat.from) - c.seat.from)
		c.Children = -1
		if whole {
			c.Children = c.seat.body.childrenAt(to, &left)
		}
		found.List = append(found.List, c.Branch)
	}
	slices.SortStableFunc(found.List, func(a, b Branch) int {
		return cmp.Or(cmp.Compare(b.Holders, a.Holders), cmp.Compare(b.Blocks, a.Blocks))
	})
	return found, true
}

// childrenAt returns how many branches begin at an offset of the run; below 0 if there are
// too many to look at.
func (b *body) childrenAt(off uint32, most *budget) (n int) {
	if off < b.len() {
		n++
	}
	b.children.Load().eachPlace(func(at uint32, _ *run) bool {
		if !most.take() {
			n = -1
			return false
		}
		if at == off {
			n++
		}
		return true
	})
	return n
}

// Follows returns how many leading blocks of the chain are those of the path, as far as to
// the end of the branch that it leads to, and whether all of them are.
func (x *Radix) Follows(path []Step, local []uint64, most int) (blocks int, through bool) {
	left, through := budget(most), true
	_, ok := x.seatAt(path, &left, func(b *body, base, from, to uint32) {
		if to = min(to, b.len()); !through || int(base+from) != blocks {
			through = false
			return
		}
		n := b.data.match(from, to, local[min(blocks, len(local)):])
		blocks += n
		through = n == int(to-from)
	})
	return blocks, ok && through
}

// HoldersOf calls f for every holder of the branch at the end of the path, with how many
// leading blocks of the branch it has, for each level of tiers. It returns how many blocks
// the branch has, and reports false if nothing is there any more.
func (x *Radix) HoldersOf(path []Step, most int, f func(h Holder, blocks [event.NumTiers]uint32)) (blocks int, ok bool) {
	left := budget(most)
	s, ok := x.seatAt(path, &left, nil)
	if !ok || s.run == x.root {
		return 0, ok
	}
	within := func(held uint32) uint32 { return min(held, s.to) - min(held, s.from) }
	s.body.eachHeldLen(event.NumTiers-1, func(h Holder, held uint32) bool {
		var d [event.NumTiers]uint32
		d[event.NumTiers-1] = within(held)
		for t := event.NumTiers - 2; t >= 0; t-- { // cumulative, also beside the writer
			d[t] = min(within(s.body.heldLen(t, h)), d[t+1])
		}
		if d[event.NumTiers-1] > 0 {
			f(h, d)
		}
		return true
	})
	return int(s.to - s.from), true
}

// holdersFrom returns how many holders have block off of the run, on any tier.
func (b *body) holdersFrom(off uint32) (n int) {
	if c := b.widest(); c != nil && c.full != nil {
		return c.wideFrom(off)
	}
	b.eachHeldLen(event.NumTiers-1, func(_ Holder, held uint32) bool {
		if held > off {
			n++
		}
		return true
	})
	return n
}

// widest returns the coverage in which every holder of the run is; nil if they stand in the
// body.
func (b *body) widest() *cover {
	if t := b.tiers.Load(); t != nil {
		return t.level[event.NumTiers-2].Load()
	}
	return b.cov.Load()
}

// wideFrom is holdersFrom of a wide table.
func (c *cover) wideFrom(off uint32) (n int) {
	for i := range c.full {
		full := c.full[i].Load() // full before part: see cover
		part := c.part[i].Load() &^ full
		if c.fullHeld > off {
			n += bits.OnesCount64(full)
		}
		for ; part != 0; part &= part - 1 {
			if c.lenOf(Holder(i*64+bits.TrailingZeros64(part))) > off {
				n++
			}
		}
	}
	return n
}
