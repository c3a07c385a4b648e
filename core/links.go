package core

// A link counts, for a holder and a run, the child runs in which the holder is
// present: holds blocks, or is linked further down in turn. It is what keeps
// the names of evicted ancestors known.
type link struct {
	count uint32
	most  uint32 // highest offset of such a child, unless stale
	stale bool   // most is only an upper bound
}

const linkBytes = 24

// present reports whether h holds anything in r or below it.
func (x *Radix) present(r *run, h Holder) bool {
	return r.body.Load().cutOff(0, h) > 0 || x.rec(r, h) != nil || x.links[recKey(r, h)].count > 0
}

// linkLimit returns how many leading blocks of r have, in a child run, blocks
// of h below them.
func (x *Radix) linkLimit(r *run, h Holder) uint32 {
	l, ok := x.links[recKey(r, h)]
	if !ok {
		return 0
	}
	if l.stale {
		l.most, l.stale = 0, false
		r.body.Load().kids.Load().each(func(c *run) bool {
			if c.off > l.most && x.present(c, h) {
				l.most = c.off
			}
			return true
		})
		x.links[recKey(r, h)] = l
	}
	return l.most
}

// link counts h's presence in a child of r at off.
func (x *Radix) link(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := recKey(r, h)
	l, ok := x.links[k]
	if !ok {
		x.mem.Links += linkBytes
	}
	l.count++
	if off >= l.most {
		l.most, l.stale = off, false
	}
	x.links[k] = l
}

// unlink takes it back.
func (x *Radix) unlink(r *run, off uint32, h Holder) {
	if r == x.root {
		return
	}
	k := recKey(r, h)
	l := x.links[k]
	if l.count--; l.count == 0 {
		delete(x.links, k)
		x.mem.Links -= linkBytes
		if len(x.links) == 0 {
			x.links = make(map[uint64]link)
		}
		return
	}
	if off == l.most {
		l.stale = true
	}
	x.links[k] = l
}

// joined notes that h, so far without blocks in r, gets some.
func (x *Radix) joined(r *run, h Holder) {
	hs := x.holders[h]
	if len(hs.runs) >= 2*hs.live+32 {
		x.sweep(h, hs)
	}
	c := cap(hs.runs)
	hs.runs = append(hs.runs, r.id)
	x.mem.Holders += int64(cap(hs.runs)-c) * 4
	hs.live++
	if x.links[recKey(r, h)].count == 0 {
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
	x.mem.Holders -= int64(cap(hs.runs)) * 4
	hs.runs = append(make([]uint32, 0, len(keep)+len(keep)/2+8), keep...)
	x.mem.Holders += int64(cap(hs.runs)) * 4
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
		if x.links[recKey(r, h)].count > 0 {
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
		x.mem.Holders -= int64(cap(hs.runs)) * 4
		hs.runs = nil
	}
}
