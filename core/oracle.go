package core

import (
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// Oracle is the reference implementation of [Index]: the semantics written
// down as literally as a program can, to judge the others by. Every holder has
// its own plain trie; a lookup walks all of them. It is not safe for
// concurrent use, Find included.
type Oracle struct {
	holders map[Holder]*oracleHolder
}

var _ Index = (*Oracle)(nil)

// oracleHolder is what one holder has.
type oracleHolder struct {
	hashes map[uint64]*oracleHash
	root   *oraclePosition
	held   [event.NumTiers]int // hashes with copies, per tier
}

// oracleHash is an engine hash that the holder knows.
type oracleHash struct {
	engine   uint64
	position *oraclePosition
	copies   [event.NumTiers]uint32

	inferred bool // its device copy is
}

func (n *oracleHash) held() bool { return n.copies != [event.NumTiers]uint32{} }

// oraclePosition is one block of content after its parent. It exists while a hash
// with copies is at it or below it; so a position with children is exactly one
// that has, strictly below it, a hash with copies.
type oraclePosition struct {
	parent   *oraclePosition // nil for the root, which is no block
	local    uint64
	seq      uint64
	depth    int // blocks from the root, this one included
	children map[uint64]*oraclePosition
	hashes   []*oracleHash
}

func (p *oraclePosition) held(t event.Tier) bool {
	return slices.ContainsFunc(p.hashes, func(n *oracleHash) bool { return n.copies[t] > 0 })
}

// child returns the position of local after p, made if absent.
func (p *oraclePosition) child(local uint64) *oraclePosition {
	if c := p.children[local]; c != nil {
		return c
	}
	c := &oraclePosition{parent: p, local: local, seq: local, depth: p.depth + 1}
	if p.parent != nil {
		c.seq = blockhash.NextSequenceHash(p.seq, local)
	}
	if p.children == nil {
		p.children = make(map[uint64]*oraclePosition)
	}
	p.children[local] = c
	return c
}

// NewOracle returns an empty Oracle.
func NewOracle() *Oracle {
	return &Oracle{holders: make(map[Holder]*oracleHolder)}
}

// holder returns h's state, made if absent.
func (o *Oracle) holder(h Holder) *oracleHolder {
	s := o.holders[h]
	if s == nil {
		s = &oracleHolder{hashes: make(map[uint64]*oracleHash), root: &oraclePosition{}}
		o.holders[h] = s
	}
	return s
}

// Store implements [Index].
func (o *Oracle) Store(h Holder, ev *event.Event, countCopies bool) Outcome {
	var out Outcome
	if ev.Tier >= event.NumTiers {
		return out
	}
	s := o.holder(h)
	if len(ev.Local) == 0 {
		for _, e := range ev.Engine {
			if n := s.hashes[e]; n != nil {
				s.add(n, ev.Tier, countCopies, &out)
			} else {
				out.UnknownBlock++
			}
		}
		return out
	}
	at := s.root
	if ev.HasParent {
		n := s.hashes[ev.Parent]
		if n == nil {
			out.UnknownParent += len(ev.Engine)
			return out
		}
		at = n.position
	}
	for i := range min(len(ev.Engine), len(ev.Local)) {
		at = at.child(ev.Local[i])
		s.bind(ev.Engine[i], at, ev.Tier, countCopies, &out)
	}
	return out
}

// StoreCopies implements [Index].
func (o *Oracle) StoreCopies(h Holder, tier event.Tier, hash uint64, n uint32) Outcome {
	if n == 0 {
		return Outcome{}
	}
	out := o.Store(h, &event.Event{Kind: event.Stored, Tier: tier, Engine: []uint64{hash}}, true)
	if out.Stored+out.Duplicate > 0 {
		have := &o.holder(h).hashes[hash].copies[tier]
		*have = moreCopies(*have, n-1)
	}
	return out
}

// bind makes engine the hash of the position and stores it there. The new position
// is held before the old one is let go, so the step forgets no hash that has
// the block below it both before and after.
func (s *oracleHolder) bind(engine uint64, at *oraclePosition, t event.Tier, countCopies bool, out *Outcome) {
	n := s.hashes[engine]
	var old *oraclePosition
	if n != nil && n.position != at {
		out.Replaced++
		old = n.position
		s.unbind(n)
		n = nil
	}
	if n == nil {
		n = &oracleHash{engine: engine, position: at}
		s.hashes[engine] = n
		at.hashes = append(at.hashes, n)
	}
	s.add(n, t, countCopies, out)
	if old != nil {
		s.prune(old)
	}
}

// add stores one copy of a known hash.
func (s *oracleHolder) add(n *oracleHash, t event.Tier, countCopies bool, out *Outcome) {
	switch {
	case n.inferred && t == event.Device:
		n.inferred = false
	case n.copies[t] == 0:
		n.copies[t] = 1
		s.held[t]++
		out.Stored++
		return
	case countCopies:
		n.copies[t] = moreCopies(n.copies[t], 1)
	}
	out.Duplicate++
}

// drop takes all copies on a tier away and reports whether there were any.
func (s *oracleHolder) drop(n *oracleHash, t event.Tier) bool {
	if n.copies[t] == 0 {
		return false
	}
	n.copies[t] = 0
	n.inferred = n.inferred && t != event.Device
	s.held[t]--
	return true
}

// unbind takes a hash with all its copies off its position, which the caller
// then prunes.
func (s *oracleHolder) unbind(n *oracleHash) {
	for t := range event.Tier(event.NumTiers) {
		s.drop(n, t)
	}
	delete(s.hashes, n.engine)
	i := slices.Index(n.position.hashes, n)
	n.position.hashes = slices.Delete(n.position.hashes, i, i+1)
}

// prune forgets the hashes without copies at p if nothing below it is held,
// then p itself if that leaves nothing, then looks at its parent.
func (s *oracleHolder) prune(p *oraclePosition) {
	for p.parent != nil && len(p.children) == 0 {
		p.hashes = slices.DeleteFunc(p.hashes, func(n *oracleHash) bool {
			if n.held() {
				return false
			}
			delete(s.hashes, n.engine)
			return true
		})
		if len(p.hashes) > 0 {
			return
		}
		delete(p.parent.children, p.local)
		p = p.parent
	}
}

// Remove implements [Index].
func (o *Oracle) Remove(h Holder, ev *event.Event, countCopies bool) Outcome {
	var out Outcome
	if ev.Tier >= event.NumTiers {
		return out
	}
	s := o.holder(h)
	for _, e := range ev.Engine {
		n := s.hashes[e]
		switch {
		case n == nil || n.copies[ev.Tier] == 0:
			out.Unknown++
		case countCopies && n.copies[ev.Tier] > 1:
			n.copies[ev.Tier]--
			out.Decremented++
		default:
			s.drop(n, ev.Tier)
			out.Removed++
			s.prune(n.position)
		}
	}
	return out
}

// Clear implements [Index].
func (o *Oracle) Clear(h Holder, tier event.Tier, allTiers bool) Outcome {
	var out Outcome
	s := o.holder(h)
	for _, n := range s.sorted() {
		for t := range event.Tier(event.NumTiers) {
			if (allTiers || t == tier) && s.drop(n, t) {
				out.Removed++
				s.prune(n.position)
			}
		}
	}
	return out
}

// Knows implements [Index].
func (o *Oracle) Knows(h Holder, engine uint64) bool {
	s := o.holders[h]
	return s != nil && s.hashes[engine] != nil
}

// KnowsAny implements [Index].
func (o *Oracle) KnowsAny(h Holder, engine []uint64) bool {
	return slices.ContainsFunc(engine, func(e uint64) bool { return o.Knows(h, e) })
}

// Forget implements [Index].
func (o *Oracle) Forget(h Holder, engine []uint64) int {
	known := 0
	s := o.holder(h)
	for _, e := range engine {
		if n := s.hashes[e]; n != nil {
			known++
			s.unbind(n)
			s.prune(n.position)
		}
	}
	return known
}

// Find implements [Index], but for the promise about concurrent writers.
func (o *Oracle) Find(local []uint64, m *Matches) {
	m.Reset()
	m.tiered = true
	for _, h := range o.Holders() {
		for t := range event.Tier(event.NumTiers) {
			if d := o.holders[h].depth(local, t); d > 0 {
				m.at(h)[t] = d
			}
		}
	}
}

// depth returns the length of the longest prefix of local whose blocks are
// each held on at least one tier at or below level.
func (s *oracleHolder) depth(local []uint64, level event.Tier) uint32 {
	p := s.root
	for i, l := range local {
		p = p.children[l]
		if p == nil {
			return uint32(i)
		}
		onTier := false
		for t := range level + 1 {
			onTier = onTier || p.held(t)
		}
		if !onTier {
			return uint32(i)
		}
	}
	return uint32(len(local))
}

// Empty implements [Index].
func (o *Oracle) Empty(h Holder) bool {
	s := o.holders[h]
	return s == nil || len(s.hashes) == 0
}

// Held implements [Index].
func (o *Oracle) Held(h Holder, tier event.Tier) int {
	s := o.holders[h]
	if s == nil || tier >= event.NumTiers {
		return 0
	}
	return s.held[tier]
}

// Digest implements [Index].
func (o *Oracle) Digest(space uint64, identity func(Holder) (worker uint64, dpRank uint32)) uint64 {
	var sum uint64
	for h, s := range o.holders {
		worker, rank := identity(h)
		for _, n := range s.hashes {
			for t, c := range n.copies {
				if c > 0 {
					sum += DigestTerm(space, worker, rank, event.Tier(t), 0, n.engine, n.position.seq, c)
				}
			}
		}
	}
	return sum
}

// Dump implements [Index].
func (o *Oracle) Dump(h Holder, f func(ev *event.Event, copies []uint32) bool) {
	s := o.holders[h]
	if s == nil {
		return
	}
	names := s.sorted()
	for _, n := range names {
		ev := event.Event{Kind: event.Stored}
		// Positions that the holder has no hash for lie between some blocks and
		// their nearest ancestor with a hash; the block's own hash passes over them.
		for p := n.position; p.parent != nil; p = p.parent {
			if p != n.position && len(p.hashes) > 0 {
				ev.HasParent, ev.Parent = true, p.hashes[0].engine
				break
			}
			ev.Engine = append(ev.Engine, n.engine)
			ev.Local = append(ev.Local, p.local)
		}
		slices.Reverse(ev.Local)
		copies := make([]uint32, len(ev.Engine))
		copies[len(copies)-1] = n.copies[event.Device]
		if !f(&ev, copies) {
			return
		}
	}
	for t := event.Device + 1; t < event.NumTiers; t++ {
		ev := event.Event{Kind: event.Stored, Tier: t}
		var copies []uint32
		for _, n := range names {
			if c := n.copies[t]; c > 0 {
				ev.Engine, copies = append(ev.Engine, n.engine), append(copies, c)
			}
		}
		if len(copies) > 0 && !f(&ev, copies) {
			return
		}
	}
}

// sorted returns the holder's hashes, parents before children.
func (s *oracleHolder) sorted() []*oracleHash {
	return slices.SortedFunc(maps.Values(s.hashes), func(a, b *oracleHash) int {
		if a.position.depth != b.position.depth {
			return a.position.depth - b.position.depth
		}
		if a.engine < b.engine {
			return -1
		}
		return 1
	})
}

// Holders returns the holders that have any hash, ascending.
func (o *Oracle) Holders() []Holder {
	hs := make([]Holder, 0, len(o.holders))
	for h, s := range o.holders {
		if len(s.hashes) > 0 {
			hs = append(hs, h)
		}
	}
	slices.Sort(hs)
	return hs
}

// KnownHash is one engine hash that a holder knows.
type KnownHash struct {
	Engine uint64
	Seq    uint64                 // sequence hash of its position
	Depth  int                    // blocks from the root to its position, included
	Copies [event.NumTiers]uint32 // all 0: known for what is below only
}

// KnownHashes returns everything that h knows, parents before children.
func (o *Oracle) KnownHashes(h Holder) []KnownHash {
	s := o.holders[h]
	if s == nil {
		return nil
	}
	var names []KnownHash
	for _, n := range s.sorted() {
		names = append(names, KnownHash{n.engine, n.position.seq, n.position.depth, n.copies})
	}
	return names
}

// KnownHash returns what h knows by the engine hash, and whether it does.
func (o *Oracle) KnownHash(h Holder, engine uint64) (KnownHash, bool) {
	if !o.Knows(h, engine) {
		return KnownHash{}, false
	}
	n := o.holders[h].hashes[engine]
	return KnownHash{n.engine, n.position.seq, n.position.depth, n.copies}, true
}

// Chain returns the local hashes from the root to the position that engine names
// for h, or nil.
func (o *Oracle) Chain(h Holder, engine uint64) []uint64 {
	s := o.holders[h]
	if s == nil || s.hashes[engine] == nil {
		return nil
	}
	var local []uint64
	for p := s.hashes[engine].position; p.parent != nil; p = p.parent {
		local = append(local, p.local)
	}
	slices.Reverse(local)
	return local
}
