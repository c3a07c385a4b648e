package core

import (
	"cmp"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Piece is one run of a [Cut]: a stretch of one chain, and who has what of it.
// It says the same whatever the run's shape in memory is.
type Piece struct {
	Number uint32 // of the run within the cut, from 1; each once
	Parent uint32 // number of the run that it leaves, given before; 0: it begins at the root
	Offset uint32 // after how many of the parent's blocks it leaves

	Local []uint64 // of its blocks, at least one
	Names []uint64 // one for each block: what ordinary holders call it

	// Held has the ordinary holders: they hold the leading blocks by the shared
	// names, one copy of each, on the device tier. By rising holder.
	Held []PieceHeld
	// Special has the others, no holder twice and none of Held.
	Special []PieceSpecial

	// Kids are the offsets at which runs leave this one, rising: one for each run
	// of the cut with this Parent, and perhaps of some that are not in the cut.
	Kids []uint32
}

// PieceHeld says that a holder has the first Blocks blocks of a piece.
type PieceHeld struct {
	Holder Holder
	Blocks uint32
}

// PieceSpecial is all that one holder has and knows of a piece: without names
// that it has forgotten them although it has something below.
type PieceSpecial struct {
	Holder Holder
	Names  []PieceName // by rising position
}

// PieceName is one name that a holder has for a block of a piece.
type PieceName struct {
	Pos    uint32
	Shared bool                   // it is the piece's name there; else Name
	Name   uint64                 // where not Shared
	Copies [event.NumTiers]uint32 // on each tier; none at all: the name is known only
}

// Cut is the index as it was when the cut began, given out run by run while the
// writer goes on: before the writer changes a run that was not given out yet,
// the index gives it out. So the pieces together are the state of one moment,
// and the writer waits for no more than one run at a time.
//
// Its methods belong to the writer, and so do the calls of emit.
type Cut struct {
	x     *Radix
	emit  func(p *Piece)
	next  int    // id of the first run that may still be due
	last  uint32 // number given last
	piece Piece
	path  []*run

	inferred map[Holder][]uint64
}

// BeginCut begins a cut, of which there is one at a time: nil if there is one
// already. Each piece is given to emit, which must not call the index; the
// piece and its slices live until it returns.
func (x *Radix) BeginCut(emit func(p *Piece)) *Cut {
	if x.cut != nil {
		return nil
	}
	x.era++
	x.cut = &Cut{x: x, emit: emit, next: 1, inferred: make(map[Holder][]uint64)}
	for h, hs := range x.holders {
		if hs != nil && len(hs.inferred.m) > 0 {
			names := make([]uint64, 0, len(hs.inferred.m))
			for e := range hs.inferred.m {
				names = append(names, e)
			}
			slices.Sort(names)
			x.cut.inferred[Holder(h)] = names
		}
	}
	return x.cut
}

// Inferred returns the names whose blocks were inferred when the cut began,
// rising, by holder (see [Index]). They were copied then, as they are few.
func (c *Cut) Inferred() map[Holder][]uint64 { return c.inferred }

// Next gives out runs with, together, about as many blocks and holders as
// told, at least one run. It reports whether all of the cut is given out; then
// the cut has ended.
func (c *Cut) Next(amount int) (done bool) {
	if c.x.cut != c {
		return true
	}
	for ; c.next < len(c.x.runs); c.next++ {
		if amount <= 0 {
			return false
		}
		if r := c.x.runs[c.next]; r != nil && r.era != c.x.era {
			amount -= c.give(r)
		}
	}
	c.End()
	return true
}

// End ends the cut, whether or not all of it is given out.
func (c *Cut) End() {
	if c.x.cut == c {
		c.x.cut = nil
	}
}

// touch is called before anything of r is changed that a cut is about.
func (x *Radix) touch(r *run) {
	if x.cut != nil && r.era != x.era && r != x.root {
		x.cut.give(r)
	}
}

// give gives out r, with the ancestors that were not given out, and returns how
// much that was.
func (c *Cut) give(r *run) (amount int) {
	for ; r != c.x.root && r.era != c.x.era; r = r.parent {
		c.path = append(c.path, r)
	}
	for i := len(c.path) - 1; i >= 0; i-- {
		amount += c.giveOne(c.path[i])
		c.path[i] = nil
	}
	c.path = c.path[:0]
	return amount
}

func (c *Cut) giveOne(r *run) (amount int) {
	x, p, b := c.x, &c.piece, r.body.Load()
	c.last++
	r.era, r.number = x.era, c.last
	n := b.len()
	p.Number, p.Parent, p.Offset = r.number, r.parent.number, r.off
	p.Local = b.data.appendTo(p.Local[:0], 0, n)
	p.Names = p.Names[:0]
	for i, s := range r.segs {
		left := int(n) - i*segBlocks
		p.Names = append(p.Names, x.arena.names(s)[:min(left, segBlocks)]...)
	}
	p.Held = p.Held[:0]
	b.eachCut(0, func(h Holder, cut uint32) bool {
		if x.rec(r, h) == nil {
			p.Held = append(p.Held, PieceHeld{h, cut})
		}
		return true
	})
	if rising := func(a, b PieceHeld) int { return cmp.Compare(a.Holder, b.Holder) }; !slices.IsSortedFunc(p.Held, rising) {
		slices.SortFunc(p.Held, rising)
	}
	p.Special = p.Special[:0]
	for _, rc := range r.recs {
		if k := len(p.Special); k < cap(p.Special) {
			p.Special = p.Special[:k+1] // with the memory of its names
		} else {
			p.Special = append(p.Special, PieceSpecial{})
		}
		s := &p.Special[len(p.Special)-1]
		s.Holder = rc.holder
		s.Names = x.special(rc, s.Names[:0])
		amount += len(s.Names)
	}
	p.Kids = p.Kids[:0]
	b.kids.Load().each(func(k *run) bool {
		p.Kids = append(p.Kids, k.off)
		return true
	})
	slices.Sort(p.Kids)
	c.emit(p)
	return amount + len(p.Local) + len(p.Held) + len(p.Kids)
}

// special appends the names of a record.
func (x *Radix) special(rc *record, dst []PieceName) []PieceName {
	for pos, end := uint32(0), rc.end(); pos < end; pos++ {
		rc.spots(pos, func(at spot) bool {
			n := PieceName{Pos: pos, Shared: at == spot{}}
			if !n.Shared {
				n.Name = x.spotName(rc, at, pos)
			}
			for t := range n.Copies {
				n.Copies[t] = rc.copiesOf(at, t, pos)
			}
			dst = append(dst, n)
			return true
		})
	}
	return dst
}
