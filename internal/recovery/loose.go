package recovery

import (
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Loose keeps what a rank holds and its publisher cannot place: blocks stored
// below parents which it does not know, because the stream lacks events that
// nobody has any more, and names of blocks whose content it was never told. Only
// a replica can find their place, with another worker (core.Index.Infer and
// Adopt); they are kept for replicas that come later, and so that copies are
// counted. The zero value is empty. It is not safe for concurrent use.
type Loose struct {
	// MaxNames is how many blocks StoreName may begin to keep; 0: none.
	MaxNames int

	blocks map[uint64]*looseBlock // by engine hash
	names  int                    // of them, those without content
}

type looseBlock struct {
	named         bool // by its name alone: parent and local are not known
	parent, local uint64
	copies        [event.NumTiers]uint32
}

// Len returns how many blocks there are.
func (l *Loose) Len() int { return len(l.blocks) }

// Names returns how many of them are known by name alone.
func (l *Loose) Names() int { return l.names }

// make returns the block, made if it is not here: as one known by name alone.
func (l *Loose) make(name uint64) *looseBlock {
	b := l.blocks[name]
	if b == nil {
		if l.blocks == nil {
			l.blocks = make(map[uint64]*looseBlock)
		}
		b = &looseBlock{named: true}
		l.blocks[name] = b
		l.names++
	}
	return b
}

// drop takes the block out.
func (l *Loose) drop(name uint64) {
	if l.blocks[name].named {
		l.names--
	}
	delete(l.blocks, name)
}

// Store takes the blocks of a stored event whose parent is not known. With
// copies counted, one that is there has a copy more.
func (l *Loose) Store(ev *event.Event, countCopies bool) {
	parent := ev.Parent
	for i, name := range ev.Engine[:min(len(ev.Engine), len(ev.Local))] {
		b := l.make(name)
		if b.named {
			l.names--
		} else if b.parent != parent || b.local != ev.Local[i] {
			b.copies = [event.NumTiers]uint32{}
		}
		b.named, b.parent, b.local = false, parent, ev.Local[i]
		b.add(ev.Tier, countCopies)
		parent = name
	}
}

// StoreName stores a block by its name alone. It reports whether the block is
// kept, and whether it is new on the tier.
func (l *Loose) StoreName(name uint64, tier event.Tier, countCopies bool) (kept, fresh bool) {
	b := l.blocks[name]
	if b == nil {
		if l.names >= l.MaxNames {
			return false, false
		}
		b = l.make(name)
	}
	fresh = b.copies[tier] == 0
	b.add(tier, countCopies)
	return true, fresh
}

func (b *looseBlock) add(tier event.Tier, countCopies bool) {
	if b.copies[tier] == 0 || countCopies && b.copies[tier] < maxCopies {
		b.copies[tier]++
	}
}

// Remove takes one copy, or without counting all of them. It reports whether
// none is left on the tier, which is so too for a block that is not here, and
// whether there was one.
func (l *Loose) Remove(name uint64, tier event.Tier, countCopies bool) (gone, was bool) {
	b := l.blocks[name]
	if b == nil {
		return true, false
	}
	was = b.copies[tier] > 0
	if was {
		b.copies[tier]--
	}
	if !countCopies {
		b.copies[tier] = 0
	}
	if b.copies == [event.NumTiers]uint32{} {
		l.drop(name)
	}
	return b.copies[tier] == 0, was
}

// Placed is a block that got its place.
type Placed struct {
	Name   uint64
	Named  bool // it was known by name alone
	Copies [event.NumTiers]uint32
}

// Place takes out those of the named blocks that are here, because an index has
// just stored them with their content, and calls placed for each.
func (l *Loose) Place(names []uint64, placed func(Placed)) {
	if len(l.blocks) == 0 {
		return
	}
	for _, name := range names {
		b := l.blocks[name]
		if b == nil {
			continue
		}
		l.drop(name)
		placed(Placed{name, b.named, b.copies})
	}
}

// Store stores the block's copies by its name.
func (p *Placed) Store(x core.Index, h core.Holder, countCopies bool) {
	one := event.Event{Kind: event.Stored, Engine: []uint64{p.Name}}
	for t, n := range p.Copies {
		one.Tier = event.Tier(t)
		for range n {
			x.Store(h, &one, countCopies)
		}
	}
}

// Clear drops what is on the tier, or everything, and returns how many blocks
// were there.
func (l *Loose) Clear(tier event.Tier, allTiers bool) (cleared int) {
	if allTiers {
		cleared = len(l.blocks)
		l.blocks, l.names = nil, 0
	}
	for name, b := range l.blocks {
		if b.copies[tier] > 0 {
			cleared++
		}
		if b.copies[tier] = 0; b.copies == [event.NumTiers]uint32{} {
			l.drop(name)
		}
	}
	return cleared
}

// Dump calls add for events that bring the blocks back, parents before children,
// each with its number of copies: of one block, marked as incomplete, by name
// alone on all tiers but the first, or on all if that is all that is known.
func (l *Loose) Dump(add func(ev *event.Event, copies []uint32)) {
	given := make(map[uint64]bool, len(l.blocks))
	var path []uint64
	for _, name := range slices.Sorted(maps.Keys(l.blocks)) {
		for n := name; l.blocks[n] != nil && !given[n]; n = l.blocks[n].parent {
			given[n] = true
			path = append(path, n)
			if l.blocks[n].named {
				break
			}
		}
		for len(path) > 0 {
			n := path[len(path)-1]
			path = path[:len(path)-1]
			l.blocks[n].dump(n, add)
		}
	}
}

func (b *looseBlock) dump(name uint64, add func(ev *event.Event, copies []uint32)) {
	ev := event.Event{Kind: event.Stored, Incomplete: true, Engine: []uint64{name}}
	if !b.named {
		ev.HasParent, ev.Parent, ev.Local = true, b.parent, []uint64{b.local}
	}
	for t, n := range b.copies {
		if n == 0 {
			continue
		}
		ev.Tier = event.Tier(t)
		add(&ev, []uint32{n})
		ev.HasParent, ev.Parent, ev.Local = false, 0, nil
	}
}

// Restore takes an event of Dump, whatever MaxNames says.
func (l *Loose) Restore(ev *event.Event, copies []uint32) {
	for i := range min(len(ev.Engine), len(copies)) {
		one := *ev
		one.Engine = ev.Engine[i : i+1]
		if len(ev.Local) > i {
			one.Local = ev.Local[i : i+1]
			l.Store(&one, false)
		}
		for c := uint32(len(one.Local)); c < copies[i]; c++ {
			l.make(one.Engine[0]).add(ev.Tier, true)
		}
	}
}
