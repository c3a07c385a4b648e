package core

import (
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// ordinaryLens returns how many leading hashes of r an ordinary holder knows, and how
// many of those blocks it holds.
func (x *Radix) ordinaryLens(r *run, h Holder) (known, held uint32) {
	b := r.body.Load()
	held = b.heldLen(0, h)
	if b.children.Load().maxOff() <= held {
		return held, held // without a look at the holder's own
	}
	return max(held, x.descendantLimit(r, h)), held
}

// hashAt returns a hash of h's for a position, if it has one.
func (x *Radix) hashAt(r *run, h Holder, pos uint32) (uint64, bool) {
	ex := x.exceptionOf(r, h)
	if ex == nil {
		if known, _ := x.ordinaryLens(r, h); pos >= known {
			return 0, false
		}
		return x.arena.at(r.block(pos)), true
	}
	var hash uint64
	found := false
	ex.spots(pos, func(at spot) bool {
		hash, found = x.hashAtSpot(ex, at, pos), true
		return false
	})
	return hash, found
}

// eachRun calls f for every run that h is present in, ancestors first.
func (x *Radix) eachRun(h Holder, f func(r *run) bool) {
	if x.Empty(h) {
		return
	}
	seen := make(map[*run]bool)
	var path []*run // chains can be deeper than a stack
	list := &x.holders[h].runs
	for i := range list.len() {
		r := x.run(list.at(uint32(i)))
		if r == nil || !x.present(r, h) {
			continue
		}
		for ; r != x.root && !seen[r]; r = r.parent {
			seen[r] = true
			path = append(path, r)
		}
		for ; len(path) > 0; path = path[:len(path)-1] {
			if !f(path[len(path)-1]) {
				return
			}
		}
	}
}

// Dump implements Index.
func (x *Radix) Dump(h Holder, f func(ev *event.Event, copies []uint32) bool) {
	goOn := true
	var copies []uint32
	x.eachRun(h, func(r *run) bool {
		if ex := x.exceptionOf(r, h); ex != nil {
			goOn = x.dumpException(ex, f)
			return goOn
		}
		known, held := x.ordinaryLens(r, h)
		if known == 0 {
			return true
		}
		ev := event.Event{Kind: event.Stored}
		x.dumpUp(&ev, r, h, 0, 0)
		copies = append(copies[:0], make([]uint32, len(ev.Engine))...)
		for p := uint32(0); p < known; p++ {
			c := uint32(0)
			if p < held {
				c = 1
			}
			ev.Engine = append(ev.Engine, x.arena.at(r.block(p)))
			copies = append(copies, c)
		}
		for i := len(copies) - int(known); i > 0; i-- {
			ev.Engine[i-1] = ev.Engine[i] // passes over positions without hashes
		}
		ev.Local = r.body.Load().data.appendTo(ev.Local, 0, known)
		goOn = f(&ev, copies)
		return goOn
	})
	if goOn {
		x.dumpTiers(h, f)
	}
}

// dumpUp begins an event for a block of h at pos of r: its parent is the
// nearest ancestor with a hash; the positions without one between stand in front,
// with the given hash to pass over them.
func (x *Radix) dumpUp(ev *event.Event, r *run, h Holder, pos uint32, hash uint64) {
	var up []uint64
	for r != x.root {
		if pos == 0 {
			pos, r = r.off, r.parent
			continue
		}
		pos--
		if e, ok := x.hashAt(r, h, pos); ok {
			ev.HasParent, ev.Parent = true, e
			break
		}
		up = append(up, r.body.Load().data.at(pos))
	}
	for i := len(up) - 1; i >= 0; i-- {
		ev.Engine = append(ev.Engine, hash)
		ev.Local = append(ev.Local, up[i])
	}
}

// dumpException emits every hash of the exception with its device copies.
func (x *Radix) dumpException(ex *exception, f func(ev *event.Event, copies []uint32) bool) (goOn bool) {
	data := ex.run.body.Load().data
	goOn = true
	for pos, end := uint32(0), ex.end(); pos < end && goOn; pos++ {
		ex.spots(pos, func(at spot) bool {
			hash := x.hashAtSpot(ex, at, pos)
			ev := event.Event{Kind: event.Stored}
			x.dumpUp(&ev, ex.run, ex.holder, pos, hash)
			ev.Engine = append(ev.Engine, hash)
			ev.Local = append(ev.Local, data.at(pos))
			copies := make([]uint32, len(ev.Engine))
			copies[len(copies)-1] = ex.copiesOf(at, 0, pos)
			goOn = f(&ev, copies)
			return goOn
		})
	}
	return goOn
}

// dumpTiers emits what h has on the lower tiers.
func (x *Radix) dumpTiers(h Holder, f func(ev *event.Event, copies []uint32) bool) {
	for t := 1; t < event.NumTiers; t++ {
		ev := event.Event{Kind: event.Stored, Tier: event.Tier(t)}
		var copies []uint32
		x.eachRun(h, func(r *run) bool {
			if ex := x.exceptionOf(r, h); ex != nil {
				x.eachHeld(ex, t, func(_ uint32, hash uint64, n uint32) {
					ev.Engine, copies = append(ev.Engine, hash), append(copies, n)
				})
			}
			return true
		})
		if len(copies) > 0 && !f(&ev, copies) {
			return
		}
	}
}

// eachHeld calls f for every hash of an exception that has copies on the tier.
func (x *Radix) eachHeld(ex *exception, tier int, f func(pos uint32, hash uint64, copies uint32)) {
	for i := range ex.layers {
		at := spot{layer: uint32(i)}
		ex.layers[i].held[tier].each(func(lo, hi uint32) {
			for p := lo; p < hi; p++ {
				f(p, x.hashAtSpot(ex, at, p), ex.copiesOf(at, tier, p))
			}
		})
	}
	if ex.pile == nil {
		return
	}
	ex.pile.held[tier].each(func(lo, hi uint32) {
		for p := lo; p < hi; p++ {
			ex.pile.at(p, func(b uint32) bool {
				if n := ex.copiesOf(spot{piled, b}, tier, p); n > 0 {
					f(p, x.arena.at(b), n)
				}
				return true
			})
		}
	})
}

// Digest implements Index.
func (x *Radix) Digest(space uint64, identity func(Holder) (worker uint64, dpRank uint32)) uint64 {
	var sum uint64
	var seq []uint64
	type visit struct {
		run   *run
		above uint64 // sequence hash of the block before
	}
	var left []visit
	x.root.body.Load().children.Load().each(func(c *run) bool {
		left = append(left, visit{run: c})
		return true
	})
	for len(left) > 0 {
		v := left[len(left)-1]
		left = left[:len(left)-1]
		r := v.run
		seq = r.sequence(v.above, seq)
		r.body.Load().children.Load().each(func(c *run) bool {
			left = append(left, visit{c, seq[c.off-1]})
			return true
		})
		r.body.Load().eachHeldLen(0, func(h Holder, held uint32) bool {
			if !x.Empty(h) && x.exceptionOf(r, h) == nil {
				worker, rank := identity(h)
				for p := uint32(0); p < held; p++ {
					sum += DigestTerm(space, worker, rank, event.Device, 0, x.arena.at(r.block(p)), seq[p], 1)
				}
			}
			return true
		})
		for _, ex := range r.exceptions {
			if x.Empty(ex.holder) {
				continue
			}
			worker, rank := identity(ex.holder)
			for t := range event.NumTiers {
				x.eachHeld(ex, t, func(pos uint32, hash uint64, copies uint32) {
					sum += DigestTerm(space, worker, rank, event.Tier(t), 0, hash, seq[pos], copies)
				})
			}
		}
	}
	return sum
}

// sequence returns the sequence hashes of r's blocks in dst, given that of the
// block before, if there is one.
func (r *run) sequence(q uint64, dst []uint64) []uint64 {
	b := r.body.Load()
	dst = b.data.appendTo(dst[:0], 0, b.len())
	for i, l := range dst {
		if i > 0 || r.parent.parent != nil {
			l = blockhash.NextSequenceHash(q, l)
		}
		q, dst[i] = l, l
	}
	return dst
}
