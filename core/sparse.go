package core

import "math/bits"

// A holder is sparse or dense. Of a dense one each hash that it knows is in the directory. A sparse one
// has a filter of the hashes that it knows, in which a new one shows in a few ns that it is new, and the
// directory has those of its hashes alone that are likely to be asked for: near the ends of its events
// (see store.ended), what was asked for before, and what dense holders know as well. What the filter may
// have, and neither its tails nor the directory lead the holder to, is searched for in its runs. Engines go on
// where they stopped, so that is rare; a holder for which it is not becomes dense, for as long as
// it has anything, and so does one that knows many more than maxSparse hashes: that bounds a search. So does who stores little
// but what others have, until it stores more of its own.
//
// The filter has the hashes that its holder knows and no others: each goes when it ceases to be known, be it that of an
// evicted ancestor. So a search is in vain for one hash in a million, whose tags are another's.

const (
	// Who knows more than maxSparse hashes becomes dense when its filter is nearly full, or is found to be: not many more
	// are put in a filter, or searched, within the writer's longest stop; to come to a run takes as long as runCosts of them.
	maxSparse = 1 << 17
	runCosts  = 16

	// To enter them in the directory takes five times as long. So that is done some at a time, for which stores pay
	// (catchUp), and the filter is mostly not full before all are.
	enteredAtOnce = 1 << 9
	enteredFor    = 6 // by a stored block
	enteredForAny = 64
	enteredPerRun = 4

	// Who stores little but what others have has no need of a filter, and from so many hashes on takes no memory for
	// each.
	joinedBound = 32
	joinedShare = 16

	// A search looks at what it pays for: a stored block saves as much as searchedFor looked at.
	searchedFor = 16
	firstSaved  = maxSparse / 4
	mostSaved   = 16 * maxSparse

	mostAsked = 1 << 15 // filters that may be asked before others pay for it (enterForAll)
)

// filterOf returns the holder's filter, complete; nil if the holder is dense.
func (x *Radix) filterOf(h Holder, hs *holderState) *filter {
	if hs.filter != nil && hs.unfiltered {
		x.refill(h, hs, 0)
	}
	return hs.filter
}

// filterFor is filterOf with room for n hashes more.
func (x *Radix) filterFor(h Holder, hs *holderState, n int) *filter {
	if hs.filter != nil && (hs.unfiltered || hs.filter.room() < n) {
		x.refill(h, hs, n)
	}
	return hs.filter
}

// refill makes the filter anew of what the holder knows, with room for n more and as much again as half of all. It may have
// the holder become dense, or make it so.
func (x *Radix) refill(h Holder, hs *holderState, n int) {
	known, runs := 0, 0
	x.eachPresent(h, hs, func(r *run, ex *exception) bool {
		runs++
		if ex == nil {
			n, _ := x.ordinaryLens(r, h)
			known += int(n)
			return true
		}
		for i := range ex.layers {
			known += ex.layers[i].nKnown
		}
		if ex.pile != nil {
			known += len(ex.pile.hashes.m)
		}
		return true
	})
	x.steps += known
	hs.joins = known+n > x.joinedBound && hs.joined > joinedShare*hs.fresh
	size := known + n + runCosts*runs
	if hs.joins && known <= x.enteredAtOnce || size > 2*x.maxSparse {
		x.makeDense(h, hs)
		return
	}
	room := x.filterSize(known + n)
	x.typical = max(x.typical*7/8, room)
	f := newFilter(room)
	x.eachPresent(h, hs, func(r *run, ex *exception) bool {
		x.eachKnown(r, ex, h, func(lo, hi uint32) { x.refillFrom(f, r, lo, hi) })
		if ex == nil {
			return true
		}
		for i := 1; i < len(ex.layers); i++ {
			ex.layers[i].known.each(func(lo, hi uint32) {
				for p := lo; p < hi; p++ {
					f.force(&x.key, x.hashAtSpot(ex, spot{layer: uint32(i)}, p))
				}
			})
		}
		if ex.pile != nil {
			for b := range ex.pile.hashes.m {
				f.force(&x.key, x.arena.at(uint32(b)))
			}
		}
		return true
	})
	x.mem.Holders += f.bytes() - hs.filter.bytes()
	hs.filter, hs.unfiltered = f, false
	if hs.joins || size > x.maxSparse {
		x.becomeDense(h, hs)
	}
}

// catchUp does some of what waits, with each store, of so many blocks: it goes on with who becomes dense, and else fills a
// filter that a Loader has left to be, so that who asks about all holders does not wait for all of that.
func (x *Radix) catchUp(h Holder, hs *holderState, blocks int) {
	if hs != nil && hs.filter != nil && hs.filter.n > x.maxSparse && hs.filter.room() < hs.filter.n/4 {
		x.becomeDense(h, hs)
	}
	if h, hs := x.nextDense(); hs != nil {
		if x.due += enteredForAny + enteredFor*blocks; x.due >= x.enteredAtOnce {
			x.enterSome(h, hs, x.due)
			x.due = 0
		}
		return
	}
	for x.unfilled > 0 {
		x.unfilled--
		if x.unfilled >= len(x.holders) {
			continue
		}
		if hs := x.holders[x.unfilled]; hs != nil && hs.unfiltered {
			x.refill(Holder(x.unfilled), hs, 0)
			return
		}
	}
}

// filterSize returns for how many hashes room is made where there are so many: for half as many again, or up to four times
// as many, where others know that many. As engines of a fleet mostly have as much memory as one another, filters
// are made anew less often so.
func (x *Radix) filterSize(known int) int {
	return max(known*3/2, min(known*4, x.typical, x.maxSparse))
}

// refillFrom adds the shared hashes of r at lo … hi-1.
func (x *Radix) refillFrom(f *filter, r *run, lo, hi uint32) {
	for lo < hi {
		hashes := x.someHashes(r, lo, hi)
		lo += uint32(len(hashes))
		for len(hashes) > 0 {
			if hashes = hashes[f.add(&x.key, hashes):]; len(hashes) > 0 {
				f.force(&x.key, hashes[0])
				hashes = hashes[1:]
			}
		}
	}
}

// eachPresent calls f for each run that the holder is present in, with its exception there, until f returns false.
func (x *Radix) eachPresent(h Holder, hs *holderState, f func(r *run, ex *exception) bool) {
	if x.looks++; x.looks == 0 {
		for id := range uint32(x.runs.len()) {
			if r := x.run(id); r != nil {
				r.looked = 0
			}
		}
		x.looks = 1
	}
	for i := hs.runs.len() - 1; i >= 0; i-- {
		r := x.made(hs.runs.at(uint32(i)))
		if r == nil || r.looked == x.looks || !x.isListed(r, h) {
			continue
		}
		for ; r != x.root && r.looked != x.looks; r = r.parent {
			r.looked = x.looks
			x.steps++
			if !f(r, x.exceptionOf(r, h)) {
				return
			}
		}
	}
}

// eachKnown calls f for each stretch of r's shared hashes that the holder knows, whose exception there is ex.
func (x *Radix) eachKnown(r *run, ex *exception, h Holder, f func(lo, hi uint32)) {
	if ex != nil {
		ex.layers[0].known.each(f)
	} else {
		f(0, x.knownEnd(r, ex, h))
	}
}

// knownEnd returns where the last of them ends.
func (x *Radix) knownEnd(r *run, ex *exception, h Holder) uint32 {
	if ex != nil {
		return ex.layers[0].known.end()
	}
	n, _ := x.ordinaryLens(r, h)
	return n
}

// made returns a run by its id: nil if there is none but the root, or one that is being made.
func (x *Radix) made(id uint32) *run {
	if r := x.run(id); r != nil && r != x.root && r.body.Load() != nil {
		return r
	}
	return nil
}

// affordsDense reports whether the budget has room for the entries of n hashes more than those of who become dense.
func (x *Radix) affordsDense(n int) bool {
	if x.opts.Budget == 0 {
		return true
	}
	have, need := x.Memory().Total(), x.dir.need(n+x.toEnter)
	granted := have+need <= x.opts.Budget
	if x.opts.Share != nil {
		_, granted = x.opts.Share(have, need, x.opts.Budget)
	}
	return granted
}

// entering is how far a sparse holder is on its way to become dense.
type entering struct {
	hashes int    // that it knew when it set out; 0: it is not on its way
	at     uint32 // in its list of runs, of which those before are entered
	up     uint32 // of the run there, the one so many above it, as those are that it only knows what is above others in
	pos    uint32 // and what is before that in there
}

// becomeDense has what the holder knows entered, some with each store from now on, if the budget has room for that. Until all
// is, it is sparse. It reports whether the holder is on its way.
func (x *Radix) becomeDense(h Holder, hs *holderState) bool {
	if hs.entering.hashes == 0 && x.affordsDense(hs.filter.n) {
		hs.entering = entering{hashes: max(hs.filter.n, 1)}
		x.toEnter += hs.entering.hashes
		x.entering = append(x.entering, h)
	}
	return hs.entering.hashes > 0
}

// nextDense returns who is the first to become dense, or nil.
func (x *Radix) nextDense() (Holder, *holderState) {
	for ; len(x.entering) > 0; x.entering = x.entering[1:] {
		if hs := x.state(x.entering[0]); hs != nil && hs.entering.hashes > 0 {
			return x.entering[0], hs
		}
	}
	return 0, nil
}

// enterSome enters about so many of the hashes of one who becomes dense, and makes it so when it has been through its list of
// runs. It reports whether it has. What it has missed, as the list is swept and runs are joined meanwhile, is
// entered then: so nothing has to be moved with it.
func (x *Radix) enterSome(h Holder, hs *holderState, left int) (dense bool) {
	e := &hs.entering
	for ; int(e.at) < hs.runs.len(); e.at, e.up, e.pos = e.at+1, 0, 0 {
		if left <= 0 {
			return false
		}
		left -= enteredPerRun
		r := x.made(hs.runs.at(e.at))
		if r == nil {
			continue
		}
		end := x.knownEnd(r, x.exceptionOf(r, h), h)
		for up := uint32(0); up == 0 || r != x.root && !x.isListed(r, h); up++ {
			if up == e.up {
				if left -= x.enterOn(r, &e.pos, end, left); e.pos < end {
					return false
				}
				e.up, e.pos = e.up+1, 0
			}
			r, end = r.parent, r.off
		}
	}
	x.makeDense(h, hs)
	return true
}

// enterOn is enterRange from pos to end until about so many are entered. It moves pos on. Of what is entered already, up to a
// probe's counts as one.
func (x *Radix) enterOn(r *run, pos *uint32, end uint32, most int) (entered int) {
	for *pos < end && entered < most {
		n := min(end-*pos, probeHashes)
		entered += max(x.enterRange(r, *pos, *pos+n), 1)
		*pos += n
	}
	return entered
}

// makeDense enters all that the holder knows, and from here on what it comes to know.
func (x *Radix) makeDense(h Holder, hs *holderState) {
	x.dropFilter(hs)
	x.eachPresent(h, hs, func(r *run, ex *exception) bool {
		x.eachKnown(r, ex, h, func(lo, hi uint32) { x.learn(h, hs, r, lo, hi) })
		return true
	})
}

// makeSparse gives the holder a filter, to be filled.
func (x *Radix) makeSparse(hs *holderState) {
	hs.filter, hs.unfiltered, hs.joins = &filter{}, true, false
	x.mem.Holders += filterBytes
	x.sparse++
}

func (x *Radix) dropFilter(hs *holderState) {
	if hs.filter != nil {
		x.mem.Holders -= hs.filter.bytes()
		x.toEnter -= hs.entering.hashes
		hs.filter, hs.unfiltered, hs.entering = nil, false, entering{}
		x.sparse--
	}
}

// learn notes that the holder comes to know the shared hashes at lo … hi-1 of r, which are not the business of
// a filter's batch (see store.enterSparse).
func (x *Radix) learn(h Holder, hs *holderState, r *run, lo, hi uint32) {
	for p := lo; p < hi && hs.filter != nil; p++ {
		x.learnHash(h, hs, x.arena.at(r.block(p)))
	}
	if hs.filter != nil {
		return
	}
	x.enterRange(r, lo, hi) // first, so that it shows of which it is to be noted
	for ; lo < hi && x.dups.n > 0; lo = lo&^(segBlocks-1) + segBlocks {
		s := r.segs[lo>>segBits]
		in := span(lo&(segBlocks-1), min(segBlocks, hi-lo&^(segBlocks-1))) & (x.arena.head(s).entered >> segBlocks)
		for ; in != 0; in &= in - 1 {
			b := s<<segBits | uint32(bits.TrailingZeros32(in))
			x.steps++
			x.noteKnows(h, x.arena.at(b), b)
		}
	}
}

// learnHash is learn for a hash that is in the directory, or about to be. It comes before the block is noted (noteKnows): a
// holder that becomes dense is noted where it knows the hash so far.
func (x *Radix) learnHash(h Holder, hs *holderState, e uint64) {
	if hs.filter != nil && !hs.unfiltered && hs.filter.room() == 0 {
		x.refill(h, hs, 1)
	}
	if hs.filter != nil && !hs.unfiltered {
		hs.filter.force(&x.key, e)
	}
}

// unlearn takes the shared hashes at lo … hi-1 of r out of the holder's filter: it has just ceased to know them.
func (x *Radix) unlearn(hs *holderState, r *run, lo, hi uint32) {
	if hs.filter == nil || hs.unfiltered {
		return
	}
	for lo < hi {
		hashes := x.someHashes(r, lo, hi)
		hs.filter.drop(&x.key, hashes)
		lo += uint32(len(hashes))
	}
}

// unlearnHash is unlearn for one hash, whosever.
func (x *Radix) unlearnHash(hs *holderState, e uint64) {
	if hs.filter != nil && !hs.unfiltered {
		hs.filter.drop(&x.key, []uint64{e})
	}
}

// unhold is unlearn for an ordinary holder which has just ceased to hold these blocks, the last that it held of r: what is
// below may keep some known.
func (s *store) unhold(r *run, b *body, lo, hi uint32) {
	if s.hs.filter != nil && b.children.Load().maxOff() > lo {
		lo = max(lo, s.descendantLimit(r, s.h))
	}
	s.unlearn(s.hs, r, lo, hi)
}

// someHashes returns shared hashes of r from lo on, at most to hi, until it is called again.
func (x *Radix) someHashes(r *run, lo, hi uint32) []uint64 {
	dst := x.some[:0]
	for lo < hi && len(dst) < cap(dst) {
		seg := x.arena.hashes(r.segs[lo>>segBits])[lo&(segBlocks-1):]
		seg = seg[:min(len(seg), int(hi-lo), cap(dst)-len(dst))]
		dst = append(dst, seg...)
		lo += uint32(len(seg))
	}
	return dst
}

// enterSparse is enterAll for a sparse holder. It reports false, with nothing done, if the holder is dense.
func (s *store) enterSparse(t *run, base uint32, hashes []uint64) (k int, old position, again, ok bool) {
	f := s.filterFor(s.h, s.hs, len(hashes))
	if f == nil {
		return 0, old, false, false
	}
	// It ends before one that may be known, or repeated: the step of that comes after those before it.
	if k = f.add(&s.key, hashes); k == 0 {
		old, again = s.lookup(s.h, hashes[0])
		if s.hs.filter != f {
			return 0, old, false, false
		}
		f.force(&s.key, hashes[0])
		if k = 1; again {
			s.unmarkInferred(s.hs, hashes[0])
		} else {
			k += f.add(&s.key, hashes[1:])
		}
	}
	s.putHashes(t, base, hashes[:k])
	return k, old, again, true
}

// lookupSparse is lookup for a sparse holder.
func (x *Radix) lookupSparse(h Holder, hs *holderState, hash uint64) (position, bool) {
	f := x.filterOf(h, hs)
	if f == nil {
		return x.lookup(h, hash)
	}
	if !f.has(&x.key, hash) {
		return position{}, false
	}
	if b, ok := x.dir.find(hash); ok {
		if p, ok := x.leads(h, hash, b); ok {
			return p, true
		}
	}
	if hs.saved < f.n && x.becomeDense(h, hs) && x.enterSome(h, hs, 4*x.enteredAtOnce) {
		return x.lookup(h, hash)
	}
	return x.search(h, hs, hash)
}

// search looks for a hash that the directory does not lead the holder to, though it may know it, and enters
// it, with those beside it.
func (x *Radix) search(h Holder, hs *holderState, hash uint64) (found position, ok bool) {
	looked := 0
	x.eachPresent(h, hs, func(r *run, ex *exception) bool {
		n := x.knownEnd(r, ex, h)
		looked += int(n) + runCosts
		segs := r.segs[:(n+segBlocks-1)>>segBits]
		for k := x.arena.search(segs, hash); k < len(segs) && !ok; k += 1 + x.arena.search(segs[k+1:], hash) {
			s, pos := segs[k], uint32(k)<<segBits
			for i, e := range x.arena.hashes(s)[:min(segBlocks, n-pos)] {
				if e != hash { // which may stand there more than once, of which the holder knows one
					continue
				}
				if found, ok = x.at(h, s<<segBits|uint32(i)); ok {
					x.enterRange(r, pos, min(pos+segBlocks, r.body.Load().len()))
					x.noteKnows(h, hash, s<<segBits|uint32(i))
					break
				}
			}
		}
		return !ok
	})
	x.steps += looked / segBlocks
	hs.saved -= looked
	return found, ok
}

// enterForAll enters the hash wherever a sparse holder knows it.
func (x *Radix) enterForAll(hash uint64) {
	if x.sparse == 0 {
		return
	}
	for h, hs := range x.holders {
		if hs == nil || hs.filter == nil || hs.leaving {
			continue
		}
		if f := x.filterOf(Holder(h), hs); f == nil || !f.has(&x.key, hash) {
			continue
		}
		if p, ok := x.lookup(Holder(h), hash); ok && p.layer == 0 {
			x.enterRange(p.run, p.pos, p.pos+1)
			x.noteKnows(Holder(h), hash, p.run.block(p.pos))
		}
	}
	x.asked -= x.sparse
	if x.asked >= 0 {
		return
	}
	// Who is asked about so often is better off dense: those who come, and of those who are there one after the other.
	if h, hs := x.nextDense(); hs != nil {
		x.asked += min(hs.entering.hashes, x.enteredAtOnce)
		x.enterSome(h, hs, x.enteredAtOnce)
		return
	}
	for range x.holders {
		x.turn = (x.turn + 1) % len(x.holders)
		if hs := x.holders[x.turn]; hs != nil && hs.filter != nil && !hs.leaving {
			x.becomeDense(Holder(x.turn), hs)
			return
		}
	}
}
