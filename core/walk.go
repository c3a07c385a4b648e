package core

import "github.com/kvatlas/kvatlas/event"

// Walk gives out what one holder has, some of it at a time, while the writer goes on. A hash that is held for one
// position from the walk's beginning to its end is given at least once; one that comes or goes meanwhile, or is
// stored for another position, perhaps.
//
// It goes along the holder's list of runs. A run that is split has its new part appended to that; of one that is joined to another
// that is appended again (merge); and what is swept keeps its place before or behind the walk. Its methods belong to the writer.
type Walk struct {
	x   *Radix
	h   Holder
	hs  *holderState
	at  int    // in hs.runs
	run *run   // whose first pos blocks are given
	pos uint32 // 0 for another run
}

// BeginWalk begins a walk over what h has, of which there is one at a time: nil if there is one already.
func (x *Radix) BeginWalk(h Holder) *Walk {
	if x.walks[h] != nil {
		return nil
	}
	if x.walks == nil {
		x.walks = make(map[Holder]*Walk)
	}
	w := &Walk{x: x, h: h, hs: x.state(h)}
	x.walks[h] = w
	return w
}

// End ends the walk, whether or not all is given.
func (w *Walk) End() {
	if w.x.walks[w.h] == w {
		delete(w.x.walks, w.h)
	}
}

// over reports whether the holder has nothing any more, or had for a while; then the walk has ended.
func (w *Walk) over() bool {
	if w.hs != nil && w.x.state(w.h) == w.hs && w.x.walks[w.h] == w {
		return false
	}
	w.End()
	return true
}

// Next looks at about as many blocks and runs as told, and calls f, which must not call the index, for each hash that
// is held on some tier. It reports whether all is given; then the walk has ended.
func (w *Walk) Next(amount int, f func(hash uint64)) (done bool) {
	x := w.x
	if w.over() {
		return true
	}
	for ; w.at < w.hs.runs.len(); w.at++ {
		if amount <= 0 {
			return false
		}
		amount--
		r := x.run(w.hs.runs.at(uint32(w.at)))
		if r == nil {
			continue
		}
		if r != w.run {
			w.run, w.pos = r, 0
		}
		ex, end := x.exceptionOf(r, w.h), r.body.Load().heldLen(0, w.h)
		if ex != nil {
			end = ex.deepest()
		}
		for ; w.pos < end; w.pos++ {
			if amount <= 0 {
				return false
			}
			amount--
			if ex == nil {
				f(x.arena.at(r.block(w.pos)))
				continue
			}
			ex.spots(w.pos, func(at spot) bool {
				for t := range event.NumTiers {
					if ex.copiesOf(at, t, w.pos) > 0 {
						f(x.hashAtSpot(ex, at, w.pos))
						break
					}
				}
				amount--
				return true
			})
		}
		w.run, w.pos = nil, 0
	}
	w.End()
	return true
}
