package core

import "github.com/kvatlas/kvatlas/event"

// A record says what a holder has in a run when that is not the ordinary case.
// The ordinary case, which needs no record, is: the device tier only, one copy
// of each block, no hole (blocks 0 … cut-off-1), and the shared names. Its
// known names are those below max(cut-off, link limit).
type record struct {
	run    *run
	layers []layer // up to maxLayers; layer 0 is that of the shared names
	pile   *pile   // what the layers have no room for, or nil
	size   int64   // of it, in the account
	holder Holder
	at     uint32 // its place in the run's recs
	tiered bool   // counted in the body's tierCover.users
}

// layer is one set of names: at most one per position.
type layer struct {
	segs   []uint32 // arena segments by position>>segBits; nil in layer 0
	named  bitmap   // positions whose name is known to the holder
	held   [4]bitmap
	nNamed int
	nHeld  [4]int
	copies thinMap[uint32] // tier<<32 | position → copies beyond the first
}

func copyKey(tier int, pos uint32) uint64 { return uint64(tier)<<32 | uint64(pos) }

// spots calls f for each name that the holder has at a position, until f returns
// false.
func (rc *record) spots(pos uint32, f func(at spot) bool) {
	for i := range rc.layers {
		if rc.layers[i].named.has(pos) && !f(spot{layer: uint32(i)}) {
			return
		}
	}
	rc.pile.at(pos, func(b uint32) bool { return f(spot{piled, b}) })
}

// spotName returns the name at a spot of a position.
func (x *Radix) spotName(rc *record, at spot, pos uint32) uint64 {
	switch at.layer {
	case 0:
		return x.arena.at(rc.run.name(pos))
	case piled:
		return x.arena.at(at.block)
	}
	return x.arena.at(rc.layers[at.layer].segs[pos>>segBits]<<segBits | pos&(segBlocks-1))
}

// copiesOf returns how many copies the name at a spot of a position has on a tier.
func (rc *record) copiesOf(at spot, tier int, pos uint32) uint32 {
	if at.layer == piled {
		return rc.pile.names.m[uint64(at.block)].copies[tier]
	}
	l := &rc.layers[at.layer]
	if !l.held[tier].has(pos) {
		return 0
	}
	return 1 + l.copies.m[copyKey(tier, pos)]
}

// setCopies gives the name at a spot of a position that many copies on a tier.
func (rc *record) setCopies(at spot, tier int, pos, copies uint32) {
	if at.layer == piled {
		rc.pile.set(pos, at.block, tier, copies)
		return
	}
	l := &rc.layers[at.layer]
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

// heldAnywhere reports whether any tier holds a name of the holder at pos.
func (rc *record) heldAnywhere(pos uint32) bool {
	for i := range rc.layers {
		if rc.layers[i].heldAnywhere(pos) {
			return true
		}
	}
	return rc.pile.heldAnywhere(pos)
}

// heldAnywhere reports whether any tier holds the layer's name at pos.
func (l *layer) heldAnywhere(pos uint32) bool {
	return l.held[0].has(pos) || l.held[1].has(pos) || l.held[2].has(pos) || l.held[3].has(pos)
}

// end returns one more than the last position that is held or named.
func (rc *record) end() uint32 {
	e := uint32(0)
	for i := range rc.layers {
		e = max(e, rc.layers[i].named.end())
	}
	if rc.pile != nil {
		e = max(e, rc.pile.named.end())
	}
	return e
}

// deepest returns one more than the last position that is held.
func (rc *record) deepest() uint32 {
	e := uint32(0)
	for i := range rc.layers {
		for t := range rc.layers[i].held {
			e = max(e, rc.layers[i].held[t].end())
		}
	}
	if p := rc.pile; p != nil {
		for t := range p.held {
			e = max(e, p.held[t].end())
		}
	}
	return e
}

// prefix returns the first position from start on that is not held on a tier
// up to level.
func (rc *record) prefix(level int, start uint32) uint32 {
	for p := start; ; {
		var w uint64
		for i := range rc.layers {
			for t := 0; t <= level; t++ {
				w |= rc.layers[i].held[t].word(p)
			}
		}
		for t := 0; rc.pile != nil && t <= level; t++ {
			w |= rc.pile.held[t].word(p)
		}
		for {
			if w>>(p&63)&1 == 0 {
				return p
			}
			if p++; p&63 == 0 {
				break
			}
		}
	}
}

func recKey(r *run, h Holder) uint64 { return uint64(r.id)<<32 | uint64(h) }

// rec returns h's record in r, nil in the ordinary case.
func (x *Radix) rec(r *run, h Holder) *record {
	if len(r.recs) <= fewRecords {
		for _, rc := range r.recs {
			if rc.holder == h {
				return rc
			}
		}
		return nil
	}
	rc, _ := x.recs.get(recKey(r, h))
	return rc
}

// fewRecords are looked through; more are found in the map.
const fewRecords = 4

// account enters the record's size after a change of it.
func (x *Radix) account(rc *record) {
	x.steps += len(rc.layers)
	n := rc.bytes()
	x.mem.Records += n - rc.size
	rc.size = n
}

// makeRecord makes the record that says what the ordinary case says.
func (x *Radix) makeRecord(r *run, h Holder) *record {
	if rc := x.rec(r, h); rc != nil {
		return rc
	}
	x.touch(r)
	cut := r.body.Load().cutOff(0, h)
	rc := &record{run: r, holder: h, layers: make([]layer, 1)}
	l := &rc.layers[0]
	l.nNamed = l.named.set(0, max(cut, x.linkLimit(r, h)))
	l.nHeld[0] = l.held[0].set(0, cut)
	x.recs.set(recKey(r, h), rc)
	rc.at = uint32(len(r.recs))
	x.mem.Records -= recsBytes(r)
	r.recs = append(r.recs, rc)
	x.mem.Records += recsBytes(r)
	if cut == 0 {
		x.joined(r, h)
	}
	x.account(rc)
	return rc
}

func (x *Radix) dropRecord(rc *record) {
	r := rc.run
	x.mem.Records -= rc.size
	x.recs.drop(recKey(r, rc.holder))
	x.mem.Records -= recsBytes(r)
	last := uint32(len(r.recs) - 1)
	r.recs[rc.at], r.recs[last] = r.recs[last], nil
	if rc.at < last {
		r.recs[rc.at].at = rc.at
	}
	r.recs = r.recs[:last]
	if cap(r.recs) > 8 && len(r.recs) < cap(r.recs)/4 {
		r.recs = append([]*record(nil), r.recs...)
	} else if last == 0 {
		r.recs = nil
	}
	x.mem.Records += recsBytes(r)
	x.untier(rc)
}

// untier ends the run's coverage above the device level when its last holder
// with blocks on lower tiers is gone.
func (x *Radix) untier(rc *record) {
	if !rc.tiered {
		return
	}
	rc.tiered = false
	if t := rc.run.body.Load().tiers.Load(); t != nil {
		if t.users--; t.users == 0 {
			x.dropTiers(rc.run)
		}
	}
}

// settle trims the record of names that nothing below keeps known, and drops
// it if what is left is the ordinary case.
func (x *Radix) settle(rc *record) {
	link := x.linkLimit(rc.run, rc.holder)
	if rc.simple() {
		x.settleHoles(rc, link)
		return
	}
	// A name without copies is known while something is held strictly below.
	limit := link
	if d := rc.deepest(); d > 0 {
		limit = max(limit, d-1)
	}
	less := x.settlePile(rc, limit)
	for i := range rc.layers {
		l := &rc.layers[i]
		for p, end := limit, l.named.end(); p < end; p++ {
			x.steps++
			if l.named.has(p) && !l.heldAnywhere(p) {
				x.unname(rc, spot{layer: uint32(i)}, p)
				less = true
			}
		}
	}
	for n := len(rc.layers); n > 1 && rc.layers[n-1].nNamed == 0; n-- {
		rc.layers[n-1] = layer{}
		rc.layers = rc.layers[:n-1]
		less = true
	}
	if less {
		x.account(rc)
	}
	if rc.simple() {
		x.settleHoles(rc, link)
	}
}

// simple reports whether the record differs from the ordinary case by holes, if
// at all.
func (rc *record) simple() bool {
	l := &rc.layers[0]
	return len(rc.layers) == 1 && rc.pile == nil && len(l.copies.m) == 0 && l.nHeld[1]+l.nHeld[2]+l.nHeld[3] == 0
}

// settleHoles settles a simple record.
func (x *Radix) settleHoles(rc *record, link uint32) {
	l := &rc.layers[0]
	x.untier(rc)
	cut := l.held[0].end()
	known := max(cut, link)
	if end := l.named.end(); end > known {
		l.nNamed -= l.named.clear(known, end)
		if l.named == nil {
			x.account(rc)
		}
	}
	if int(cut) == l.nHeld[0] && int(known) == l.nNamed {
		x.dropRecord(rc)
	}
}

// unname forgets the name at a spot of pos.
func (x *Radix) unname(rc *record, at spot, pos uint32) {
	x.touch(rc.run)
	if at.layer == piled {
		x.unpile(rc, pos, at.block)
		return
	}
	l := &rc.layers[at.layer]
	l.nNamed -= l.named.clear(pos, pos+1)
	if at.layer == 0 {
		return // the shared name stays for the others
	}
	s := l.segs[pos>>segBits]
	b := s<<segBits | pos&(segBlocks-1)
	x.dropName(x.arena.at(b), b)
	lo := pos &^ (segBlocks - 1)
	for p := lo; p < lo+segBlocks; p++ {
		if l.named.has(p) {
			return
		}
	}
	x.arena.release(s)
	l.segs[pos>>segBits] = 0
}

// ownName gives the holder a name of its own at pos and returns where. The name
// must not be known to the holder at pos yet.
func (x *Radix) ownName(rc *record, pos uint32, e uint64) spot {
	x.touch(rc.run)
	i := rc.freeLayer(pos)
	if i == piled {
		b := x.pileUp(rc, pos, e)
		x.account(rc)
		return spot{piled, b}
	}
	if i == len(rc.layers) {
		rc.layers = append(rc.layers, layer{})
	}
	l := &rc.layers[i]
	for int(pos>>segBits) >= len(l.segs) {
		l.segs = append(l.segs, 0)
	}
	s := l.segs[pos>>segBits]
	if s == 0 {
		s = x.arena.alloc(rc.run.id, pos&^(segBlocks-1), rc.holder+1)
		l.segs[pos>>segBits] = s
	}
	b := s<<segBits | pos&(segBlocks-1)
	x.arena.set(b, e)
	x.enter(rc.holder, e, b)
	l.nNamed += l.named.set(pos, pos+1)
	x.account(rc)
	return spot{layer: uint32(i)}
}

// freeLayer returns the first layer of own names without one at pos; it may be
// one that does not exist yet, or piled.
func (rc *record) freeLayer(pos uint32) int {
	i := 1
	for i < len(rc.layers) && rc.layers[i].named.has(pos) {
		i++
	}
	return i
}

// layerOf returns which of the holder's layers the block's segment belongs to.
func (rc *record) layerOf(s, pos uint32) int {
	for i := 1; i < len(rc.layers); i++ {
		if k := int(pos >> segBits); k < len(rc.layers[i].segs) && rc.layers[i].segs[k] == s {
			return i
		}
	}
	return -1
}

// refresh brings the coverage up to date with the record after a change at
// position lo and beyond: what is before it and before the old cut-off is held
// as it was.
func (x *Radix) refresh(rc *record, lo uint32) {
	b := rc.run.body.Load()
	lower := false
	for i := range rc.layers {
		n := &rc.layers[i].nHeld
		lower = lower || n[1]+n[2]+n[3] > 0
	}
	if rc.pile != nil {
		n := &rc.pile.nHeld
		lower = lower || n[1]+n[2]+n[3] > 0
	}
	if lower && !rc.tiered {
		x.addTiers(b).users++
		rc.tiered = true
	}
	levels := 1
	if b.tiers.Load() != nil {
		levels = event.NumTiers
	}
	for l := 0; l < levels; l++ {
		old := b.cutOff(l, rc.holder)
		cut := rc.prefix(l, min(old, lo))
		x.steps += (int(cut-min(old, lo))>>6 + 1) * len(rc.layers)
		if cut != old {
			x.setCut(b, l, rc.holder, cut)
		}
	}
}

func (rc *record) bytes() int64 {
	n := recordBytes + sizeClass(int64(cap(rc.layers))*layerBytes) + rc.pile.bytes()
	for i := range rc.layers {
		l := &rc.layers[i]
		n += sizeClass(int64(cap(l.segs))*4) + sizeClass(int64(cap(l.named))*8) + l.copies.bytes(12+4)
		for t := range l.held {
			n += sizeClass(int64(cap(l.held[t])) * 8)
		}
	}
	return n
}

const (
	recordBytes = 64
	layerBytes  = 208
)

// recsBytes returns the memory of the run's list of records.
func recsBytes(r *run) int64 { return sizeClass(int64(cap(r.recs)) * 8) }
