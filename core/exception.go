package core

import (
	"math"

	"github.com/kvatlas/kvatlas/event"
)

// An exception says what a holder has in a run when that is not the ordinary case.
// It is the writer's alone: readers see what follows from it for the coverage
// (recomputeCoverage), and nothing else.
//
// The ordinary case, which needs no exception, is: the device tier only, one copy
// of each block, no hole (blocks 0 … held length-1), and the shared hashes. Its
// known hashes are those below max(held length, descendant limit).
type exception struct {
	run    *run
	layers []layer // up to maxLayers; layer 0 is that of the shared hashes
	pile   *pile   // what the layers have no room for, or nil
	size   int64   // of it, in the account
	holder Holder
	at     uint32 // its index in the run's exceptions
	tiered bool   // counted in the body's tierCover.users
}

// layer is one set of hashes: at most one per position. A holder has two hashes for one
// position where its engine does, or where what it stored first was called otherwise by
// others; the shared hashes and three layers of its own take nearly all of that.
//
// A position that is held on a tier is known; copies counts only for held ones.
type layer struct {
	segs   []uint32 // arena segments by position>>segBits; nil in layer 0
	known  bitmap   // positions whose hash is known to the holder
	held   [4]bitmap
	nKnown int
	nHeld  [4]int
	copies thinMap[uint32] // tier<<32 | position → copies beyond the first
}

func copyKey(tier int, pos uint32) uint64 { return uint64(tier)<<32 | uint64(pos) }

// spots calls f for each hash that the holder has at a position, until f returns
// false.
func (ex *exception) spots(pos uint32, f func(at spot) bool) {
	for i := range ex.layers {
		if ex.layers[i].known.has(pos) && !f(spot{layer: uint32(i)}) {
			return
		}
	}
	ex.pile.at(pos, func(b uint32) bool { return f(spot{piled, b}) })
}

// hashAtSpot returns the hash at a spot of a position.
func (x *Radix) hashAtSpot(ex *exception, at spot, pos uint32) uint64 {
	switch at.layer {
	case 0:
		return x.arena.at(ex.run.block(pos))
	case piled:
		return x.arena.at(at.block)
	}
	return x.arena.at(ex.layers[at.layer].segs[pos>>segBits]<<segBits | pos&(segBlocks-1))
}

// copiesOf returns how many copies the hash at a spot of a position has on a tier.
func (ex *exception) copiesOf(at spot, tier int, pos uint32) uint32 {
	if at.layer == piled {
		return ex.pile.hashes.m[uint64(at.block)].copies[tier]
	}
	l := &ex.layers[at.layer]
	if !l.held[tier].has(pos) {
		return 0
	}
	return 1 + l.copies.m[copyKey(tier, pos)]
}

// setCopies gives the hash at a spot of a position that many copies on a tier.
func (ex *exception) setCopies(at spot, tier int, pos, copies uint32) {
	if at.layer == piled {
		ex.pile.set(pos, at.block, tier, copies)
		return
	}
	l := &ex.layers[at.layer]
	if copies == 0 {
		l.nHeld[tier] -= l.held[tier].clear(pos, pos+1)
	} else {
		l.nHeld[tier] += l.held[tier].set(pos, pos+1)
	}
	if k := copyKey(tier, pos); copies > 1 {
		l.copies.set(k, copies-1)
	} else {
		l.copies.drop(k)
	}
}

// heldAnywhere reports whether any tier holds the layer's hash at pos.
func (l *layer) heldAnywhere(pos uint32) bool {
	return l.held[0].has(pos) || l.held[1].has(pos) || l.held[2].has(pos) || l.held[3].has(pos)
}

// end returns one more than the last position that is held or known.
func (ex *exception) end() uint32 {
	e := uint32(0)
	for i := range ex.layers {
		e = max(e, ex.layers[i].known.end())
	}
	if ex.pile != nil {
		e = max(e, ex.pile.known.end())
	}
	return e
}

// deepest returns one more than the last position that is held.
func (ex *exception) deepest() uint32 {
	e := uint32(0)
	for i := range ex.layers {
		for t := range ex.layers[i].held {
			e = max(e, ex.layers[i].held[t].end())
		}
	}
	if p := ex.pile; p != nil {
		for t := range p.held {
			e = max(e, p.held[t].end())
		}
	}
	return e
}

// prefix returns the first position from start on that is not held on a tier
// up to level; one from end on if all before are.
func (ex *exception) prefix(level int, start, end uint32) uint32 {
	return firstGap(start, end, func(p uint32) (w uint64) {
		for i := range ex.layers {
			for t := 0; t <= level; t++ {
				w |= ex.layers[i].held[t].word(p)
			}
		}
		for t := 0; ex.pile != nil && t <= level; t++ {
			w |= ex.pile.held[t].word(p)
		}
		return w
	})
}

// firstUnknown returns the first position that the holder has no hash for; one from
// end on if it has for all before.
func (ex *exception) firstUnknown(end uint32) uint32 {
	return firstGap(0, end, func(p uint32) (w uint64) {
		for i := range ex.layers {
			w |= ex.layers[i].known.word(p)
		}
		if ex.pile != nil {
			w |= ex.pile.known.word(p)
		}
		return w
	})
}

// nextKnown returns the first position from p on that the holder has a hash for;
// one from end on if there is none before.
func (ex *exception) nextKnown(p, end uint32) uint32 {
	for i := range ex.layers {
		if q, ok := ex.layers[i].known.next(p); ok {
			end = min(end, q)
		}
	}
	if ex.pile != nil {
		if q, ok := ex.pile.known.next(p); ok {
			end = min(end, q)
		}
	}
	return end
}

// runHolderKey is the key of what is kept of a holder and a run. Ids of runs are used
// again: so whoever frees a run has dropped everything under its keys before.
func runHolderKey(r *run, h Holder) uint64 { return uint64(r.id)<<32 | uint64(h) }

// exceptionOf returns h's exception in r, nil in the ordinary case.
func (x *Radix) exceptionOf(r *run, h Holder) *exception {
	if len(r.exceptions) <= fewExceptions {
		for _, ex := range r.exceptions {
			if ex.holder == h {
				return ex
			}
		}
		return nil
	}
	ex, _ := x.exceptions.get(runHolderKey(r, h))
	return ex
}

// fewExceptions are looked through; more are found in the map.
const fewExceptions = 4

// recomputeBytes enters the exception's size after a change of it.
func (x *Radix) recomputeBytes(ex *exception) {
	x.steps += len(ex.layers)
	n := ex.bytes()
	x.mem.Exceptions += n - ex.size
	ex.size = n
}

// makeException makes the exception that says what the ordinary case says; whoever asks
// for it then changes it. A holder that had nothing in r is in r from here on: it must
// get something, or releasePresence must follow.
func (x *Radix) makeException(r *run, h Holder) *exception {
	if ex := x.exceptionOf(r, h); ex != nil {
		return ex
	}
	x.preserve(r)
	held := r.body.Load().heldLen(0, h)
	ex := &exception{run: r, holder: h, layers: make([]layer, 1)}
	l := &ex.layers[0]
	l.nKnown = l.known.set(0, max(held, x.descendantLimit(r, h)))
	l.nHeld[0] = l.held[0].set(0, held)
	x.exceptions.set(runHolderKey(r, h), ex)
	ex.at = uint32(len(r.exceptions))
	x.mem.Exceptions -= exceptionsBytes(r)
	r.exceptions = append(r.exceptions, ex)
	x.mem.Exceptions += exceptionsBytes(r)
	if held == 0 {
		x.enterRun(r, h)
	}
	x.recomputeBytes(ex)
	return ex
}

// dropException is for exceptions that say the ordinary case again: coverage and
// presence stay. The last in the run's list takes its place, so that a run with
// thousands is not searched.
func (x *Radix) dropException(ex *exception) {
	r := ex.run
	x.mem.Exceptions -= ex.size
	x.exceptions.drop(runHolderKey(r, ex.holder))
	x.mem.Exceptions -= exceptionsBytes(r)
	last := uint32(len(r.exceptions) - 1)
	r.exceptions[ex.at], r.exceptions[last] = r.exceptions[last], nil
	if ex.at < last {
		r.exceptions[ex.at].at = ex.at
	}
	r.exceptions = r.exceptions[:last]
	if cap(r.exceptions) > 8 && len(r.exceptions) < cap(r.exceptions)/4 {
		r.exceptions = append([]*exception(nil), r.exceptions...)
	} else if last == 0 {
		r.exceptions = nil
	}
	x.mem.Exceptions += exceptionsBytes(r)
	x.untier(ex)
}

// untier ends the run's coverage above the device level when its last holder
// with blocks on lower tiers is gone: else one offloaded block would make each write
// to the run one of four levels for good. A crowded run's is dropped later (tighten).
func (x *Radix) untier(ex *exception) {
	if !ex.tiered {
		return
	}
	ex.tiered = false
	if t := ex.run.body.Load().tiers.Load(); t != nil {
		if t.users--; t.users > 0 {
			return
		}
		if ex.run.crowd() > fewHolders {
			x.loosen(ex.run)
			return
		}
		x.dropTiers(ex.run)
	}
}

// trimException trims the exception of hashes that nothing below keeps known, and drops
// it if what is left is the ordinary case. It is due after whatever may have taken a
// copy, or something below the run, away: so a hash without copies is never found known
// longer than the state after the step allows.
//
// The exception may be gone afterwards: who goes on with the run looks it up again.
func (x *Radix) trimException(ex *exception) {
	below := x.descendantLimit(ex.run, ex.holder)
	if ex.simple() {
		x.trimHoles(ex, below)
		return
	}
	// A hash without copies is known while something is held strictly below.
	limit := below
	if d := ex.deepest(); d > 0 {
		limit = max(limit, d-1)
	}
	less := x.trimPile(ex, limit)
	for i := range ex.layers {
		l := &ex.layers[i]
		for p, ok := l.known.next(limit); ok; p, ok = l.known.next(p + 1) {
			x.steps++
			if !l.heldAnywhere(p) {
				x.forgetHash(ex, spot{layer: uint32(i)}, p)
				less = true
			}
		}
	}
	for n := len(ex.layers); n > 1 && ex.layers[n-1].nKnown == 0; n-- {
		ex.layers[n-1] = layer{}
		ex.layers = ex.layers[:n-1]
		less = true
	}
	if less {
		x.recomputeBytes(ex)
	}
	if ex.simple() {
		x.trimHoles(ex, below)
	}
}

// simple reports whether the exception differs from the ordinary case by holes, if
// at all.
func (ex *exception) simple() bool {
	l := &ex.layers[0]
	return len(ex.layers) == 1 && ex.pile == nil && len(l.copies.m) == 0 && l.nHeld[1]+l.nHeld[2]+l.nHeld[3] == 0
}

// trimHoles trims a simple exception: one bitmap of known and one of held positions.
// With both full up to their ends, it is the ordinary case. limit is the descendant
// limit.
func (x *Radix) trimHoles(ex *exception, limit uint32) {
	l := &ex.layers[0]
	x.untier(ex)
	held := l.held[0].end()
	known := max(held, limit)
	if end := l.known.end(); end > known {
		if hs := x.holders[ex.holder]; hs.filter != nil {
			for p, ok := l.known.next(known); ok; p, ok = l.known.next(p + 1) {
				x.unlearn(hs, ex.run, p, p+1)
			}
		}
		l.nKnown -= l.known.clear(known, end)
		if l.known == nil {
			x.recomputeBytes(ex)
		}
	}
	if int(held) == l.nHeld[0] && int(known) == l.nKnown {
		x.dropException(ex)
	}
}

// forgetHash forgets the hash at a spot of pos: one without copies, or the holder's
// counts would be wrong. A segment of own hashes goes with its last known one; while
// one is left the forgotten ones stand in it, out of the directory.
func (x *Radix) forgetHash(ex *exception, at spot, pos uint32) {
	x.preserve(ex.run)
	if at.layer == piled {
		x.unpile(ex, pos, at.block)
		return
	}
	x.unlearnHash(x.holders[ex.holder], x.hashAtSpot(ex, at, pos))
	l := &ex.layers[at.layer]
	l.nKnown -= l.known.clear(pos, pos+1)
	if at.layer == 0 {
		return // the shared hash stays for the others
	}
	s := l.segs[pos>>segBits]
	b := s<<segBits | pos&(segBlocks-1)
	x.dropHash(x.arena.at(b), b)
	lo := pos &^ (segBlocks - 1)
	for p := lo; p < lo+segBlocks; p++ {
		if l.known.has(p) {
			return
		}
	}
	x.arena.release(s)
	l.segs[pos>>segBits] = 0
}

// addOwnHash gives the holder a hash of its own at pos, without copies, and returns
// where. The hash must not be known to the holder at pos yet. Until it has a copy, or
// something below, it is known against the rule: a hold follows.
func (x *Radix) addOwnHash(ex *exception, pos uint32, e uint64) spot {
	x.preserve(ex.run)
	x.learnHash(ex.holder, x.holders[ex.holder], e)
	i := ex.freeLayer(pos)
	if i == piled {
		b := x.pileUp(ex, pos, e)
		x.recomputeBytes(ex)
		return spot{piled, b}
	}
	if i == len(ex.layers) {
		ex.layers = append(ex.layers, layer{})
	}
	l := &ex.layers[i]
	for int(pos>>segBits) >= len(l.segs) {
		l.segs = append(l.segs, 0)
	}
	s := l.segs[pos>>segBits]
	if s == 0 {
		s = x.arena.alloc(ex.run.id, pos&^(segBlocks-1), ex.holder+1)
		l.segs[pos>>segBits] = s
	}
	b := s<<segBits | pos&(segBlocks-1)
	x.arena.set(b, e)
	x.enter(ex.holder, e, b)
	l.nKnown += l.known.set(pos, pos+1)
	x.recomputeBytes(ex)
	return spot{layer: uint32(i)}
}

// freeLayer returns the first layer of own hashes without one at pos; it may be
// one that does not exist yet, or piled.
func (ex *exception) freeLayer(pos uint32) int {
	i := 1
	for i < len(ex.layers) && ex.layers[i].known.has(pos) {
		i++
	}
	return i
}

// layerOf returns which of the holder's layers the block's segment belongs to.
func (ex *exception) layerOf(s, pos uint32) int {
	for i := 1; i < len(ex.layers); i++ {
		if k := int(pos >> segBits); k < len(ex.layers[i].segs) && ex.layers[i].segs[k] == s {
			return i
		}
	}
	return -1
}

// recomputeCoverage brings the coverage up to date with the exception after a change at
// positions lo … hi-1: all others are held as they were.
func (x *Radix) recomputeCoverage(ex *exception, lo, hi uint32) {
	b := ex.run.body.Load()
	lower := false
	for i := range ex.layers {
		n := &ex.layers[i].nHeld
		lower = lower || n[1]+n[2]+n[3] > 0
	}
	if ex.pile != nil {
		n := &ex.pile.nHeld
		lower = lower || n[1]+n[2]+n[3] > 0
	}
	if lower && !ex.tiered {
		x.addTiers(b).users++
		ex.tiered = true
	}
	levels := 1
	if b.tiers.Load() != nil {
		levels = event.NumTiers
	}
	for l := 0; l < levels; l++ {
		old := b.heldLen(l, ex.holder)
		if lo > old {
			continue // behind a hole that is still there
		}
		held := ex.prefix(l, lo, hi)
		looked := held - lo
		if held >= hi { // held are all that changed, and what is before
			held = old
			if hi > old {
				held = ex.prefix(l, hi, math.MaxUint32)
				looked = held - lo
			}
		}
		x.steps += (int(looked)>>6 + 1) * len(ex.layers)
		if held != old {
			x.setHeldLen(b, l, ex.holder, held)
		}
	}
}

func (ex *exception) bytes() int64 {
	n := exceptionBytes + sizeClass(int64(cap(ex.layers))*layerBytes) + ex.pile.bytes()
	for i := range ex.layers {
		l := &ex.layers[i]
		n += sizeClass(int64(cap(l.segs))*4) + sizeClass(int64(cap(l.known))*8) + l.copies.bytes(12+4)
		for t := range l.held {
			n += sizeClass(int64(cap(l.held[t])) * 8)
		}
	}
	return n
}

const (
	exceptionBytes = 64
	layerBytes     = 208
)

// exceptionsBytes returns the memory of the run's list of exceptions.
func exceptionsBytes(r *run) int64 { return sizeClass(int64(cap(r.exceptions)) * 8) }
