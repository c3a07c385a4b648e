package core

import (
	"math"

	"github.com/kvatlas/kvatlas/event"
)

// Clear implements Index.
func (x *Radix) Clear(h Holder, tier event.Tier, allTiers bool) Outcome {
	if tier >= event.NumTiers || x.Empty(h) {
		return Outcome{}
	}
	s := store{Radix: x, h: h, hs: x.holders[h], tier: int(tier)}
	if allTiers {
		for _, n := range s.hs.held {
			s.out.Removed += n
		}
		for x.ClearSome(h, math.MaxInt32) {
		}
		return s.out
	}
	if s.hs.held[tier] == 0 {
		return s.out
	}
	for _, id := range s.hs.runs.copied() {
		if r := x.run(id); r != nil {
			s.clearRun(r)
		}
	}
	if tier == event.Device {
		s.forgetAllInferred()
	}
	x.mergePending()
	x.releaseHolder(h)
	return s.out
}

// Clear takes away what the holder has on a tier, in so many of the runs that the walk comes to, in place of Next. It reports
// whether it has come to all; then the walk has ended. What is stored there meanwhile may go, too, and of the device's blocks
// none counts as inferred from the first call on.
func (w *Walk) Clear(tier event.Tier, runs int) (done bool) {
	x := w.x
	if w.over() {
		return true
	}
	s := store{Radix: x, h: w.h, hs: w.hs, tier: int(tier)}
	if tier == event.Device {
		s.forgetAllInferred()
	}
	for ; runs > 0 && w.at < w.hs.runs.len(); w.at++ {
		runs--
		if r := x.run(w.hs.runs.at(uint32(w.at))); r != nil {
			s.clearRun(r)
		}
	}
	x.mergePending() // which may list some again
	if done = w.at >= w.hs.runs.len(); done {
		w.End()
	}
	x.releaseHolder(w.h)
	return done
}

// clearRun drops all that the holder has in r on one tier, whole bitmaps at a time.
func (s *store) clearRun(r *run) {
	s.preserve(r)
	ex := s.exceptionOf(r, s.h)
	if ex == nil {
		if held := r.body.Load().heldLen(0, s.h); held > 0 && s.tier == 0 {
			s.drop(r, spot{}, 0, held)
		}
		return
	}
	n := ex.clearPile(s.tier)
	for i := range ex.layers {
		l := &ex.layers[i]
		n += l.nHeld[s.tier]
		l.nHeld[s.tier], l.held[s.tier] = 0, nil
		for k := range l.copies.m {
			if int(k>>32) == s.tier {
				l.copies.drop(k)
			}
		}
	}
	s.recomputeBytes(ex)
	if n == 0 {
		return
	}
	s.out.Removed += n
	s.hs.held[s.tier] -= n
	s.total -= n
	s.earn(n)
	s.recomputeCoverage(ex, 0, math.MaxUint32)
	s.releasePresence(r, s.h, true)
	s.shrink(r)
}

func (s *store) forgetAllInferred() {
	s.mem.Holders -= s.hs.inferred.bytes(8)
	s.hs.inferred = thinMap[struct{}]{}
}

// runCost is how many blocks of a long chain take about as long to be cleared as a run of one.
const runCost = 32

// Owed implements Clearer.
func (x *Radix) Owed() (amount int) {
	amount, x.owed = x.owed, 0
	return amount
}

var _ Clearer = (*Radix)(nil)

// ClearSome implements Clearer.
func (x *Radix) ClearSome(h Holder, amount int) (left bool) {
	hs := x.state(h)
	if hs == nil {
		return false
	}
	s := store{Radix: x, h: h, hs: hs}
	if hs.leaving {
		x.active++ // as leaveRun has it
	} else {
		hs.leaving = true
		x.dropFilter(hs)
		for _, n := range hs.held {
			x.total -= n
		}
		s.forgetAllInferred()
		x.mem.Holders -= hs.tails.bytes()
		hs.tails = tails{} // which must not lead a Loader's holder to what is gone
		delete(x.walks, h)
	}
	if x.sweep.hs == hs {
		x.sweep = sweep{} // the zeros that it leaves are passed over
	}
	// From the end: what hangs on a run is mostly listed behind it, and goes before it.
	n := hs.runs.len()
	for n > 0 && amount > 0 && hs.live > 0 {
		amount--
		r := x.run(hs.runs.at(uint32(n - 1)))
		if r == nil || r == x.root {
			n--
			continue
		}
		k := s.clearEnd(r, uint32(min(amount, math.MaxInt32)))
		if k == 0 {
			n--
			continue
		}
		amount -= max(int(k), runCost)
	}
	x.total += s.out.Removed // was taken off at once
	hs.held = [event.NumTiers]int{}
	if hs.live > 0 {
		x.mem.Holders -= hs.runs.bytes(4)
		hs.runs.cut(n)
		x.mem.Holders += hs.runs.bytes(4)
		x.active--
	}
	x.mergePending()
	x.releaseHolder(h)
	return hs.live > 0
}

// clearEnd takes the last of what the holder has or knows in r away, on all tiers: about as many blocks as told, and
// one at least. It returns how many that were; none if there is nothing.
func (s *store) clearEnd(r *run, amount uint32) (n uint32) {
	amount = max(amount, 1)
	ex := s.exceptionOf(r, s.h)
	if ex == nil {
		held := r.body.Load().heldLen(0, s.h)
		if n = min(held, amount); n > 0 {
			s.drop(r, spot{}, held-n, held)
		}
		return n
	}
	end := ex.end()
	if end == 0 && s.childRunsOf(r, s.h) > 0 {
		return 0 // it goes with what is below
	}
	s.preserve(r)
	lo := end - min(end, amount) // of nothing, where a Loader was to add what is below
	if p := ex.pile; p != nil {  // one by one: there may be thousands at one position
		for n = 1; ; n++ {
			lo = p.known.end() - 1
			at := p.heaps.m[uint64(lo)]
			if s.unpile(ex, lo, at.block(at.n-1)); ex.pile == nil || n >= amount {
				break
			}
		}
	} else {
		for i := range ex.layers {
			s.clearLayer(ex, i, lo, end)
		}
		n = max(end-lo, 1)
	}
	s.recomputeBytes(ex)
	s.recomputeCoverage(ex, lo, math.MaxUint32)
	s.releasePresence(r, s.h, true)
	s.shrink(r)
	return n
}

// clearLayer takes what one layer has at positions lo … hi-1 away.
func (s *store) clearLayer(ex *exception, i int, lo, hi uint32) {
	l := &ex.layers[i]
	for t := range l.held {
		l.nHeld[t] -= l.held[t].clear(lo, hi)
		for p := lo; p < hi && len(l.copies.m) > 0; p++ {
			l.copies.drop(copyKey(t, p))
		}
	}
	if i == 0 {
		l.nKnown -= l.known.clear(lo, hi)
		return
	}
	for p, ok := l.known.next(lo); ok && p < hi; p, ok = l.known.next(p + 1) {
		s.forgetHash(ex, spot{layer: uint32(i)}, p)
	}
}
