package core

// Swapping and joining keep the paths of long conversations short: without
// them every turn that diverges just before the previous turn's decoded tail
// would begin a run of its own (30 runs on a coding agent's path instead of 2).

const swapHolders = 4

// swappable reports whether r's tail from o on may become a child, so that
// count new blocks continue r: the new part is at least as long, nothing hangs
// on the tail, few holders reach it, and the place is not one where prompts go
// apart again and again.
func (x *Radix) swappable(r *run, o uint32, count int) bool {
	b := r.body.Load()
	if int(b.len()-o) > count || len(r.recs) > 0 || b.tiers.Load() != nil || b.kids.Load().forks(o) {
		return false
	}
	reach := 0
	b.eachCut(0, func(_ Holder, cut uint32) bool {
		if cut > o {
			reach++
		}
		return reach <= swapHolders
	})
	return reach <= swapHolders
}

// swap makes r's blocks from o on a child of r. The new body appears with the
// child in place, so a reader sees either the old shape or the new one.
func (x *Radix) swap(r *run, o uint32, room int) {
	x.touch(r)
	old := r.body.Load()
	n := old.len()
	t := x.newRun(r, o, old.data.at(o))
	x.moveNames(r, o, n, t, 0)
	x.cutSegs(r, o)
	tb := x.newBody(newContent(old.data.appendTo(nil, o, n)), n-o)
	t.body.Store(tb)

	nb := x.newBody(old.data.with(int(o), int(o)+room, true), o)
	var moved [swapHolders]Holder
	k := 0
	es := make([]uint64, 0, 8)
	old.eachCut(0, func(h Holder, cut uint32) bool {
		if cut > o {
			x.setCut(tb, 0, h, cut-o)
			moved[k] = h
			k++
			cut = o
		}
		es = append(es, entry(h, cut))
		return true
	})
	x.cover(nb, es)
	nb.kids.Store(old.kids.Load())
	x.mem.Children -= old.kids.Load().bytes()
	kids := old.kids.Load().with(kid{o, t.first, t}, x.key)
	x.mem.Children += kids.bytes()
	nb.kids.Store(kids)
	r.high = o
	r.body.Store(nb)
	x.freeBody(old, true)
	for _, h := range moved[:k] {
		x.joined(t, h)
	}
}

// cutSegs frees the name segments of r that lie wholly at or beyond lo.
func (x *Radix) cutSegs(r *run, lo uint32) {
	first := int((lo + segBlocks - 1) >> segBits)
	for _, s := range r.segs[first:] {
		x.arena.release(s)
	}
	r.segs = r.segs[:first]
	if first == 0 || cap(r.segs) > 4*first+8 {
		x.mem.Runs -= segsBytes(cap(r.segs))
		r.segs = append([]uint32(nil), r.segs...)
		x.mem.Runs += segsBytes(cap(r.segs))
	}
}

// mergeMax bounds what a merge moves: a short child, or one that is no longer
// than the run that it is joined to.
const mergeMax = 1024

// mergeRipe joins runs that removals have left with a single child at their
// end to that child. It runs after the write that made them so, when nothing
// holds on to a run.
func (x *Radix) mergeRipe() {
	for _, id := range x.ripe {
		r := x.run(id)
		if r == nil || r == x.root {
			continue
		}
		if c := r.body.Load().kids.Load().only(); c != nil {
			x.merge(r, c)
		} else if p := r.parent; p != x.root && p.body.Load().kids.Load().only() == r {
			x.merge(p, r)
		}
	}
	x.ripe = x.ripe[:0]
}

// merge makes c, the only child of r, the end of r, if c has no children,
// begins where r ends, and everybody in it has all of r. Everything shows with
// one store of the new body; readers of the old one still find c beyond it.
func (x *Radix) merge(r, c *run) {
	rb, cb := r.body.Load(), c.body.Load()
	n, k := rb.len(), cb.len()
	if c.off != n || k > max(n, mergeMax) || cb.kids.Load() != nil || len(r.recs)+len(c.recs) > 0 ||
		rb.tiers.Load() != nil || cb.tiers.Load() != nil {
		return
	}
	whole := true
	cb.eachCut(0, func(h Holder, _ uint32) bool {
		whole = rb.cutOff(0, h) == n
		return whole
	})
	if !whole {
		return
	}
	x.touch(c) // and r, its parent
	es := make([]uint64, 0, 8)
	rb.eachCut(0, func(h Holder, cut uint32) bool {
		es = append(es, entry(h, cut+cb.cutOff(0, h)))
		return true
	})
	nb := x.newBody(rb.data.with(int(n), int(n+k), n < r.high), n+k)
	nb.data.write(n, cb.data.appendTo(nil, 0, k))
	x.cover(nb, es)
	x.mem.Children -= rb.kids.Load().bytes()
	x.moveNames(c, 0, k, r, n)
	r.high = n + k
	r.body.Store(nb)
	x.freeBody(rb, true)

	cb.eachCut(0, func(h Holder, _ uint32) bool {
		x.unlink(r, n, h)
		x.leave(h)
		return true
	})
	x.cutSegs(c, 0)
	x.freeRun(c)
}

// moveNames gives t, from position at on, the shared names that r has at lo …
// hi-1, which r then has no more.
func (x *Radix) moveNames(r *run, lo, hi uint32, t *run, at uint32) {
	var names [probeNames]uint64
	var from, to [probeNames]uint32
	for p := lo; p < hi; {
		k := min(int(hi-p), probeNames)
		x.getNames(r, p, names[:k], &from)
		x.dir.locate(x.spare[0], names[:k])
		x.addNames(t, at+p-lo, names[:k], &to)
		for i, e := range names[:k] {
			x.moveName(e, from[i], to[i])
		}
		p += uint32(k)
	}
}

// cover gives a body that is not published yet its device coverage.
func (x *Radix) cover(b *body, es []uint64) {
	if len(es) > inlineEntries {
		x.putCover(&b.cov, newCover(es, len(x.holders)))
		return
	}
	for i, e := range es {
		b.in[i].Store(e)
	}
}
