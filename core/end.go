package core

import (
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event"
)

// What engines do most often is done here at once: to store one block more at the end of a
// run, as they generate, and to remove the last one that they have of it. Each does what Store
// and Remove would do, and changes no answer where anything about the run, the holder or the hash
// is not ordinary: then it reports false, and they do it.

// endsFor returns the entry that says that the holder has the first n blocks of the run, and
// whether nobody else has just these, if the run is ordinary: with so few holders that they are
// no wide table, the device tier only, no exceptions, and no hash of the holder's inferred.
func (r *run) endsFor(h Holder, hs *holderState, b *body, n uint32) (e *atomic.Uint64, alone bool) {
	if len(r.exceptions) > 0 || len(hs.inferred.m) > 0 || b.tiers.Load() != nil {
		return nil, false
	}
	in := b.in[:]
	if c := b.cov.Load(); c != nil {
		if c.full != nil {
			return nil, false
		}
		in = c.entries[:c.used.Load()]
	}
	alone = true
	for i := range in {
		if v := in[i].Load(); v == entry(h, n) {
			e = &in[i]
		} else if uint32(v) == n {
			alone = false
		}
	}
	return e, alone
}

// appendOne stores one block after the last of a run that the holder has all of, where
// one of its last stores ended.
func (s *store) appendOne(ev *event.Event) bool {
	if len(ev.Engine) != 1 || len(ev.Local) != 1 || !ev.HasParent || ev.Tier != event.Device || s.hs == nil {
		return false
	}
	i := s.hs.tails.find(ev.Parent)
	if i < 0 {
		return false
	}
	t := s.hs.tails.ends[i]
	r := s.run(t.run)
	if r == nil {
		return false
	}
	b, n := r.body.Load(), t.pos&^notEntered+1
	if b.len() != n || n < r.seenLen || s.arena.at(r.block(n-1)) != ev.Parent {
		return false
	}
	e, _ := r.endsFor(s.h, s.hs, b, n)
	if e == nil || b.children.Load().find(n, ev.Local[0]) != nil || s.overBudget(1, 1) {
		return false
	}
	f := s.hs.filter
	if f != nil && (s.hs.unfiltered || f.room() == 0 || f.add(&s.key, ev.Engine) == 0) {
		return false
	}
	s.preserve(r)
	if int(n) >= b.data.room() {
		b = s.roomFor(r, 1)
		e, _ = r.endsFor(s.h, s.hs, b, n)
	}
	at := s.roomForHashes(r, n)
	s.arena.set(at, ev.Engine[0])
	if f == nil {
		p := s.aimed(ev.Engine)
		p.blocks[0] = at
		if !s.dir.insertFirst(p, ev.Engine) {
			return false // the hash stands in the segment, and nobody knows of it
		}
		s.arena.mark(p.blocks[:1])
	}
	b.data.from(n)[0] = ev.Local[0]
	b.n.Store(n + 1)
	e.Store(entry(s.h, n+1))
	s.count(1)
	s.hs.tails.hashes[i], s.hs.tails.ends[i] = ev.Engine[0], end{r.id, n | notEntered}
	return true
}

// dropOne removes the block before the last removal's, where it is the last one that the holder
// has of its run, and the run goes on, or ends there and only this holder has that block.
func (m *removal) dropOne(ev *event.Event) bool {
	r, n := m.Radix.run(m.hs.last), m.hs.lastPos
	if len(ev.Engine) != 1 || ev.Tier != event.Device || r == nil || n < 2 {
		return false
	}
	b, left := r.body.Load(), n-1
	if b.len() < n || m.arena.at(r.block(left)) != ev.Engine[0] {
		return false
	}
	e, alone := r.endsFor(m.h, m.hs, b, n)
	if e == nil {
		return false
	}
	if b.len() > n { // what goes on keeps the block
		if m.isLoose(r) {
			return false
		}
		m.preserve(r)
		m.dropped(e, left)
		m.unhold(r, b, left, n)
		return true
	}
	if !alone || wasteful(b.data.room(), left) || max(b.children.Load().maxOff(), r.awaited) >= left {
		return false
	}
	m.preserve(r)
	at := r.block(left)
	m.dropped(e, left)
	m.unhold(r, b, left, n)
	r.seenLen = max(r.seenLen, n)
	b.n.Store(left)
	if m.arena.isEntered(at) {
		p := m.aimed(ev.Engine)
		p.blocks[0] = at
		m.arena.unmark(at)
		if m.dups.n > 0 || !m.dir.removeFirst(p) {
			m.takeOut(ev.Engine[0], at)
		}
	}
	if left&(segBlocks-1) == 0 {
		m.releaseSegs(r, left)
		if r.parent != m.root { // to which it may be joined now that it is shorter
			m.pendingMerges = append(m.pendingMerges, r.id)
		}
	}
	return true
}

// dropped notes that the holder has the first left blocks of the last removal's run, one less
// than it had; e is the entry that says so.
func (m *removal) dropped(e *atomic.Uint64, left uint32) {
	e.Store(entry(m.h, left))
	m.hs.lastPos = left
	m.hs.held[m.tier]--
	m.total--
	m.earn(1)
}

// aimed returns a probe of the one hash.
func (x *Radix) aimed(hash []uint64) *probe {
	if x.now.named > 0 && x.now.hashes[0] == hash[0] {
		return x.now
	}
	x.dir.locate(x.spare[0], hash)
	return x.spare[0]
}
