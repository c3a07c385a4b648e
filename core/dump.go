package core

import (
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Dump is what one holder had when the dump began, copied some of it at a time while the writer goes on: before the
// writer changes a run that is not copied yet, the index copies it. It is for one holder what a [Cut] is for all, and
// there are as many at a time as there like to be.
//
// Next and End belong to the writer. Once all is copied, Events is anybody's.
//
// It goes along the holder's list of runs from the end: what it has not come to is only moved further on by sweeps, and
// what is listed since is of no interest.
type Dump struct {
	x  *Radix
	h  Holder
	hs *holderState
	at int // of its list of runs those from here on are copied
	// numbers has the runs, by id, that are copied, by their number in runs, from 1; and with 0 those that the holder
	// has nothing of and those that were made since the dump began. With a run it has all of its ancestors.
	numbers map[uint32]uint32
	runs    paged[dumpedRun]
	room    []uint64 // for what is copied next
	path    []*run
}

// dumpedRun is a copy of what the holder has of a run.
type dumpedRun struct {
	parent   uint32 // number of the run that it leaves, which stands before it; 0 is the root's
	off      uint32 // after how many of the parent's blocks
	local    []uint64
	engine   []uint64 // the shared hashes
	ordinary bool     // it holds the leading blocks by these
	held     uint32   // so many
	own      []PieceHash
}

// BeginDump begins a dump of h.
func (x *Radix) BeginDump(h Holder) *Dump {
	d := &Dump{x: x, h: h}
	if x.Empty(h) {
		return d
	}
	d.hs, d.numbers = x.holders[h], make(map[uint32]uint32)
	d.at = d.hs.runs.len()
	x.dumps = append(x.dumps, d)
	return d
}

// Next copies about as many blocks as told, those of many short chains for what such take longer. It reports whether all
// is copied; then the dump has ended.
func (d *Dump) Next(amount int) (done bool) {
	for d.hs != nil && d.hs == d.x.state(d.h) { // else all that it had was changed
		if d.at = min(d.at, d.hs.runs.len()); d.at == 0 {
			break
		}
		if amount <= 0 {
			return false
		}
		amount--
		d.at--
		if r := d.x.run(d.hs.runs.at(uint32(d.at))); r != nil {
			amount -= d.copyPath(r)
		}
	}
	d.End()
	return true
}

// End ends the copying, whether or not all is copied.
func (d *Dump) End() {
	x := d.x
	if i := slices.Index(x.dumps, d); i >= 0 {
		if x.dumps = slices.Delete(x.dumps, i, i+1); len(x.dumps) == 0 {
			x.dumps = nil
		}
	}
	d.hs, d.numbers = nil, nil
}

// copyPath copies r, with the ancestors that are not copied, and returns how much that was.
func (d *Dump) copyPath(r *run) (amount int) {
	for ; r != d.x.root; r = r.parent {
		if _, done := d.numbers[r.id]; done {
			break
		}
		d.path = append(d.path, r)
	}
	for i := len(d.path) - 1; i >= 0; i-- {
		amount += d.copyRun(d.path[i])
		d.path[i] = nil
	}
	d.path = d.path[:0]
	return amount
}

func (d *Dump) copyRun(r *run) (amount int) {
	x, c := d.x, dumpedRun{off: r.off}
	if !x.present(r, d.h) {
		d.numbers[r.id] = 0
		return 1
	}
	if r.parent != x.root { // the holder is present in that, too
		c.parent = d.numbers[r.parent.id]
	}
	n := r.body.Load().len()
	if ex := x.exceptionOf(r, d.h); ex != nil {
		c.own = x.exceptionHashes(ex, nil)
		amount = len(c.own) + int(ex.end())
	} else {
		c.ordinary = true
		n, c.held = x.ordinaryLens(r, d.h)
	}
	if int(2*n) > len(d.room) {
		d.room = make([]uint64, max(2*n, 4096))
	}
	c.local, c.engine, d.room = d.room[:0:n], d.room[n:n:2*n], d.room[2*n:]
	c.local = r.body.Load().data.appendTo(c.local, 0, n)
	for i := uint32(0); i < n; i += segBlocks {
		c.engine = append(c.engine, x.arena.hashes(r.segs[i>>segBits])[:min(n-i, segBlocks)]...)
	}
	d.runs.add(c)
	d.numbers[r.id] = uint32(d.runs.len())
	return amount + runCost + int(n)
}

// Dump implements Index.
func (x *Radix) Dump(h Holder, f func(ev *event.Event, copies []uint32) bool) {
	d := x.BeginDump(h)
	d.Next(math.MaxInt)
	d.Events(f)
}
