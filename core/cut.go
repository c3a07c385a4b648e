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

	Local  []uint64 // of its blocks, at least one
	Engine []uint64 // one for each block: what ordinary holders call it

	// Held has the ordinary holders: they hold the leading blocks by the shared
	// hashes, one copy of each, on the device tier. By rising holder.
	Held []PieceHeld
	// Exceptions has the others, no holder twice and none of Held.
	Exceptions []PieceException

	// Children are the offsets at which runs leave this one, rising: one for each run
	// of the cut with this Parent, and perhaps of some that are not in the cut.
	Children []uint32
}

// PieceHeld says that a holder has the first Blocks blocks of a piece.
type PieceHeld struct {
	Holder Holder
	Blocks uint32
}

// PieceException is all that one holder has and knows of a piece: without hashes
// that it has forgotten them although it has something below.
type PieceException struct {
	Holder Holder
	Hashes []PieceHash // by rising position
}

// PieceHash is one hash that a holder has for a block of a piece.
type PieceHash struct {
	Pos    uint32
	Shared bool                   // it is the piece's hash there; else Engine
	Engine uint64                 // where not Shared
	Copies [event.NumTiers]uint32 // on each tier; none at all: the hash is known only
	// More is how many blocks after it are alike: Shared, with the same Copies, of which
	// none is beyond 1.
	More uint32
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
			hashes := make([]uint64, 0, len(hs.inferred.m))
			for e := range hs.inferred.m {
				hashes = append(hashes, e)
			}
			slices.Sort(hashes)
			x.cut.inferred[Holder(h)] = hashes
		}
	}
	return x.cut
}

// Inferred returns the hashes whose blocks were inferred when the cut began,
// rising, by holder (see [Index]). They were copied then, as they are few.
func (c *Cut) Inferred() map[Holder][]uint64 { return c.inferred }

// Next gives out runs with, together, about as many blocks and holders as
// told, at least one run. It reports whether all of the cut is given out; then
// the cut has ended.
func (c *Cut) Next(amount int) (done bool) {
	if c.x.cut != c {
		return true
	}
	for ; c.next < c.x.runs.len(); c.next++ {
		if amount <= 0 {
			return false
		}
		if r := c.x.runs.at(uint32(c.next)); r != nil && r.era != c.x.era {
			amount -= c.emitPath(r)
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

// preserve is called before anything of r is changed that a cut or a dump is about.
func (x *Radix) preserve(r *run) {
	if x.cut != nil || x.dumps != nil {
		x.preserveNow(r)
	}
}

func (x *Radix) preserveNow(r *run) {
	if x.cut != nil && r.era != x.era && r != x.root {
		x.cut.emitPath(r)
	}
	for _, d := range x.dumps {
		d.copyPath(r)
	}
}

// emitPath gives out r, with the ancestors that were not given out, and returns how
// much that was.
func (c *Cut) emitPath(r *run) (amount int) {
	for ; r != c.x.root && r.era != c.x.era; r = r.parent {
		c.path = append(c.path, r)
	}
	for i := len(c.path) - 1; i >= 0; i-- {
		amount += c.emitRun(c.path[i])
		c.path[i] = nil
	}
	c.path = c.path[:0]
	return amount
}

func (c *Cut) emitRun(r *run) (amount int) {
	x, p, b := c.x, &c.piece, r.body.Load()
	c.last++
	r.era, r.number = x.era, c.last
	n := b.len()
	p.Number, p.Parent, p.Offset = r.number, r.parent.number, r.off
	p.Local = b.data.appendTo(p.Local[:0], 0, n)
	p.Engine = p.Engine[:0]
	for i, s := range r.segs {
		left := int(n) - i*segBlocks
		p.Engine = append(p.Engine, x.arena.hashes(s)[:min(left, segBlocks)]...)
	}
	p.Held = p.Held[:0]
	b.eachHeldLen(0, func(h Holder, held uint32) bool {
		if x.exceptionOf(r, h) == nil {
			p.Held = append(p.Held, PieceHeld{h, held})
		}
		return true
	})
	if rising := func(a, b PieceHeld) int { return cmp.Compare(a.Holder, b.Holder) }; !slices.IsSortedFunc(p.Held, rising) {
		slices.SortFunc(p.Held, rising)
	}
	p.Exceptions = p.Exceptions[:0]
	for _, ex := range r.exceptions {
		if k := len(p.Exceptions); k < cap(p.Exceptions) {
			p.Exceptions = p.Exceptions[:k+1] // with the memory of its hashes
		} else {
			p.Exceptions = append(p.Exceptions, PieceException{})
		}
		s := &p.Exceptions[len(p.Exceptions)-1]
		s.Holder = ex.holder
		s.Hashes = x.exceptionHashes(ex, s.Hashes[:0])
		amount += len(s.Hashes) + int(ex.end())
	}
	p.Children = p.Children[:0]
	b.children.Load().each(func(k *run) bool {
		p.Children = append(p.Children, k.off)
		return true
	})
	slices.Sort(p.Children)
	c.emit(p)
	return amount + len(p.Local) + len(p.Held) + len(p.Children)
}

// exceptionHashes appends the hashes of an exception.
func (x *Radix) exceptionHashes(ex *exception, dst []PieceHash) []PieceHash {
	for pos, end := uint32(0), ex.end(); pos < end; pos++ {
		ex.spots(pos, func(at spot) bool {
			n := PieceHash{Pos: pos, Shared: at == spot{}}
			if !n.Shared {
				n.Engine = x.hashAtSpot(ex, at, pos)
			}
			alike := n.Shared
			for t := range n.Copies {
				n.Copies[t] = ex.copiesOf(at, t, pos)
				alike = alike && n.Copies[t] <= 1
			}
			if k := len(dst) - 1; alike && k >= 0 && dst[k].Shared && dst[k].Copies == n.Copies && dst[k].Pos+dst[k].More+1 == pos {
				dst[k].More++
			} else {
				dst = append(dst, n)
			}
			return true
		})
	}
	return dst
}
