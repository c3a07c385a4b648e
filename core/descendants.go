package core

// descendants counts, for a holder and a run, the child runs in which the holder is
// present: holds blocks, or has descendants further down in turn. It is what keeps
// the hashes of evicted ancestors known. It knows where they are attached, so that
// the highest offset is found without a look at the children of other holders.
//
// Invariant, between writes: for each holder and each run c but the root's children, c is
// counted, with its offset, at its parent if and only if the holder is present in c. So
// what a removal in a deep run ends is found by going up, and stops where the holder
// has something else.
type descendants struct {
	count uint32
	few   [fewDescendants]uint32 // their offsets, where there are no more
	more  *offsets               // else
}

const (
	fewDescendants   = 3
	descendantsBytes = 8 + 24 // of an entry in the map
	offsetsBytes     = 48
)

func (l *descendants) bytes() int64 {
	if l.more == nil {
		return 0
	}
	return offsetsBytes + l.more.bytes()
}

func (l *descendants) add(off uint32) {
	switch {
	case l.more != nil:
		l.more.add(off)
	case l.count < fewDescendants:
		l.few[l.count] = off
	default:
		l.more = &offsets{in: make([]uint32, 0, 2*fewDescendants)}
		for _, o := range l.few {
			l.more.add(o)
		}
		l.more.add(off)
	}
	l.count++
}

func (l *descendants) remove(off uint32) {
	l.count--
	if l.more == nil {
		for i, o := range l.few[:l.count] {
			if o == off {
				l.few[i] = l.few[l.count]
				break
			}
		}
		return
	}
	if l.more.remove(off); l.count < fewDescendants {
		l.more.compact()
		copy(l.few[:], l.more.in)
		l.more = nil
	}
}

func (l *descendants) max() uint32 {
	if l.more != nil {
		return l.more.max()
	}
	m := uint32(0)
	for _, o := range l.few[:l.count] {
		m = max(m, o)
	}
	return m
}

// childRunsOf returns in how many child runs of r h is present.
func (x *Radix) childRunsOf(r *run, h Holder) uint32 {
	l, _ := x.descendants.get(runHolderKey(r, h))
	return l.count
}

// present reports whether h holds anything in r or below it.
func (x *Radix) present(r *run, h Holder) bool { return x.isListed(r, h) || x.childRunsOf(r, h) > 0 }

// isListed reports whether h holds anything in r itself: then r is in its list of runs.
func (x *Radix) isListed(r *run, h Holder) bool {
	return r.body.Load().heldLen(0, h) > 0 || x.exceptionOf(r, h) != nil
}

// descendantLimit returns how many leading blocks of r have, in a child run, blocks
// of h below them.
func (x *Radix) descendantLimit(r *run, h Holder) uint32 {
	l, _ := x.descendants.get(runHolderKey(r, h))
	return l.max()
}

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

// addDescendant counts h's presence in a child of r at off.
func (x *Radix) addDescendant(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := runHolderKey(r, h)
	l, _ := x.descendants.get(k)
	x.mem.Descendants -= l.bytes()
	l.add(off)
	x.mem.Descendants += l.bytes()
	x.descendants.set(k, l)
}

// dropDescendant takes it back.
func (x *Radix) dropDescendant(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := runHolderKey(r, h)
	l, _ := x.descendants.get(k)
	was := l.max()
	x.mem.Descendants -= l.bytes()
	l.remove(off)
	x.mem.Descendants += l.bytes()
	if now := l.max(); now < was && x.holders[h].filter != nil && x.exceptionOf(r, h) == nil {
		x.unlearn(x.holders[h], r, max(now, r.body.Load().heldLen(0, h)), was)
	}
	if l.count == 0 {
		x.descendants.drop(k)
		return
	}
	x.descendants.set(k, l)
}

// enterRun notes that h, so far without blocks in r, gets some. It goes up by one run
// only, as h is present in r's parent: blocks are stored below what h knows, and who
// adds others (ownPath, Loader.reach) begins at the top.
func (x *Radix) enterRun(r *run, h Holder) {
	x.listRun(r, h)
	if x.childRunsOf(r, h) == 0 {
		x.addDescendant(r.parent, r.off, h)
	}
}

// enterNewRun is enterRun for a run that nothing hangs on yet.
func (x *Radix) enterNewRun(r *run, h Holder) {
	x.listRun(r, h)
	x.addDescendant(r.parent, r.off, h)
}

// listRun enters r in h's list of runs.
func (x *Radix) listRun(r *run, h Holder) {
	hs := x.holders[h]
	x.appendRun(r, h, hs)
	if hs.live++; hs.live == 1 {
		x.active++
	}
}

// appendRun puts r at the end of h's list of runs.
func (x *Radix) appendRun(r *run, h Holder, hs *holderState) {
	x.owed += runCost
	if x.sweep.hs == nil && hs.runs.len() >= 2*hs.live+32 {
		x.marks++
		x.sweep = sweep{h: h, hs: hs, mark: x.marks, walk: -1}
	}
	if x.sweep.hs != nil {
		x.sweepOn(sweepStep)
	}
	if !hs.runs.grows() {
		hs.runs.add(r.id)
		return
	}
	x.mem.Holders -= hs.runs.bytes(4)
	hs.runs.add(r.id)
	x.mem.Holders += hs.runs.bytes(4)
}

// sweep takes runs that a holder has left, and repetitions, out of its list. Leaving a run does
// not: it would have to search. There is one sweep at a time, which goes on by some entries each time that a run
// is entered in anybody's list, so that no write waits for all of a long one. The list is twice as long as it
// need be, plus 32, when its turn has come, so each entry pays for its own removal.
type sweep struct {
	h        Holder
	hs       *holderState // nil: nothing is swept
	at, keep int          // the list's entries before at are looked at, those before keep stay; between are zeros
	mark     uint32       // of the runs that stay, and that no walk has passed since
	walk     int          // where the holder's walk was when the sweep last went on
}

// sweepStep is how many entries a sweep looks at for each that is made. There are as many holders as there like to be
// whose lists wait meanwhile: these become longer by no more than one part in so many of all that is swept before.
const sweepStep = 256

func (x *Radix) sweepOn(amount int) {
	s := &x.sweep
	hs, walk, walked := s.hs, x.walks[s.h], -1
	if walk != nil {
		if walk.at < s.at && walk.at != s.walk {
			x.marks++ // what the walk comes to is no repetition of what it has passed
			s.mark = x.marks
		}
		if walk.at >= s.keep && walk.at < s.at { // among the zeros, to which what it has not come to moves now
			walk.at = s.keep
		}
	}
	for ; s.at < hs.runs.len() && amount > 0; s.at++ {
		amount--
		x.steps++
		if walk != nil && s.at == walk.at {
			walked = s.keep
			x.marks++ // here, too
			s.mark = x.marks
		}
		id := hs.runs.at(uint32(s.at))
		hs.runs.set(uint32(s.at), 0)
		if r := x.run(id); r != nil && r != x.root && r.mark != s.mark && x.isListed(r, s.h) {
			r.mark = s.mark
			hs.runs.set(uint32(s.keep), id)
			s.keep++
		}
	}
	if walked >= 0 {
		walk.at = walked
	}
	if walk != nil {
		s.walk = walk.at
	}
	if s.at < hs.runs.len() {
		return
	}
	if walk != nil {
		walk.at = min(walk.at, s.keep)
	}
	x.mem.Holders -= hs.runs.bytes(4)
	hs.runs.cut(s.keep)
	hs.runs.fit()
	x.mem.Holders += hs.runs.bytes(4)
	x.sweep = sweep{}
}

func (x *Radix) run(id uint32) *run {
	if int(id) >= x.runs.len() {
		return nil
	}
	return x.runs.at(id)
}

// releasePresence follows up on h having lost blocks in r: exceptions are trimmed and the
// presence that ended is taken back, up the ancestors.
func (x *Radix) releasePresence(r *run, h Holder, member bool) {
	for r != x.root {
		if ex := x.exceptionOf(r, h); ex != nil {
			member = true
			x.trimException(ex)
		}
		if x.isListed(r, h) {
			return
		}
		if member {
			x.leaveRun(h)
		}
		if x.childRunsOf(r, h) > 0 {
			return
		}
		x.dropDescendant(r.parent, r.off, h)
		r, member = r.parent, false
	}
}

// leaveRun counts that h has blocks in one run less.
func (x *Radix) leaveRun(h Holder) {
	hs := x.holders[h]
	if hs.live--; hs.live == 0 {
		x.active--
		x.mem.Holders -= hs.runs.bytes(4)
		hs.runs = paged[uint32]{}
		if x.sweep.hs == hs {
			x.sweep = sweep{}
		}
		if w := x.walks[h]; w != nil {
			w.at = 0
		}
	}
}
