package core

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvatlas/kvatlas/event"
)

// A run is a maximal stretch of one chain, with the children that leave it at
// any offset. It is what everything hangs on: content once for all holders, a
// held length per holder.
//
// The fields off, first and parent are fixed; body is replaced as a whole by
// the writer; the rest is the writer's alone.
type run struct {
	body  atomic.Pointer[body]
	ahead atomic.Uintptr // where the body's content begins, for ask: a hint that keeps nothing alive
	first uint64         // local hash of block 0
	off   uint32         // attached after off blocks of the parent
	id    uint32

	parent     *run     // nil for the root
	segs       []uint32 // arena segments of the hashes that holders share
	exceptions []*exception
	seenLen    uint32 // most blocks that this body's readers may have seen
	mark       uint32 // scratch of the sweeps over a holder's runs
	looked     uint32 // scratch of eachPresent
	era        uint32 // the index's, if made since its last cut began, or given out in it
	number     uint32 // in the last cut that it was given out in
	awaited    uint32 // the highest offset at which a Loader may still add runs: those blocks stay
}

// body is what readers see of a run.
//
// Publication: data[:n] is complete before n is stored, and a published slot
// is never given another value in the same body. Where content, not just
// length, must change, a new body is published with copies of the coverage,
// so that held lengths never speak of other content than the body's own. A child
// is complete before it is in children. A reader that finds a child checks that
// the body is still the run's: only then do the child's parent blocks equal
// the ones that it compared.
type body struct {
	n        atomic.Uint32
	data     content // local hashes, with room for more
	in       [inlineEntries]atomic.Uint64
	cov      atomic.Pointer[cover] // replaces in when not nil
	tiers    atomic.Pointer[tierCover]
	children atomic.Pointer[childSet]
}

// tierCover holds the coverage of the cumulative levels above device, where a
// holder has blocks of the run on a lower tier. All holders of the run are in
// all of them. Without it those levels are equal to the device level. A body
// that has one keeps it; it goes with the body.
type tierCover struct {
	level [3]atomic.Pointer[cover]
	users int // exceptions with blocks on a lower tier; the writer's
}

// publish makes b what readers see of r.
func (r *run) publish(b *body) {
	r.ahead.Store(uintptr(unsafe.Pointer(unsafe.SliceData(b.data.head))))
	r.body.Store(b)
}

func (b *body) len() uint32 { return b.n.Load() }

// heldLen returns how many leading blocks of the run h holds at the level.
func (b *body) heldLen(level int, h Holder) uint32 {
	if level > 0 {
		if t := b.tiers.Load(); t != nil {
			return t.level[level-1].Load().get(h)
		}
	}
	if c := b.cov.Load(); c != nil {
		return c.get(h)
	}
	for i := range b.in {
		if e := b.in[i].Load(); e>>32 == uint64(h)+1 {
			return uint32(e)
		}
	}
	return 0
}

// eachHeldLen calls f for every holder with a held length at the level.
func (b *body) eachHeldLen(level int, f func(h Holder, held uint32) bool) {
	if level > 0 {
		if t := b.tiers.Load(); t != nil {
			t.level[level-1].Load().each(f)
			return
		}
	}
	if c := b.cov.Load(); c != nil {
		c.each(f)
		return
	}
	for i := range b.in {
		if h, held := entryOf(b.in[i].Load()); held > 0 && !f(h, held) {
			return
		}
	}
}

// Below: the writer's side.

// setHeldLen sets h's held length at one level: by one atomic store where h has an entry,
// or one is free that never was another holder's; else by a new table. So a reader of the
// old table sees h as it was, and everybody else as they are, and nobody twice.
func (x *Radix) setHeldLen(b *body, level int, h Holder, held uint32) {
	var at *atomic.Pointer[cover]
	if level == 0 {
		at = &b.cov
		if at.Load() == nil {
			free := -1
			for i := range b.in {
				e := b.in[i].Load()
				if e>>32 == uint64(h)+1 {
					b.in[i].Store(entry(h, held))
					return
				}
				if e == 0 && free < 0 {
					free = i
				}
			}
			if held == 0 {
				return
			}
			if free >= 0 {
				b.in[free].Store(entry(h, held))
				return
			}
		}
	} else {
		at = &b.tiers.Load().level[level-1]
	}
	c := at.Load()
	if c != nil {
		pages := c.pages
		done := c.set(h, held)
		x.mem.Coverage += int64(c.pages-pages) * lensBytes
		if done {
			return
		}
	}
	es := x.entries[:0]
	b.eachHeldLen(level, func(o Holder, oc uint32) bool {
		if o != h {
			es = append(es, entry(o, oc))
		}
		return true
	})
	if held > 0 {
		es = append(es, entry(h, held))
	}
	x.entries = es
	x.putCover(at, x.newCover(es))
}

func (x *Radix) putCover(at *atomic.Pointer[cover], c *cover) {
	if old := at.Load(); old != nil {
		x.mem.Coverage -= old.bytes()
	}
	if c != nil {
		x.mem.Coverage += c.bytes()
	}
	at.Store(c)
}

// setHeldLens sets h's held length at all levels: for holders that have the device
// tier only. The levels are stored one after the other: a lookup that sees some of
// them makes its answer cumulative (Matches.makeCumulative).
func (x *Radix) setHeldLens(b *body, h Holder, held uint32) {
	x.setHeldLen(b, 0, h, held)
	if b.tiers.Load() != nil {
		for l := 1; l <= 3; l++ {
			x.setHeldLen(b, l, h, held)
		}
	}
}

// addTiers begins to keep coverage above the device level.
func (x *Radix) addTiers(b *body) *tierCover {
	if t := b.tiers.Load(); t != nil {
		return t
	}
	es := x.entries[:0]
	b.eachHeldLen(0, func(h Holder, held uint32) bool {
		es = append(es, entry(h, held))
		return true
	})
	x.entries = es
	x.tiered.Store(true)
	t := &tierCover{}
	for i := range t.level {
		x.putCover(&t.level[i], x.newCover(es))
	}
	x.mem.Coverage += tierCoverBytes
	b.tiers.Store(t)
	return t
}

// freeTiers takes the tierCover of a body that is gone off the account.
func (x *Radix) freeTiers(b *body) {
	if t := b.tiers.Load(); t != nil {
		for i := range t.level {
			x.mem.Coverage -= t.level[i].Load().bytes()
		}
		x.mem.Coverage -= tierCoverBytes
	}
}

// dropTiers replaces r's body by one that is equal but for its tierCover.
func (x *Radix) dropTiers(r *run) {
	old := r.body.Load()
	b := &body{data: old.data} // shared: both know how much of it is theirs
	b.n.Store(old.n.Load())
	for i := range old.in {
		b.in[i].Store(old.in[i].Load())
	}
	b.cov.Store(old.cov.Load())
	b.children.Store(old.children.Load())
	r.publish(b)
	x.freeTiers(old)
}

const (
	runBytes       = 112
	bodyBytes      = 96
	tierCoverBytes = 32
)

// segsBytes returns the memory of a run's list of segments.
func segsBytes(n int) int64 { return sizeClass(int64(n) * 4) }

// newBody makes a body of the first n blocks of data.
func (x *Radix) newBody(data content, n uint32) *body {
	b := &body{data: data}
	b.n.Store(n)
	x.mem.Content += data.bytes()
	x.mem.Runs += bodyBytes
	return b
}

// freeBody takes a body that no longer stands in a run off the account, with
// its coverage if that was not passed on.
func (x *Radix) freeBody(b *body, coverage bool) {
	x.mem.Content -= b.data.bytes()
	x.mem.Runs -= bodyBytes
	if coverage {
		if c := b.cov.Load(); c != nil {
			x.mem.Coverage -= c.bytes()
		}
		x.freeTiers(b)
	}
}

// resize replaces r's body by one with the same first n blocks and room for
// total. If diverge, other blocks will follow than old readers may still see,
// so the coverage is copied; else the two share it, because it says the same
// about both.
func (x *Radix) resize(r *run, n uint32, total int, diverge bool) *body {
	old := r.body.Load()
	b := x.newBody(old.data.with(int(n), total, diverge), n)
	for i := range old.in {
		b.in[i].Store(old.in[i].Load())
	}
	b.children.Store(old.children.Load())
	if diverge {
		if c := old.cov.Load(); c != nil {
			x.putCover(&b.cov, x.copyCover(c))
		}
		if t := old.tiers.Load(); t != nil {
			nt := &tierCover{users: t.users}
			for i := range t.level {
				x.putCover(&nt.level[i], x.copyCover(t.level[i].Load()))
			}
			x.mem.Coverage += tierCoverBytes
			b.tiers.Store(nt)
		}
	} else {
		b.cov.Store(old.cov.Load())
		b.tiers.Store(old.tiers.Load())
	}
	r.seenLen = n
	r.publish(b)
	x.freeBody(old, diverge)
	return b
}

func (x *Radix) copyCover(c *cover) *cover {
	es := x.entries[:0]
	c.each(func(h Holder, held uint32) bool {
		es = append(es, entry(h, held))
		return true
	})
	x.entries = es
	return x.newCover(es)
}

// roomFor returns a body of r that k blocks may be appended to.
func (x *Radix) roomFor(r *run, k int) *body {
	b := r.body.Load()
	n := b.len()
	need := int(n) + k
	if n >= r.seenLen && need <= b.data.room() {
		return b
	}
	// Slots beyond n may still be read; they keep their values.
	return x.resize(r, n, withSlack(need), n < r.seenLen)
}

// withSlack returns how many blocks a run of n gets room for that grows: one that grows
// once grows again. The slack is in the last piece.
func withSlack(n int) int {
	if part := n & (pieceBlocks - 1); part > 0 {
		return n - part + min(part+8+part/4, pieceBlocks)
	}
	return n
}

// newRun makes a run that has no body yet and is not in its parent's children.
func (x *Radix) newRun(parent *run, off uint32, first uint64) *run {
	r := &run{parent: parent, off: off, first: first, era: x.era}
	if n := x.freeIDs.len(); n > 0 {
		r.id = x.freeIDs.at(uint32(n - 1))
		x.freeIDs.cut(n - 1)
		x.runs.set(r.id, r)
	} else {
		r.id = uint32(x.runs.len())
		x.runs.add(r)
	}
	for _, d := range x.dumps {
		d.numbers[r.id] = 0
	}
	x.live++
	x.mem.Runs += runBytes
	return r
}

// attach makes a complete run visible: content, coverage and its own children stand, as
// a reader may be in it as soon as it is in the parent's children.
func (x *Radix) attach(r *run) {
	b := r.parent.body.Load()
	old := b.children.Load()
	x.mem.Children -= old.bytes()
	k := old.with(child{r.off, r.first, r}, x.key)
	x.mem.Children += k.bytes()
	b.children.Store(k)
}

// detach takes an empty run out of its parent and frees it. Readers that are in it
// finish with the body that they have, in which nobody holds anything.
func (x *Radix) detach(r *run) {
	x.preserve(r)
	b := r.parent.body.Load()
	old := b.children.Load()
	x.mem.Children -= old.bytes()
	k := old.without(r)
	x.mem.Children += k.bytes()
	b.children.Store(k)
	x.freeRun(r)
}

// freeRun takes a run that is nobody's child any more, and has no hashes, off
// the books.
func (x *Radix) freeRun(r *run) {
	x.freeBody(r.body.Load(), true)
	x.mem.Runs -= runBytes + segsBytes(cap(r.segs))
	x.runs.set(r.id, nil)
	x.freeIDs.add(r.id)
	if x.live--; x.live == 0 {
		x.runs, x.freeIDs = paged[*run]{}, paged[uint32]{}
		x.runs.add(x.root)
	}
}

// crowd returns how many holders a look at all of r's meets, at least.
func (r *run) crowd() int {
	b := r.body.Load()
	c := b.cov.Load()
	if t := b.tiers.Load(); t != nil {
		c = t.level[event.NumTiers-2].Load() // everybody is in the highest
	}
	n := len(r.exceptions)
	if c != nil {
		n += int(c.members) // of a wide one
	}
	return n
}

// tighten gives back what was put off because runs are crowded, as far as it is
// paid for.
func (x *Radix) tighten() {
	for len(x.looseIDs) > 0 {
		id := x.looseIDs[0]
		if r := x.run(id); r != nil {
			cost := r.crowd()
			t := r.body.Load().tiers.Load()
			idle := t != nil && t.users == 0
			if idle {
				cost *= event.NumTiers // to be made again
			}
			if !x.spend(cost) {
				return
			}
			if idle {
				x.dropTiers(r)
			}
			x.shrinkNow(r)
		}
		x.looseIDs = x.looseIDs[1:]
		x.loose.drop(uint64(id))
	}
	x.looseIDs = nil
}

// loosen notes that a crowded run may have more than is of need.
func (x *Radix) loosen(r *run) {
	if !x.isLoose(r) {
		x.loose.set(uint64(r.id), struct{}{})
		x.looseIDs = append(x.looseIDs, r.id)
	}
}

func (x *Radix) isLoose(r *run) bool {
	_, is := x.loose.m[uint64(r.id)]
	return is
}

// shrink gives back what nobody needs of r's end, and r itself and its
// ancestors if that was all. Where r is crowded, tighten does it.
func (x *Radix) shrink(r *run) {
	if r.crowd() > fewHolders {
		x.loosen(r)
		return
	}
	x.shrinkNow(r)
}

func (x *Radix) shrinkNow(r *run) {
	for r != x.root {
		b := r.body.Load()
		n := b.len()
		keep := max(b.children.Load().maxOff(), r.awaited)
		for l := 0; l < 4 && keep < n; l++ {
			b.eachHeldLen(l, func(_ Holder, held uint32) bool {
				x.steps++
				keep = max(keep, held)
				return keep < n
			})
			if b.tiers.Load() == nil {
				break
			}
		}
		for _, ex := range r.exceptions {
			x.steps++
			if keep = max(keep, ex.end()); keep >= n {
				break
			}
		}
		if keep < n {
			x.truncate(r, keep)
		}
		if keep > 0 || len(r.exceptions) > 0 {
			x.pendingMerges = append(x.pendingMerges, r.id)
			return
		}
		p := r.parent
		x.detach(r)
		if r = p; r.crowd() > fewHolders {
			x.loosen(r)
			return
		}
	}
}

// wasteful reports whether so much room is too much for n blocks.
func wasteful(room int, n uint32) bool {
	return n > 0 && room >= 64 && int(n)+pieceBlocks < room || int(n)*3 < room
}

// truncate cuts r to n blocks, of which those beyond are nobody's and without children.
// A reader of the old length may still compare them: the slots keep their values until
// the body is another one (seenLen, roomFor).
func (x *Radix) truncate(r *run, n uint32) {
	x.preserve(r)
	b := r.body.Load()
	was := b.len()
	r.seenLen = max(r.seenLen, was)
	b.n.Store(n)
	x.dropHashes(r, n, was)
	if wasteful(b.data.room(), n) && x.spend(r.crowd()) {
		// Room for what is left only. The last piece is a new one, or readers
		// of the old body could still see what will be appended to it.
		x.resize(r, n, int(n), true)
	}
}
