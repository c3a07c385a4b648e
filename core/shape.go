package core

// Swapping and joining keep the paths of long conversations short: without
// them every turn that diverges just before the previous turn's decoded tail
// would begin a run of its own (30 runs on a coding agent's path instead of 2).

const swapHolders = 4

// swappable reports whether r's tail from o on may become a child, so that
// count new blocks continue r: the new part is at least as long, nothing hangs
// on the tail, and few holders reach it.
func (x *Radix) swappable(r *run, o uint32, count int) bool {
	b := r.body.Load()
	if int(b.len()-o) > count || len(r.recs) > 0 || b.tiers.Load() != nil || b.kids.Load().maxOff() > o {
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
	old := r.body.Load()
	n := old.len()
	t := x.newRun(r, o, old.data.at(o))
	var names [probeNames]uint64
	var from, to [probeNames]uint32
	for p := o; p < n; {
		k := min(int(n-p), probeNames)
		x.getNames(r, p, names[:k], &from)
		x.dir.locate(x.spare[0], names[:k])
		x.addNames(t, p-o, names[:k], &to)
		for i, e := range names[:k] {
			x.moveName(e, from[i], to[i])
		}
		p += uint32(k)
	}
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
	if len(es) <= inlineEntries {
		for i, e := range es {
			nb.in[i].Store(e)
		}
	} else {
		x.putCover(&nb.cov, newCover(es, len(x.holders)))
	}
	nb.kids.Store(old.kids.Load())
	x.mem.Children -= old.kids.Load().bytes()
	kids := old.kids.Load().with(kid{o, t.first, t})
	x.mem.Children += kids.bytes()
	nb.kids.Store(kids)
	r.high = o
	r.body.Store(nb)
	x.freeBody(old, true)
	for _, h := range moved[:k] {
		x.joined(t, h)
	}
}

// moveName makes the entry of block from name block to.
func (x *Radix) moveName(e uint64, from, to uint32) {
	if x.dir.replace(e, from, to) {
		return
	}
	for i, b := range x.dups[e] {
		if b == from {
			x.dups[e][i] = to
			return
		}
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
		x.mem.Runs -= int64(cap(r.segs)) * 4
		r.segs = append([]uint32(nil), r.segs...)
		x.mem.Runs += int64(cap(r.segs)) * 4
	}
}
