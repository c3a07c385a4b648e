package core

import (
	"slices"
	"sync/atomic"
)

// Children of a run are keyed by (offset in the run, first local hash), so a
// divergence splits nothing. Most runs have up to a few children: an immutable
// array, replaced on change. Beyond that they are in a childTable.

// child is one child: its run, attached after off blocks of the parent.
type child struct {
	off   uint32
	first uint64
	run   *run
}

const smallChildren = 12

// childSet is what a run's body points to. Exactly one of the two is in use.
type childSet struct {
	small []child
	table *childTable
}

// find returns the child at (off, first), or nil. Readers call it beside the
// writer.
func (k *childSet) find(off uint32, first uint64) *run {
	if k == nil {
		return nil
	}
	if k.table != nil {
		return k.table.find(off, first)
	}
	for i := range k.small {
		if c := &k.small[i]; c.first == first && c.off == off {
			return c.run
		}
	}
	return nil
}

// The rest is the writer's.

// only returns the child if there is just one.
func (k *childSet) only() *run {
	if k == nil || k.table != nil || len(k.small) != 1 {
		return nil
	}
	return k.small[0].run
}

// maxOff returns the highest offset at which a child is attached.
func (k *childSet) maxOff() uint32 {
	if k == nil {
		return 0
	}
	if k.table != nil {
		return k.table.offs.max()
	}
	m := uint32(0)
	for i := range k.small {
		m = max(m, k.small[i].off)
	}
	return m
}

// forks reports whether there is a child beyond offset o, or several are at it.
func (k *childSet) forks(o uint32) bool {
	if k == nil {
		return false
	}
	if k.table != nil {
		return k.table.offs.max() >= o
	}
	n := 0
	for i := range k.small {
		switch off := k.small[i].off; {
		case off > o:
			return true
		case off == o:
			n++
		}
	}
	return n > 1
}

// each calls f for every child until f returns false.
func (k *childSet) each(f func(c *run) bool) {
	if k == nil {
		return
	}
	if k.table != nil {
		k.table.each(f)
		return
	}
	for i := range k.small {
		if !f(k.small[i].run) {
			return
		}
	}
}

// with returns the set with one more child: k itself if it could take it in
// place. The key is for the table that it may become.
func (k *childSet) with(c child, key hasher) *childSet {
	if k == nil {
		return &childSet{small: []child{c}}
	}
	if k.table != nil {
		k.table.add(c)
		return k
	}
	if len(k.small) < smallChildren {
		s := make([]child, len(k.small)+1)
		copy(s, k.small)
		s[len(k.small)] = c
		return &childSet{small: s}
	}
	t := newChildTable(key)
	for _, o := range k.small {
		t.add(o)
	}
	t.add(c)
	return &childSet{table: t}
}

// without returns the set less one child; nil if it was the last.
func (k *childSet) without(c *run) *childSet {
	if k.table != nil {
		k.table.remove(child{c.off, c.first, c})
		if k.table.count > smallChildren/2 {
			return k
		}
		s := make([]child, 0, k.table.count)
		k.table.each(func(o *run) bool {
			s = append(s, child{o.off, o.first, o})
			return true
		})
		if len(s) == 0 {
			return nil
		}
		return &childSet{small: s}
	}
	if len(k.small) == 1 {
		return nil
	}
	s := make([]child, 0, len(k.small)-1)
	for _, o := range k.small {
		if o.run != c {
			s = append(s, o)
		}
	}
	return &childSet{small: s}
}

func (k *childSet) bytes() int64 {
	switch {
	case k == nil:
		return 0
	case k.table != nil:
		return 32 + k.table.bytes()
	}
	return 32 + sizeClass(int64(cap(k.small))*24)
}

// A childTable is an extendible hash table of children, for the root and for
// prefixes that very many prompts share. A leaf is rebuilt or split at 256
// slots, and joined with its buddy when few are left, so nothing stops the writer for longer than that takes.
//
// Publication: a leaf slot gets its run first, then its key; a removed slot
// keeps its key and loses its run. A rebuilt or split leaf is complete before
// the top table points to it. Readers load the top table once a lookup.
type childTable struct {
	top atomic.Pointer[[]*childLeaf] // 1<<depth leaves
	key hasher

	// The writer's.
	depth   uint8
	count   int
	leaves  int
	ofDepth [33]uint32 // how many of them are of each depth
	over    int        // leaves that others overflow into
	offs    offsets    // of the children
}

const (
	childSlots      = 256
	childTableBytes = 256
	childLeafBytes  = 4864 // 4,128 and what the allocator adds
)

type childLeaf struct {
	slots [childSlots]childSlot
	next  atomic.Pointer[childLeaf] // only where splitting is of no use (see makeRoom)

	depth uint8
	used  int // slots with a key
	live  int // slots with a run
}

// childSlot is one slot: key and run together, so in one cache line.
type childSlot struct {
	key atomic.Uint64 // mixed (off, first); 0 is free
	run atomic.Pointer[run]
}

const childFill = childSlots * 3 / 4

func (t *childTable) keyOf(off uint32, first uint64) uint64 { return max(t.key.mixAt(off, first), 1) }

func newChildTable(key hasher) *childTable {
	t := &childTable{key: key, leaves: 1}
	top := []*childLeaf{{}}
	t.top.Store(&top)
	t.ofDepth[0] = 1
	return t
}

func (t *childTable) find(off uint32, first uint64) *run {
	k := t.keyOf(off, first)
	top := *t.top.Load()
	l := leafOf(top, k)
	for ; l != nil; l = l.next.Load() {
		for i := k & (childSlots - 1); ; i = (i + 1) & (childSlots - 1) {
			got := l.slots[i].key.Load()
			if got == 0 {
				break
			}
			if got == k {
				// first and off are fixed for the life of a run.
				if r := l.slots[i].run.Load(); r != nil && r.first == first && r.off == off {
					return r
				}
			}
		}
	}
	return nil
}

func leafOf(top []*childLeaf, k uint64) *childLeaf {
	if len(top) == 1 {
		return top[0]
	}
	return top[k>>32*uint64(len(top))>>32]
}

func (t *childTable) add(c child) {
	k := t.keyOf(c.off, c.first)
	for {
		l := leafOf(*t.top.Load(), k)
		if l.used < childFill || !t.makeRoom(l) {
			if l.put(k, c.run) {
				t.over++
			}
			break
		}
	}
	t.count++
	t.offs.add(c.off)
}

// chain returns how many leaves l overflows into.
func (l *childLeaf) chain() int {
	n := 0
	for l = l.next.Load(); l != nil; l = l.next.Load() {
		n++
	}
	return n
}

// put enters a child in the leaf or, if that is full, in its overflow. It
// reports whether that took another leaf. A removed slot is not used again, as its key
// may be on some reader's way to another slot: rebuilding takes it out.
func (l *childLeaf) put(k uint64, r *run) (more bool) {
	for l.used >= childFill {
		if l.next.Load() == nil {
			l.next.Store(&childLeaf{depth: l.depth})
			more = true
		}
		l = l.next.Load()
	}
	for i := k & (childSlots - 1); ; i = (i + 1) & (childSlots - 1) {
		if l.slots[i].key.Load() == 0 {
			l.slots[i].run.Store(r) // the run first: whoever sees the key sees the run
			l.slots[i].key.Store(k)
			l.used++
			l.live++
			return more
		}
	}
}

// makeRoom rebuilds the leaf without its removed slots, or splits it. Keys
// chosen to share their leading bits must not double the top table for ever:
// when it is out of proportion to the number of children, the leaf overflows
// into another. It reports whether there is room in the leaf itself now.
func (t *childTable) makeRoom(l *childLeaf) bool {
	top := *t.top.Load()
	crowded := l.depth == t.depth && len(top) > 64+t.count/8
	if crowded && l.live > childSlots/2 {
		return false
	}
	if l.live <= childSlots/2 && l.next.Load() == nil {
		nl := &childLeaf{depth: l.depth}
		l.moveTo(func(uint64) *childLeaf { return nl })
		t.store(top, l, func(int) *childLeaf { return nl })
		return true
	}
	if l.depth == t.depth {
		nt := make([]*childLeaf, 2*len(top))
		for i, o := range top {
			nt[2*i], nt[2*i+1] = o, o
		}
		top = nt
		t.depth++
	}
	a, b := &childLeaf{depth: l.depth + 1}, &childLeaf{depth: l.depth + 1}
	bit := t.depth - l.depth - 1 // of the index in top, that tells a from b
	pick := func(i int) *childLeaf {
		if i>>bit&1 == 0 {
			return a
		}
		return b
	}
	n := uint64(len(top))
	l.moveTo(func(k uint64) *childLeaf { return pick(int(k >> 32 * n >> 32)) })
	t.leaves++
	t.ofDepth[l.depth]--
	t.ofDepth[a.depth] += 2
	t.over += a.chain() + b.chain() - l.chain()
	t.store(top, l, pick)
	return true
}

// moveTo enters the leaf's children, and those of its overflow, in other leaves.
func (l *childLeaf) moveTo(where func(k uint64) *childLeaf) {
	for ; l != nil; l = l.next.Load() {
		for i := range l.slots {
			if k := l.slots[i].key.Load(); k != 0 {
				if r := l.slots[i].run.Load(); r != nil {
					where(k).put(k, r)
				}
			}
		}
	}
}

// store publishes a top table in which old's entries point to new leaves. The table is
// copied: a reader that has the old one finds the old leaf in it, which still has all
// that it had.
func (t *childTable) store(top []*childLeaf, old *childLeaf, with func(i int) *childLeaf) {
	nt := make([]*childLeaf, len(top))
	for i, o := range top {
		if o == old {
			o = with(i)
		}
		nt[i] = o
	}
	t.top.Store(&nt)
}

// remove takes a child out: its slot keeps the key, without which what was put behind it
// would no longer be found.
func (t *childTable) remove(c child) {
	k := t.keyOf(c.off, c.first)
	l := leafOf(*t.top.Load(), k)
search:
	for ; l != nil; l = l.next.Load() {
		for i := k & (childSlots - 1); l.slots[i].key.Load() != 0; i = (i + 1) & (childSlots - 1) {
			if l.slots[i].run.Load() == c.run {
				l.slots[i].run.Store(nil)
				l.live--
				break search
			}
		}
	}
	t.count--
	t.offs.remove(c.off)
	t.shrink(k)
}

// childLow is how many children are few for a leaf: two leaves that have no more become one, and one no longer overflows.
const childLow = childSlots / 4

// shrink joins the leaf of the key with its buddy, or with what it overflows into, if few are left.
func (t *childTable) shrink(k uint64) {
	top := *t.top.Load()
	l := leafOf(top, k)
	if l.live > childLow {
		return
	}
	if l.next.Load() != nil {
		n := 0
		for o := l; o != nil; o = o.next.Load() {
			n += o.live
		}
		if n <= childLow {
			nl := &childLeaf{depth: l.depth}
			l.moveTo(func(uint64) *childLeaf { return nl })
			t.over -= l.chain()
			t.store(top, l, func(int) *childLeaf { return nl })
		}
		return
	}
	if l.depth == 0 {
		return
	}
	span := 1 << (t.depth - l.depth) // entries of each in top
	first := int(k>>32*uint64(len(top))>>32) &^ (span - 1)
	buddy := top[first^span]
	if buddy.depth != l.depth || buddy.next.Load() != nil || l.live+buddy.live > childLow {
		return
	}
	nl := &childLeaf{depth: l.depth - 1}
	for _, o := range []*childLeaf{l, buddy} {
		o.moveTo(func(uint64) *childLeaf { return nl })
	}
	nt := slices.Clone(top)
	for i := range 2 * span {
		nt[first&^span+i] = nl
	}
	t.leaves--
	t.ofDepth[l.depth] -= 2
	t.ofDepth[nl.depth]++
	for ; t.depth > 0 && t.ofDepth[t.depth] == 0; t.depth-- { // nobody needs all of the table
		half := make([]*childLeaf, len(nt)/2)
		for i := range half {
			half[i] = nt[2*i]
		}
		nt = half
	}
	t.top.Store(&nt)
}

func (t *childTable) each(f func(r *run) bool) {
	top := *t.top.Load()
	for i, l := range top {
		if i > 0 && top[i-1] == l {
			continue
		}
		for ; l != nil; l = l.next.Load() {
			for j := range l.slots {
				if r := l.slots[j].run.Load(); r != nil && !f(r) {
					return
				}
			}
		}
	}
}

func (t *childTable) bytes() int64 {
	return childTableBytes + int64(t.leaves+t.over)*childLeafBytes + 24 + sizeClass(8<<t.depth) + t.offs.bytes()
}
