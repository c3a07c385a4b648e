package core

// A link counts, for a holder and a run, the child runs in which the holder is
// present: holds blocks, or is linked further down in turn. It is what keeps
// the names of evicted ancestors known.
type link struct {
	count uint32
	most  uint32 // highest offset of such a child, unless stale
	stale bool   // most is only an upper bound

	// offs are the offsets of all such children, where looking at all children
	// of the run would take too long.
	offs *offsets
}

const (
	linkBytes    = 8 + 24 // of an entry in the map
	offsetsBytes = 48
)

func (l link) bytes() int64 {
	if l.offs == nil {
		return 0
	}
	return offsetsBytes + l.offs.bytes()
}

func (x *Radix) linked(r *run, h Holder) uint32 {
	l, _ := x.links.get(recKey(r, h))
	return l.count
}

// present reports whether h holds anything in r or below it.
func (x *Radix) present(r *run, h Holder) bool {
	return r.body.Load().cutOff(0, h) > 0 || x.rec(r, h) != nil || x.linked(r, h) > 0
}

// linkLimit returns how many leading blocks of r have, in a child run, blocks
// of h below them.
func (x *Radix) linkLimit(r *run, h Holder) uint32 {
	l, ok := x.links.get(recKey(r, h))
	if !ok {
		return 0
	}
	if l.stale {
		kids := r.body.Load().kids.Load()
		if kids.table != nil {
			l.offs = &offsets{}
		}
		l.most, l.stale = 0, false
		kids.each(func(c *run) bool {
			if (l.offs != nil || c.off > l.most) && x.present(c, h) {
				l.most = max(l.most, c.off)
				if l.offs != nil {
					l.offs.add(c.off)
				}
			}
			return true
		})
		x.mem.Links += l.bytes()
		x.links.set(recKey(r, h), l)
	}
	return l.most
}

// link counts h's presence in a child of r at off.
func (x *Radix) link(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := recKey(r, h)
	l, _ := x.links.get(k)
	x.mem.Links -= l.bytes()
	l.count++
	switch {
	case l.offs != nil:
		l.offs.add(off)
	case l.count == 2 && !l.stale && r.body.Load().kids.Load().table != nil:
		l.offs = &offsets{}
		l.offs.add(l.most)
		l.offs.add(off)
	}
	if off >= l.most {
		l.most, l.stale = off, false
	}
	x.mem.Links += l.bytes()
	x.links.set(k, l)
}

// unlink takes it back.
func (x *Radix) unlink(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := recKey(r, h)
	l, _ := x.links.get(k)
	x.mem.Links -= l.bytes()
	if l.count--; l.count == 0 {
		x.links.drop(k)
		return
	}
	if l.offs != nil {
		l.offs.remove(off)
		l.most = l.offs.max()
	} else if off == l.most {
		l.stale = true
	}
	x.mem.Links += l.bytes()
	x.links.set(k, l)
}

// joined notes that h, so far without blocks in r, gets some.
func (x *Radix) joined(r *run, h Holder) {
	hs := x.holders[h]
	if len(hs.runs) >= 2*hs.live+32 {
		x.sweep(h, hs)
	}
	c := runsBytes(hs)
	hs.runs = append(hs.runs, r.id)
	x.mem.Holders += runsBytes(hs) - c
	if hs.live++; hs.live == 1 {
		x.active++
	}
	if x.linked(r, h) == 0 {
		x.link(r.parent, r.off, h)
	}
}

// sweep takes runs that h has left, and repetitions, out of h's list.
func (x *Radix) sweep(h Holder, hs *holderState) {
	x.marks++
	keep := hs.runs[:0]
	for _, id := range hs.runs {
		if r := x.run(id); r != nil && r.mark != x.marks && (r.body.Load().cutOff(0, h) > 0 || x.rec(r, h) != nil) {
			r.mark = x.marks
			keep = append(keep, id)
		}
	}
	x.mem.Holders -= runsBytes(hs)
	hs.runs = append(make([]uint32, 0, len(keep)+len(keep)/2+8), keep...)
	x.mem.Holders += runsBytes(hs)
}

func (x *Radix) run(id uint32) *run {
	if int(id) >= len(x.runs) {
		return nil
	}
	return x.runs[id]
}

// tidy follows up on h having lost blocks in r: records are settled and the
// presence that ended is taken back, up the ancestors.
func (x *Radix) tidy(r *run, h Holder, member bool) {
	for r != x.root {
		if rc := x.rec(r, h); rc != nil {
			member = true
			x.settle(rc)
		}
		if r.body.Load().cutOff(0, h) > 0 || x.rec(r, h) != nil {
			return
		}
		if member {
			x.leave(h)
		}
		if x.linked(r, h) > 0 {
			return
		}
		x.unlink(r.parent, r.off, h)
		r, member = r.parent, false
	}
}

// leave counts that h has blocks in one run less.
func (x *Radix) leave(h Holder) {
	hs := x.holders[h]
	if hs.live--; hs.live == 0 {
		x.active--
		x.mem.Holders -= runsBytes(hs)
		hs.runs = nil
	}
}

// runsBytes returns the memory of the list of a holder's runs.
func runsBytes(hs *holderState) int64 { return sizeClass(int64(cap(hs.runs)) * 4) }
