package core

import (
	"fmt"
	"iter"
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// Check verifies what the writer's structures promise each other.
func (x *Radix) Check() error {
	entered := map[uint32]bool{}
	n := 0
	for i := 0; i < len(x.dir.top); {
		r := &x.dir.top[i]
		l := r.leaf
		live := 0
		for c := range uint32(pageChunks) {
			for s, t := range r.chunk(c).tags {
				guest := r.chunk(c).guest>>s&1 != 0
				if t == 0 {
					if guest || r.chunk(c).blk[s] != 0 {
						return fmt.Errorf("a slot that is not in use has block %d, guest: %v", r.chunk(c).blk[s], guest)
					}
					continue
				}
				live++
				b := r.chunk(c).blk[s] & blockMask
				hash, ok := x.arena.peek(b)
				m := x.key.mix(hash)
				if !ok || l.mark(m) != (mark{t, r.chunk(c).blk[s] &^ blockMask}) || x.dir.refAt(m).leaf != l || guest != (home(m) != c) {
					return fmt.Errorf("directory entry of block %d: live %v, tag %d, guest %v", b, ok, t, guest)
				}
				if got, ok := x.dir.find(hash); !ok || got != b && entered[b] {
					return fmt.Errorf("entry of block %d not found by its hash %d: %d %v", b, hash, got, ok)
				}
				if entered[b] {
					return fmt.Errorf("block %d entered twice", b)
				}
				entered[b] = true
			}
		}
		for e, b := range x.dir.spill {
			if x.dir.refAt(x.key.mix(e)).leaf == l {
				entered[b] = true
				n++
			}
		}
		if int(l.n) != live {
			return fmt.Errorf("leaf %d counts %d, has %d", i, l.n, live)
		}
		n += live
		i += 1 << (x.dir.depth - l.depth)
	}
	if n != x.dir.count {
		return fmt.Errorf("directory counts %d, has %d", x.dir.count, n)
	}
	if _, _, err := x.dir.checkElsewhere(); err != nil {
		return err
	}
	for e, f := range x.dups.all() {
		closed := 0
		if f.closed != nil {
			for _, b := range f.closed.blocks {
				if n, ok := f.closed.number.m[uint64(b)]; b != 0 && (!ok || f.closed.blocks[n] != b) {
					return fmt.Errorf("name %d: closed block %d has number %d", e, b, n)
				} else if b != 0 {
					closed++
					f.open = append(f.open, b)
				}
			}
			if closed == 0 || closed != len(f.closed.number.m) {
				return fmt.Errorf("name %d: %d closed blocks, %d numbers", e, closed, len(f.closed.number.m))
			}
		}
		for _, b := range f.open {
			if hash, ok := x.arena.peek(b); !ok || hash != e || entered[b] {
				return fmt.Errorf("further block %d of name %d: live %v, entered %v", b, e, ok, entered[b])
			}
			entered[b] = true
		}
		if _, ok := x.dir.find(e); !ok {
			return fmt.Errorf("name %d has further blocks but no entry", e)
		}
	}
	names, exceptions := 0, int64(0)
	for r := range x.allRuns() {
		if r == x.root {
			continue
		}
		exceptions += exceptionsBytes(r)
		b := r.body.Load()
		for p := uint32(0); p < b.len(); p++ {
			if b := r.block(p); entered[b] != x.arena.isEntered(b) {
				return fmt.Errorf("run %d position %d is entered: %v, marked: %v", r.id, p, entered[b], x.arena.isEntered(b))
			} else if entered[b] {
				names++
			}
		}
		for _, ex := range r.exceptions {
			if exceptions += ex.size; ex.size != ex.bytes() {
				return fmt.Errorf("run %d holder %d: an exception of %d bytes is accounted with %d", r.id, ex.holder, ex.bytes(), ex.size)
			}
			for i := range ex.layers {
				l := &ex.layers[i]
				if l.known.count() != l.nKnown {
					return fmt.Errorf("run %d holder %d layer %d: %d known, counted %d", r.id, ex.holder, i, l.known.count(), l.nKnown)
				}
				for t := range l.held {
					if l.held[t].count() != l.nHeld[t] {
						return fmt.Errorf("run %d holder %d layer %d tier %d: %d held, counted %d", r.id, ex.holder, i, t, l.held[t].count(), l.nHeld[t])
					}
				}
				if i > 0 {
					names += l.nKnown
					for p, ok := l.known.next(0); ok; p, ok = l.known.next(p + 1) {
						b := l.segs[p>>segBits]<<segBits | p&(segBlocks-1)
						if hash, live := x.arena.peek(b); !live || !entered[b] {
							return fmt.Errorf("run %d holder %d layer %d position %d: name %d is not entered", r.id, ex.holder, i, p, hash)
						}
					}
				}
			}
			n, err := x.checkPile(ex.pile)
			if err != nil {
				return fmt.Errorf("run %d holder %d: %w", r.id, ex.holder, err)
			}
			names += n
		}
	}
	if exceptions != x.mem.Exceptions {
		return fmt.Errorf("exceptions of %d bytes are accounted with %d", exceptions, x.mem.Exceptions)
	}
	held := 0
	for _, hs := range x.holders {
		for t := 0; hs != nil && t < len(hs.held); t++ {
			held += hs.held[t]
		}
	}
	if held != x.total {
		return fmt.Errorf("%d blocks are held, counted %d", held, x.total)
	}
	if names != len(entered) {
		return fmt.Errorf("%d names, %d entered", names, len(entered))
	}
	return x.checkSparse()
}

// checkPile returns how many hashes a pile has.
func (x *Radix) checkPile(p *pile) (n int, err error) {
	if p == nil {
		return 0, nil
	}
	var nHeld [event.NumTiers]int
	room := int64(0)
	p.known.each(func(lo, hi uint32) {
		for pos := lo; pos < hi; pos++ {
			h := p.heaps.m[uint64(pos)]
			room += h.bytes()
			var held [event.NumTiers]uint32
			idle := uint32(0)
			p.at(pos, func(b uint32) bool {
				n++
				e, ok := p.hashes.m[uint64(b)]
				none := e.copies == [event.NumTiers]uint32{}
				if none {
					idle++
				}
				if hd := x.arena.head(b >> segBits); !ok || hd.base != pileBase|pos || none != (e.idle > 0) || none && h.idle[e.idle-1] != b {
					err = fmt.Errorf("position %d: piled name in block %d: %+v, idle %v", pos, b, e, h.idle)
				}
				for t, c := range e.copies {
					held[t] += min(c, 1)
				}
				return true
			})
			if h.held != held || int(idle) != len(h.idle) || p.idle.has(pos) != (idle > 0) || h.n == 0 || len(h.segs) != int(h.n+segBlocks-1)/segBlocks {
				err = fmt.Errorf("position %d: heap %+v, held %v, %d idle", pos, h, held, idle)
			}
			for t := range held {
				if nHeld[t] += int(held[t]); p.held[t].has(pos) != (held[t] > 0) {
					err = fmt.Errorf("position %d is held on tier %d: %v, by %d names", pos, t, p.held[t].has(pos), held[t])
				}
			}
		}
	})
	if err == nil && (n == 0 || n != len(p.hashes.m) || nHeld != p.nHeld || room != p.room || len(p.heaps.m) != p.known.count()) {
		err = fmt.Errorf("%d names, pile %+v, held %v, room %d", n, p, nHeld, room)
	}
	return n, err
}

// Runs returns how many runs there are.
func (x *Radix) Runs() int { return x.live }

// allRuns gives the runs that are there, the root first.
func (x *Radix) allRuns() iter.Seq[*run] {
	return func(yield func(*run) bool) {
		for id := range uint32(x.runs.len()) {
			if r := x.runs.at(id); r != nil && !yield(r) {
				return
			}
		}
	}
}

// Mix is what the tables of the index spread hashes with.
func (x *Radix) Mix(h uint64) uint64 { return x.key.mix(h) }

// all lists keys and values in no particular order.
func (k *keyedMap[V]) all() iter.Seq2[uint64, V] {
	return func(yield func(uint64, V) bool) {
		for i := 0; k.parts != nil && i < mapParts; i++ {
			for key, v := range k.parts[i].m {
				if !yield(key, v) {
					return
				}
			}
		}
	}
}

// Steps returns how many runs the last lookup walked.
func (m *Matches) Steps() int { return len(m.walk.steps) }

// FindInterrupted is Find with a call of between after each level.
func (x *Radix) FindInterrupted(local []uint64, m *Matches, between func()) {
	for {
		m.Reset()
		tiers, ok := x.findDevice(local, m)
		between()
		if ok && !tiers {
			return
		}
		m.keepLevel(event.Device)
		for t := event.HostPinned; ok && t < event.NumTiers; t++ {
			ok = x.findLevel(t, m)
			m.keepLevel(t)
			between()
		}
		if ok {
			m.makeCumulative()
			return
		}
	}
}

func (b bitmap) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// MixAt is what tables of children spread the hash of a child at an offset with.
func (x *Radix) MixAt(off uint32, first uint64) uint64 { return x.key.mixAt(off, first) }

// ChildSteps returns how many slots a search for a child looks at, at most.
func (x *Radix) ChildSteps() (most int) {
	for r := range x.allRuns() {
		if r == nil {
			continue
		}
		k := r.body.Load().children.Load()
		if k == nil || k.table == nil {
			continue
		}
		for _, first := range *k.table.top.Load() {
			for i := range childSlots {
				steps := 0
				for l := first; l != nil; l = l.next.Load() {
					for j := i; l.slots[j&(childSlots-1)].key.Load() != 0; j++ {
						steps++
					}
				}
				most = max(most, steps)
			}
		}
	}
	return most
}

// DirectorySteps returns how many chunks a search for a hash looks at, at most, and
// how many hashes found no place in them.
func (x *Radix) DirectorySteps() (most, spilled int) {
	for _, r := range x.dir.top {
		for i := range r.page {
			if c := &r.page[i]; c.over > 0 {
				most = max(most, 1+int(c.reach()))
			}
		}
	}
	return max(most, 1), len(x.dir.spill)
}

// Overwrite gives a block of the chain that begins with first another local
// hash, in place, as the writer never does once the block is published.
func (x *Radix) Overwrite(first uint64, i uint32, local uint64) {
	b := x.root.body.Load().children.Load().find(0, first).body.Load()
	b.data.from(i)[0] = local
}

// OverwriteHash does so with an engine hash, and OverwriteEntry with the part of
// the directory that has it.
func (x *Radix) OverwriteHash(hash, by uint64) {
	x.enterForAll(hash)
	b, _ := x.dir.find(hash)
	x.arena.set(b, by)
}

func (x *Radix) OverwriteEntry(hash uint64) {
	x.enterForAll(hash)
	b, _ := x.dir.find(hash)
	x.dir.replace(hash, b, b)
}

var MatchLen = matchLen

// Steps returns how many steps the writer has taken in what could take many.
func (x *Radix) Steps() int { return x.steps }

// Loose returns how many runs may have more than is of need.
func (x *Radix) Loose() int { return len(x.looseIDs) }

// checkElsewhere verifies that each chunk counts no less than what of it stands elsewhere, and
// as far as that. It returns how many classes it has counts of, and how many have entries.
func (d *directory) checkElsewhere() (counted, there int, err error) {
	for i := 0; i < len(d.top); i += 1 << (d.depth - d.top[i].leaf.depth) {
		r := &d.top[i]
		var want [pageChunks]chunk
		for at := range uint32(pageChunks) {
			c := r.chunk(at)
			for s, b := range c.blk {
				if c.guest>>s&1 == 0 {
					continue
				}
				m := d.key.mix(d.arena.at(b & blockMask))
				k := uint32(1)
				for away(home(m), k) != at {
					k++
				}
				want[home(m)].overflow(r.leaf.mark(m).tag, k)
			}
		}
		for at := range want {
			c, w := r.chunk(uint32(at)), &want[at]
			for t := uint8(0); t < 16; t += 2 {
				if c.over>>t&3 > 0 {
					counted++
				}
				if w.over>>t&3 > 0 {
					there++
				}
				if c.over>>t&3 < w.over>>t&3 {
					w.setReach(farthest)
				}
			}
			if c.reach() < w.reach() {
				return 0, 0, fmt.Errorf("chunk %d of leaf %d counts %b elsewhere within %d, of %b within %d", at, i, c.over, c.reach(), w.over, w.reach())
			}
		}
	}
	return counted, there, nil
}

// Loosen notes of the run that has the hash what is noted of one with too many holders to be looked at.
func (x *Radix) Loosen(hash uint64) {
	x.enterForAll(hash)
	b, _ := x.dir.find(hash)
	x.loosen(x.run(x.arena.head(b >> segBits).run))
}

// AtOnce stores or removes one block at the end of a run, if that is all that is to be done.
func (x *Radix) AtOnce(h Holder, ev *event.Event) bool {
	hs := x.state(h)
	s := store{Radix: x, h: h, hs: hs, tier: int(ev.Tier)}
	switch {
	case ev.Kind == event.Stored:
		return s.appendOne(ev)
	case ev.Kind == event.Removed && hs != nil:
		m := removal{store: s}
		if !m.dropOne(ev) {
			return false
		}
		x.mergePending()
		return true
	}
	return false
}

// Segments returns how many segments of engine hashes are in use.
func (x *Radix) Segments() int { return x.arena.inUse }

// peek is at for a block that may be gone.
func (a *arena) peek(b uint32) (uint64, bool) {
	s := b >> segBits
	if s == 0 || int(s>>slabBits) >= len(a.slabs) || int(s&(slabSegs-1)) >= len(a.slabs[s>>slabBits].heads) || a.head(s).run == 0 {
		return 0, false
	}
	return a.at(b), true
}

// Rename gives each holder of the answer another number, or leaves it out.
func (m *Matches) Rename(name func(h Holder) (Holder, bool)) {
	found := make(map[Holder][event.NumTiers]uint32)
	m.EachHolder(func(h Holder, depth [event.NumTiers]uint32) {
		if h, ok := name(h); ok {
			found[h] = depth
		}
	})
	m.Reset()
	for h, depth := range found {
		*m.at(h), m.tiered = depth, true
	}
}

// Blocks returns how many hashes stand in runs, shared or a holder's own.
func (x *Radix) Blocks() int {
	n := 0
	for r := range x.allRuns() {
		n += int(r.body.Load().len())
		for _, ex := range r.exceptions {
			for _, l := range ex.layers[1:] {
				n += l.nKnown
			}
			if ex.pile != nil {
				n += len(ex.pile.hashes.m)
			}
		}
	}
	return n
}
