package core

// Swapping and joining keep the paths of long conversations short: without
// them every turn that diverges just before the previous turn's decoded tail
// would begin a run of its own (30 runs on a coding agent's path instead of 2).

const swapHolders = 4

// swappable reports whether r's tail from o on may become a child, so that
// count new blocks continue r: the new part is at least as long, nothing hangs
// on the tail, few holders reach it, and the position is not one where prompts go
// apart again and again.
func (x *Radix) swappable(r *run, o uint32, count int) bool {
	b := r.body.Load()
	if int(b.len()-o) > count || o < r.awaited || len(r.exceptions) > 0 || b.tiers.Load() != nil || b.children.Load().forks(o) {
		return false
	}
	all := r.crowd()
	if !x.affords(all) {
		return false
	}
	reach, looked := 0, 0
	b.eachHeldLen(0, func(_ Holder, held uint32) bool {
		looked++
		if held > o {
			reach++
		}
		return reach <= swapHolders
	})
	if reach > swapHolders {
		x.spend(looked)
		return false
	}
	return x.spend(all)
}

// swap makes r's blocks from o on a child of r. The new body appears with the
// child in place, so a reader sees either the old shape or the new one.
func (x *Radix) swap(r *run, o uint32, room int) {
	x.preserve(r)
	old := r.body.Load()
	n := old.len()
	t := x.newRun(r, o, old.data.at(o))
	x.moveHashes(r, o, n, t, 0)
	x.releaseSegs(r, o)
	tb := x.newBody(old.data.part(o, n), n-o)
	t.publish(tb)

	nb := x.newBody(old.data.with(int(o), withSlack(int(o)+room), true), o)
	var moved [swapHolders]Holder
	k := 0
	es := make([]uint64, 0, 8)
	old.eachHeldLen(0, func(h Holder, held uint32) bool {
		if held > o {
			x.setHeldLen(tb, 0, h, held-o)
			moved[k] = h
			k++
			held = o
		}
		es = append(es, entry(h, held))
		return true
	})
	x.cover(nb, es)
	nb.children.Store(old.children.Load())
	x.mem.Children -= old.children.Load().bytes()
	children := old.children.Load().with(child{o, t.first, t}, x.key)
	x.mem.Children += children.bytes()
	nb.children.Store(children)
	r.seenLen = o
	r.publish(nb)
	x.freeBody(old, true)
	last, led := n-o-1, false
	for _, h := range moved[:k] {
		x.enterNewRun(t, h)
		led = x.moveTail(x.holders[h], x.arena.at(t.block(last)), t, last) || led
	}
	if !led {
		x.enterRange(t, n-o-min(n-o, tailHashes), n-o)
	}
}

// releaseSegs frees the hash segments of r that lie wholly at or beyond lo.
func (x *Radix) releaseSegs(r *run, lo uint32) {
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

// mergePending joins runs that removals have left with a single child at their
// end to that child. It runs after the write that made them so, when nothing
// holds on to a run.
func (x *Radix) mergePending() {
	x.tighten()
	for _, id := range x.pendingMerges {
		r := x.run(id)
		if r == nil || r == x.root {
			continue
		}
		if c := r.body.Load().children.Load().only(); c != nil {
			x.merge(r, c)
		} else if p := r.parent; p != x.root && p.body.Load().children.Load().only() == r {
			x.merge(p, r)
		}
	}
	x.pendingMerges = x.pendingMerges[:0]
}

// merge makes c, the only child of r, the end of r, if c has no children,
// begins where r ends, and everybody in it has all of r. Everything shows with
// one store of the new body; readers of the old one still find c beyond it.
func (x *Radix) merge(r, c *run) {
	rb, cb := r.body.Load(), c.body.Load()
	n, k := rb.len(), cb.len()
	if c.off != n || c.awaited > 0 || k > max(n, mergeMax) || cb.children.Load() != nil || len(r.exceptions)+len(c.exceptions) > 0 ||
		rb.tiers.Load() != nil || cb.tiers.Load() != nil || !x.spend(r.crowd()) {
		return
	}
	whole := true
	cb.eachHeldLen(0, func(h Holder, _ uint32) bool {
		whole = rb.heldLen(0, h) == n
		return whole
	})
	if !whole {
		return
	}
	x.preserve(c) // and r, its parent
	es := make([]uint64, 0, 8)
	rb.eachHeldLen(0, func(h Holder, held uint32) bool {
		es = append(es, entry(h, held+cb.heldLen(0, h)))
		return true
	})
	nb := x.newBody(rb.data.with(int(n), int(n+k), n < r.seenLen), n+k)
	nb.data.writeFrom(n, &cb.data, 0, k)
	x.cover(nb, es)
	x.mem.Children -= rb.children.Load().bytes()
	x.moveHashes(c, 0, k, r, n)
	r.seenLen = n + k
	r.publish(nb)
	x.freeBody(rb, true)

	cb.eachHeldLen(0, func(h Holder, _ uint32) bool {
		x.dropDescendant(r, n, h)
		x.leaveRun(h)
		if x.walks[h] != nil { // it may have passed r
			x.appendRun(r, h, x.holders[h])
		}
		return true
	})
	x.releaseSegs(c, 0)
	x.freeRun(c)
	x.enterRange(r, n+k-min(k, tailHashes), n+k) // as in swap
}

// moveHashes gives t, from position at on, the shared hashes that r has at lo …
// hi-1, which r then has no more.
func (x *Radix) moveHashes(r *run, lo, hi uint32, t *run, at uint32) {
	x.expectHashes(t, at+hi-lo)
	var hashes [probeHashes]uint64
	var from, to [probeHashes]uint32
	for p := lo; p < hi; {
		k := min(int(hi-p), probeHashes)
		x.getHashes(r, p, hashes[:k], &from)
		x.addHashes(t, at+p-lo, hashes[:k], &to)
		n := 0 // of them are entered
		for i, b := range from[:k] {
			if x.arena.isEntered(b) {
				hashes[n], from[n], to[n] = hashes[i], b, to[i]
				n++
			}
		}
		aims := x.spare[0]
		x.dir.locate(aims, hashes[:n])
		for i, e := range hashes[:n] {
			if x.dir.replaceAt(aims, i, from[i], to[i]) {
				x.arena.unmark(from[i])
				x.arena.mark(to[i : i+1])
			} else {
				x.moveHash(e, from[i], to[i])
			}
		}
		p += uint32(k)
	}
}

// cover gives a body that is not published yet its device coverage.
func (x *Radix) cover(b *body, es []uint64) {
	if len(es) > inlineEntries {
		x.putCover(&b.cov, x.newCover(es))
		return
	}
	for i, e := range es {
		b.in[i].Store(e)
	}
}
