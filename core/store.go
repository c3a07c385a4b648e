package core

import "github.com/kvatlas/kvatlas/event"

// store is the state of one Store call; Remove, StoreFrom and Infer use it too.
//
// Readers may see the first blocks of an event before the rest: an event is not a step
// for them, a block is (see Index). For one block, what it newly means is held before
// what it meant is let go: in between, the hashes above it would have nothing below
// and be forgotten, though they are known before the step and after it.
type store struct {
	*Radix
	h Holder
	// hs is nil while the holder has nothing. It is made with the first block that is
	// held (own): what is refused or unknown leaves no state behind.
	hs     *holderState
	tier   int
	copies bool // the event's copies are counted
	// full: something of the event is refused, so all that is new after it is, too. Else
	// blocks would be held below some that are not.
	full  bool
	moved []uint64 // hashes of refused blocks that the holder knows elsewhere
	out   Outcome
}

// Store implements Index.
func (x *Radix) Store(h Holder, ev *event.Event, countCopies bool) Outcome {
	hs := x.state(h)
	x.catchUp(h, hs, len(ev.Engine))
	s := store{Radix: x, h: h, hs: hs, tier: int(ev.Tier), copies: countCopies}
	switch {
	case s.appendOne(ev):
		if len(x.looseIDs) > 0 {
			x.tighten()
		}
		return Outcome{Stored: 1}
	case ev.Tier >= event.NumTiers:
	case len(ev.Local) == 0:
		s.byHash(ev.Engine)
	default:
		s.byContent(ev)
	}
	x.mergePending()
	x.releaseHolder(h)
	return s.out
}

// byContent stores blocks with their content. It walks the chain as a lookup does:
// (r, o) is where the blocks so far ended, after o blocks of r, and each round takes
// what can be done at once. That is blocks whose content r has there, of any holder, or
// no block where a child of r begins with the next one, or of the rest, whose content is
// new, as many as one step can enter.
func (s *store) byContent(ev *event.Event) {
	r, o := s.root, uint32(0)
	if ev.HasParent {
		p, ok := s.lookup(s.h, ev.Parent)
		if !ok {
			s.out.UnknownParent = len(ev.Engine)
			return
		}
		r, o = p.run, p.pos+1
	}
	n := min(len(ev.Engine), len(ev.Local))
	hashes, local := ev.Engine[:n], ev.Local[:n]
	for len(hashes) > 0 {
		k := 0
		b := r.body.Load()
		if n := b.len(); o < n {
			if m := b.data.match(o, n, local); m > 0 {
				if k = s.storeExisting(r, o, hashes[:m]); k == 0 { // beyond the budget
					k = m
					s.refuse(hashes[:m], r, o)
				}
				o += uint32(k)
			}
		}
		if k == 0 {
			if c := b.children.Load().find(o, local[0]); c != nil {
				r, o = c, 0
				continue
			}
			n := s.stepOf(hashes)
			if s.overBudget(n, n) {
				s.refuse(hashes, nil, 0)
				break
			}
			k, r, o = s.storeNew(r, o, hashes[:n], local[:n])
		}
		hashes, local = hashes[k:], local[k:]
	}
	if s.full {
		// Only now: forgetting may free the runs that the walk stood in.
		s.out.Replaced += s.forget(s.h, s.moved)
		return
	}
	if o > 0 {
		s.ended(ev, r, o)
	}
}

// own makes what is kept of the holder, before the first block is held.
func (s *store) own() {
	if s.hs == nil {
		s.hs = s.holder(s.h)
	}
}

// byHash stores blocks whose content is known by their hashes alone. Their places in
// the event say nothing: each is stored at the position that its hash has, and one that
// is unknown stops none of the others. Beyond the budget what changes nothing counts
// as a duplicate still; a further copy does not, as it takes memory.
func (s *store) byHash(hashes []uint64) {
	if s.hs == nil {
		s.out.UnknownBlock = len(hashes)
		return
	}
	for _, e := range hashes {
		p, ok := s.lookup(s.h, e)
		if !ok {
			s.out.UnknownBlock++
			continue
		}
		if s.overBudget(0, 0) && (s.copies || !s.holdsAt(p)) {
			s.full = true
			s.out.Refused++
			continue
		}
		s.hold(p.run, p.pos, p.pos+1, p.spot)
	}
}

// storeExisting stores blocks whose content r already has from o on. It returns how
// many it took; none if they are to be refused.
//
// The blocks that begin the stretch are of one kind, and only those are taken: such as
// the holder calls by the shared hashes, which cost it nothing but a held length; or such
// as it calls otherwise, which need an exception and go into one layer of it; or a
// single one whose hash it knew at another position.
func (s *store) storeExisting(r *run, o uint32, hashes []uint64) int {
	k := s.sameHashes(r, o, hashes)
	fresh := 0 // hashes that may take memory
	if k == 0 {
		fresh = s.stepOf(hashes)
		hashes = hashes[:fresh]
	}
	if s.overBudget(fresh, max(fresh, k)) {
		return s.storeExistingFull(r, o, hashes)
	}
	s.own()
	if k > 0 {
		return s.storeShared(r, o, hashes[:k])
	}
	// Hashes of the holder's own: as many as go into one layer, which is what hold can
	// mark at once, and up to where the shared ones fit again.
	at := spot{}
	for k < len(hashes) && (k == 0 || s.arena.at(r.block(o+uint32(k))) != hashes[k]) {
		e, pos := hashes[k], o+uint32(k)
		if k%probeHashes == 0 && s.hs.filter == nil {
			s.dir.locate(s.spare[0], hashes[k:])
		}
		p, known := s.lookup(s.h, e)
		here := known && p.run == r && p.pos == pos
		if known && !here { // it is rebound: a step of its own, after those before are held
			if k == 0 {
				s.unmarkInferred(s.hs, e)
				s.hold(r, pos, pos+1, s.addOwnHash(s.makeException(r, s.h), pos, e))
				s.rebound(p)
				return 1
			}
			break
		}
		to := p.spot
		if !here {
			ex := s.makeException(r, s.h)
			if l := ex.freeLayer(pos); k > 0 && (l == piled || uint32(l) != at.layer) {
				break
			}
			to = s.addOwnHash(ex, pos, e)
		}
		if k > 0 && to != at {
			break
		}
		at = to
		if k++; at.layer == piled {
			break // a pile has its hashes one by one
		}
	}
	s.hold(r, o, o+uint32(k), at)
	return k
}

// storeShared is storeExisting for blocks that r calls as the event does. What the holder knows here it knows nowhere
// else; of the others each may be known to a sparse holder elsewhere that its filter may have, and to a dense one only such as
// lead to more than one block once they are entered: all such hashes are in dups.
func (s *store) storeShared(r *run, o uint32, hashes []uint64) int {
	ex, known := s.exceptionOf(r, s.h), uint32(0)
	if ex == nil {
		known, _ = s.ordinaryLens(r, s.h)
	}
	i := min(int(max(known, o)-o), len(hashes))
	s.hs.joined += int64(len(hashes) - i)
	f := s.filterFor(s.h, s.hs, len(hashes)-i)
	if f == nil {
		s.enterRange(r, o+uint32(i), o+uint32(len(hashes)))
	}
	for ; i < len(hashes); i++ {
		if f != nil {
			if i += f.add(&s.key, hashes[i:]); i == len(hashes) {
				break
			}
		} else if i += s.leadingOnce(hashes[i:]); i == len(hashes) {
			break
		}
		e, pos := hashes[i], o+uint32(i)
		if ex != nil && ex.layers[0].known.has(pos) {
			continue
		}
		if i > 0 { // hold what is before: the hash may repeat in it
			hashes = hashes[:i]
			break
		}
		p, ok := s.lookup(s.h, e) // before it is noted here: what it meant so far
		if s.hs.filter != f {
			return s.storeShared(r, o, hashes)
		}
		s.learnHash(s.h, s.hs, e)
		s.noteKnows(s.h, e, r.block(o))
		if ok {
			s.unmarkInferred(s.hs, e)
			s.hold(r, o, o+1, spot{})
			s.rebound(p)
			return 1
		}
	}
	s.hold(r, o, o+uint32(len(hashes)), spot{})
	return len(hashes)
}

// leadingOnce returns how many of the leading hashes lead to one block each.
func (x *Radix) leadingOnce(hashes []uint64) int {
	for i, e := range hashes {
		if x.dups.n == 0 {
			break
		}
		if _, ok := x.dups.get(e); ok {
			return i
		}
	}
	return len(hashes)
}

// storeNew stores blocks whose content is new after o blocks of r. It returns
// how many it took, at least one, and where that ended.
//
// The order is that of readers' trust (see body): hashes, which readers do not use, then
// content, then its length or the body of a new run, then who holds it, and a new run
// becomes its parent's child last. Only when all that stands is the position let go
// that the first hash meant before.
func (s *store) storeNew(r *run, o uint32, hashes, local []uint64) (int, *run, uint32) {
	s.own()
	s.preserve(r)
	t, base := r, o
	fresh := false // a new run; else r grows at its end
	if r == s.root || o < r.body.Load().len() || o < r.seenLen && !s.spend(r.crowd()) {
		if r != s.root && s.swappable(r, o, len(hashes)) {
			s.swap(r, o, len(hashes))
		} else {
			t, base, fresh = s.newRun(r, o, local[0]), 0, true
		}
	}
	s.expectHashes(t, base+uint32(len(hashes)))
	if s.hs.joins && s.hs.filter == nil && s.hs.joined <= joinedShare*s.hs.fresh && s.hs.live*runCosts < s.maxSparse {
		s.makeSparse(s.hs)
	}
	k, old, again := s.enterAll(t, base, hashes)
	s.hs.fresh += int64(k)
	if fresh {
		total := k
		if k >= pieceBlocks { // a prompt: what an engine generates for it mostly follows
			total = withSlack(k)
		}
		t.publish(s.newBody(newContent(local[:k], total), uint32(k)))
	} else {
		b := s.roomFor(t, k)
		b.data.write(base, local[:k])
		b.n.Store(base + uint32(k))
	}
	s.hold(t, base, base+uint32(k), spot{})
	if fresh {
		s.attach(t)
	}
	if again {
		s.rebound(old)
	}
	return k, t, base + uint32(k)
}

// enterAll makes hashes the shared hashes of t from base on. It stops before one
// that is known to the holder elsewhere; if that is the first it takes it alone,
// and returns the position that the hash had (again).
//
// For a dense holder addHashes writes a batch into the segments before it is known how much of it can be
// entered. What is written and not entered is nobody's: no directory entry leads there,
// and whoever stores these positions next writes over it.
func (s *store) enterAll(t *run, base uint32, hashes []uint64) (k int, old position, again bool) {
	if k, old, again, ok := s.enterSparse(t, base, hashes); ok {
		return k, old, again
	}
	batch := hashes[:min(probeHashes, len(hashes))]
	now, ahead := s.now, s.spare[0]
	if !now.of(batch) { // nobody told of this event beforehand (Prefetch)
		now = s.spare[1]
		s.dir.locate(now, batch)
	}
	for {
		// The next batch's cache misses pass while this one is entered.
		after := hashes[k+len(batch):]
		after = after[:min(probeHashes, len(after))]
		if len(after) > 0 {
			s.dir.locate(ahead, after)
		}
		s.addHashes(t, base+uint32(k), batch, &now.blocks)
		n := s.dir.insertAll(now, batch)
		s.arena.mark(now.blocks[:n])
		if k += n; n == len(batch) {
			if len(after) == 0 {
				return k, old, false
			}
			if now == s.now {
				now = s.spare[1]
			}
			now, ahead = ahead, now
			batch = after
			continue
		}
		// The next one is taken, or its leaf must grow.
		e := batch[n]
		_, taken := s.dir.find(e)
		if taken {
			if s.within(t, base, e) {
				return k, old, false // a repetition inside this event
			}
			p, known := s.lookup(s.h, e)
			if known && k > 0 {
				return k, old, false // its step comes after those before it
			}
			if old, again = p, known; known {
				s.unmarkInferred(s.hs, e)
			}
		}
		s.enter(s.h, e, now.blocks[n])
		if k++; again || k == len(hashes) {
			return k, old, again
		}
		batch = hashes[k:min(k+probeHashes, len(hashes))]
		s.dir.locate(now, batch)
	}
}

// Prefetch implements Prefetcher: the next event's cache misses pass while this one is applied. The filter's line of a single
// block was asked for before (PrefetchSingles).
// For a dense holder the probe that was made for the event to come becomes that of the event at
// hand, and the other one is made anew.
func (x *Radix) Prefetch(h Holder, ev *event.Event) {
	x.now, x.ahead = x.ahead, x.now
	askFirst(ev.Local)
	if hs := x.state(h); hs != nil && hs.filter != nil {
		if x.ahead.named = 0; len(ev.Engine) > 1 {
			hs.filter.ask(&x.key, ev.Engine)
		}
		return
	}
	x.dir.locate(x.ahead, ev.Engine)
	x.ahead.named = copy(x.ahead.hashes[:], ev.Engine)
}

// PrefetchSingles implements Prefetcher: of a sparse holder the lines in its filter come all at once. One after the other most
// of the time that they save would go to translating their addresses, for which a processor waits when it asks for a line.
func (x *Radix) PrefetchSingles(h Holder, hashes []uint64) {
	if hs := x.state(h); hs != nil && hs.filter != nil {
		hs.filter.ask(&x.key, hashes)
	}
}

// rebound ends what a hash meant to the holder before it was bound anew.
func (s *store) rebound(old position) {
	s.out.Replaced++
	s.unbind(s.h, s.hs, old)
}

// hold makes positions lo … hi-1 of r held by the hashes of a layer, or one
// position by a piled hash. The holder need not know them yet; but its filter has them, or they are entered
// and noted as its own where that is needed (noteKnows).
func (s *store) hold(r *run, lo, hi uint32, at spot) {
	if s.onDevice() {
		s.holdInferred(r, lo, hi, at)
		return
	}
	s.holdOrdinary(r, lo, hi, at)
}

// holdOrdinary is hold where no position is inferred. Most stores end in its first
// half: the blocks follow those that the holder has in r, or are among them, so that
// one atomic store of a held length says all. Whatever else it is, a hole before
// them, a lower tier, a second copy or a hash of its own, needs an exception.
func (s *store) holdOrdinary(r *run, lo, hi uint32, at spot) {
	s.preserve(r)
	ex := s.exceptionOf(r, s.h)
	if ex == nil && at.layer == 0 && s.tier == 0 {
		b := r.body.Load()
		held := b.heldLen(0, s.h)
		if lo <= held && !(s.copies && lo < held) {
			s.out.Duplicate += int(min(hi, held) - lo)
			if hi > held {
				if held == 0 {
					s.enterRun(r, s.h) // which keeps the hashes of the ancestors known
				}
				s.setHeldLens(b, s.h, hi)
				s.count(int(hi - held))
			}
			return
		}
	}
	ex = s.makeException(r, s.h)
	n := 0
	if at.layer == piled {
		if c := ex.copiesOf(at, s.tier, lo); c == 0 || s.copies {
			ex.setCopies(at, s.tier, lo, moreCopies(c, 1))
			n = int(1 - min(c, 1))
		}
	} else {
		n = ex.layers[at.layer].hold(s.tier, lo, hi, s.copies)
	}
	s.recomputeBytes(ex)
	s.count(n)
	s.out.Duplicate += int(hi-lo) - n
	s.recomputeCoverage(ex, lo, hi)
	s.trimException(ex)
}

// hold makes the hashes at positions lo … hi-1 known and gives each a copy, a further
// one if copies are counted, and returns how many had none.
func (l *layer) hold(tier int, lo, hi uint32, copies bool) int {
	l.nKnown += l.known.set(lo, hi)
	if copies {
		for p := lo; p < hi; p++ {
			if l.held[tier].has(p) {
				k := copyKey(tier, p)
				l.copies.set(k, moreCopies(l.copies.m[k]+1, 1)-1)
			}
		}
	}
	n := l.held[tier].set(lo, hi)
	l.nHeld[tier] += n
	return n
}

func (s *store) count(n int) {
	s.out.Stored += n
	s.hs.held[s.tier] += n
	s.hs.saved = min(s.hs.saved+searchedFor*n, mostSaved)
	s.asked = min(s.asked+n, mostAsked)
	s.total += n
	s.owed += n
	s.earn(n)
}
