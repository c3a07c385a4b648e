package recovery

import (
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Orphans keeps the blocks that a rank stored below parents which its publisher
// does not know, because the stream lacks events that nobody has any more. Only
// a replica can find their position, with another worker (core.Index.Infer); they
// are kept for replicas that come later, and so that copies are counted. The
// zero value is empty. It is not safe for concurrent use.
type Orphans struct {
	blocks map[uint64]*orphan // by engine hash
}

type orphan struct {
	parent, local uint64
	copies        [event.NumTiers]uint32
}

// Len returns how many blocks there are.
func (l *Orphans) Len() int { return len(l.blocks) }

// Store takes the blocks of a stored event whose parent is not known. With
// copies counted, one that is there has a copy more.
func (l *Orphans) Store(ev *event.Event, countCopies bool) {
	parent := ev.Parent
	for i, hash := range ev.Engine[:min(len(ev.Engine), len(ev.Local))] {
		b := l.blocks[hash]
		if b == nil || b.parent != parent || b.local != ev.Local[i] {
			b = &orphan{parent: parent, local: ev.Local[i]}
			if l.blocks == nil {
				l.blocks = make(map[uint64]*orphan)
			}
			l.blocks[hash] = b
		}
		b.add(ev.Tier, countCopies)
		parent = hash
	}
}

// StoreHashOnly stores a block by its hash alone. It reports false for one that is
// not here.
func (l *Orphans) StoreHashOnly(hash uint64, tier event.Tier, countCopies bool) bool {
	b := l.blocks[hash]
	if b != nil {
		b.add(tier, countCopies)
	}
	return b != nil
}

func (b *orphan) add(tier event.Tier, countCopies bool) {
	if b.copies[tier] == 0 || countCopies && b.copies[tier] < maxCopies {
		b.copies[tier]++
	}
}

// Remove takes one copy, or without counting all of them. It reports whether
// none is left on the tier, which is so too for a block that is not here.
func (l *Orphans) Remove(hash uint64, tier event.Tier, countCopies bool) (gone bool) {
	b := l.blocks[hash]
	if b == nil {
		return true
	}
	if b.copies[tier] > 0 {
		b.copies[tier]--
	}
	if !countCopies {
		b.copies[tier] = 0
	}
	if b.copies == [event.NumTiers]uint32{} {
		delete(l.blocks, hash)
	}
	return b.copies[tier] == 0
}

// Attach takes out those of the blocks that the index has just stored for h, and
// brings their copies there.
func (l *Orphans) Attach(x core.Index, h core.Holder, hashes []uint64, countCopies bool) {
	if len(l.blocks) == 0 {
		return
	}
	one := event.Event{Kind: event.Stored, Engine: make([]uint64, 1)}
	for _, hash := range hashes {
		b := l.blocks[hash]
		if b == nil {
			continue
		}
		delete(l.blocks, hash)
		one.Engine[0] = hash
		for t, n := range b.copies {
			one.Tier = event.Tier(t)
			for range n {
				x.Store(h, &one, countCopies)
			}
		}
	}
}

// Clear drops what is on the tier, or everything.
func (l *Orphans) Clear(tier event.Tier, allTiers bool) {
	if allTiers {
		l.blocks = nil
	}
	for hash, b := range l.blocks {
		if b.copies[tier] = 0; b.copies == [event.NumTiers]uint32{} {
			delete(l.blocks, hash)
		}
	}
}

// Dump calls add for events that bring the blocks back, parents before children,
// each with its number of copies: of one block, marked as incomplete, by hash
// alone on all tiers but the first.
func (l *Orphans) Dump(add func(ev *event.Event, copies []uint32)) {
	given := make(map[uint64]bool, len(l.blocks))
	var path []uint64
	for _, hash := range slices.Sorted(maps.Keys(l.blocks)) {
		for n := hash; l.blocks[n] != nil && !given[n]; n = l.blocks[n].parent {
			given[n] = true
			path = append(path, n)
		}
		for len(path) > 0 {
			n := path[len(path)-1]
			path = path[:len(path)-1]
			l.blocks[n].dump(n, add)
		}
	}
}

func (b *orphan) dump(hash uint64, add func(ev *event.Event, copies []uint32)) {
	ev := event.Event{Kind: event.Stored, Incomplete: true, HasParent: true, Parent: b.parent, Engine: []uint64{hash}, Local: []uint64{b.local}}
	for t, n := range b.copies {
		if n == 0 {
			continue
		}
		ev.Tier = event.Tier(t)
		add(&ev, []uint32{n})
		ev.HasParent, ev.Parent, ev.Local = false, 0, nil
	}
}

// Restore takes an event of Dump.
func (l *Orphans) Restore(ev *event.Event, copies []uint32) {
	for i := range min(len(ev.Engine), len(copies)) {
		one := *ev
		one.Engine = ev.Engine[i : i+1]
		if len(ev.Local) > i {
			one.Local = ev.Local[i : i+1]
			l.Store(&one, false)
		}
		for c := uint32(len(one.Local)); c < copies[i]; c++ {
			l.StoreHashOnly(one.Engine[0], ev.Tier, true)
		}
	}
}
