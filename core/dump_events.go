package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Events calls f as [Index.Dump] does, once all is copied. The events' slices may be kept, and are not to be changed; the
// copies are f's own.
func (d *Dump) Events(f func(ev *event.Event, copies []uint32) bool) {
	below := d.below()
	for n := uint32(1); n <= uint32(d.runs.len()); n++ {
		r := d.run(n)
		if !r.ordinary {
			for i := range r.own {
				if !d.ownEvent(below, n, &r.own[i], f) {
					return
				}
			}
			continue
		}
		known := max(r.held, below[n])
		if known == 0 {
			continue
		}
		ev := d.event(below, n, 0, r.engine[:known:known], r.local[:known:known])
		copies := make([]uint32, len(ev.Engine))
		for i := range r.held {
			copies[len(copies)-int(known)+int(i)] = 1
		}
		if !f(&ev, copies) {
			return
		}
	}
	d.lowerTiers(f)
}

// run returns the copied run of a number.
func (d *Dump) run(n uint32) *dumpedRun {
	n--
	return &d.runs.pages[n>>pageItemBits][n&(pageItems-1)]
}

// below returns, by number of a run, the highest offset at which the holder has something below it.
func (d *Dump) below() []uint32 {
	below := make([]uint32, d.runs.len()+1)
	for n := uint32(1); n <= uint32(d.runs.len()); n++ {
		r := d.run(n)
		below[r.parent] = max(below[r.parent], r.off)
	}
	return below
}

// ownEvent tells a hash, and those after it that are alike.
func (d *Dump) ownEvent(below []uint32, n uint32, own *PieceHash, f func(ev *event.Event, copies []uint32) bool) (goOn bool) {
	r, lo, hi := d.run(n), own.Pos, own.Pos+own.More+1
	engine := r.engine[lo:hi:hi]
	if !own.Shared {
		engine = []uint64{own.Engine}
	}
	ev := d.event(below, n, lo, engine, r.local[lo:hi:hi])
	copies := make([]uint32, len(ev.Engine))
	for i := len(copies) - len(engine); i < len(copies); i++ {
		copies[i] = own.Copies[event.Device]
	}
	return f(&ev, copies)
}

// event returns one for blocks of a run from pos on: its parent is the nearest ancestor with a hash; the positions
// without one between stand in front, with the first hash to pass over them.
func (d *Dump) event(below []uint32, n, pos uint32, engine, local []uint64) event.Event {
	ev := event.Event{Kind: event.Stored, Engine: engine, Local: local}
	var up []uint64
	for r := d.run(n); ; r = d.run(n) {
		for pos > 0 && !ev.HasParent {
			pos--
			if ev.Parent, ev.HasParent = r.hashAt(below[n], pos); !ev.HasParent {
				up = append(up, r.local[pos])
			}
		}
		if ev.HasParent || r.parent == 0 {
			break
		}
		n, pos = r.parent, r.off
	}
	if len(up) > 0 {
		slices.Reverse(up)
		ev.Local = append(up, local...)
		ev.Engine = append(slices.Repeat(engine[:1], len(up)), engine...)
	}
	return ev
}

// hashAt returns a hash of the holder's for a position, if it has one.
func (r *dumpedRun) hashAt(below, pos uint32) (hash uint64, ok bool) {
	if r.ordinary {
		if ok = pos < max(r.held, below); ok {
			hash = r.engine[pos]
		}
		return hash, ok
	}
	i, _ := slices.BinarySearchFunc(r.own, pos, func(own PieceHash, pos uint32) int { return int(own.Pos+own.More) - int(pos) })
	switch {
	case i == len(r.own) || r.own[i].Pos > pos:
		return 0, false
	case r.own[i].Shared:
		return r.engine[pos], true
	}
	return r.own[i].Engine, true
}

// lowerTiers tells what the holder has on the tiers below the device.
func (d *Dump) lowerTiers(f func(ev *event.Event, copies []uint32) bool) {
	for t := event.Device + 1; t < event.NumTiers; t++ {
		ev := event.Event{Kind: event.Stored, Tier: t}
		var copies []uint32
		for n := uint32(1); n <= uint32(d.runs.len()); n++ {
			r := d.run(n)
			for i := range r.own {
				own := &r.own[i]
				switch {
				case own.Copies[t] == 0:
				case own.Shared:
					ev.Engine = append(ev.Engine, r.engine[own.Pos:own.Pos+own.More+1]...)
				default:
					ev.Engine = append(ev.Engine, own.Engine)
				}
				for len(copies) < len(ev.Engine) {
					copies = append(copies, own.Copies[t])
				}
			}
		}
		if len(copies) > 0 && !f(&ev, copies) {
			return
		}
	}
}
