package groups

import (
	"maps"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Table is what one rank holds in each of its cache groups: of each name that its engine
// gives a block, which groups hold it on which tier, and where in a prompt it stands.
// Group 0 says the latter: all groups call the end of the same prefix the same, and what
// group 0 does not hold no prompt can be reused beyond. So the order in which groups say
// what they store does not matter.
//
// The zero value is not ready; NewTable makes one. It has one writer at a time, and no
// reader beside it.
type Table struct {
	entries []entry
	free    []uint32          // entries that are none
	names   map[uint64]uint32 // entry by name
	places  map[uint64]uint32 // first entry by place, a sequence hash
	more    map[copyOf]uint32 // copies beyond the first

	lost    int    // blocks of group 0 whose place is not known
	seen    uint16 // groups that blocks were stored of
	tiers   uint8  // tiers that blocks were stored on since they were cleared
	partial bool   // something that is held may not be here

	recent [event.NumTiers]recent
	steps  int // entries that clears have looked at: tests count them
}

type entry struct {
	name   uint64
	place  uint64
	held   uint64 // bits of heldBit
	next   uint32 // entry of the same place, and 1
	placed bool
}

type copyOf struct {
	name uint64
	bit  uint8
}

// heldBit numbers what an entry may hold: tier by tier, each with all groups.
func heldBit(group uint8, t event.Tier) uint8 { return uint8(t)*event.MaxCacheGroups + group }

// ofGroup is the bits of a group on the device, to be shifted to other tiers.
func ofGroup(group uint8, upTo event.Tier) (mask uint64) {
	for t := event.Device; t <= upTo; t++ {
		mask |= 1 << heldBit(group, t)
	}
	return mask
}

const (
	ofMain = 1 | 1<<event.MaxCacheGroups | 1<<(2*event.MaxCacheGroups) | 1<<(3*event.MaxCacheGroups) // group 0, on any tier
	ofTier = 1<<event.MaxCacheGroups - 1                                                             // all groups, on the device
)

// NewTable returns an empty Table.
func NewTable() *Table {
	t := &Table{}
	t.reset()
	return t
}

func (t *Table) reset() {
	*t = Table{names: make(map[uint64]uint32), places: make(map[uint64]uint32)}
}

// MarkPartial notes that something was lost: what is held may not be all here, until the
// rank is cleared or dumped anew.
func (t *Table) MarkPartial() { t.partial = true }

// Apply applies an event of the rank, of any group, and returns what it did to blocks of
// groups other than 0: those of group 0 are the index's to count.
func (t *Table) Apply(ev *event.Event, countCopies bool) (out core.Outcome) {
	t.partial = t.partial || ev.Incomplete
	switch {
	case ev.Kind == event.Cleared:
		out.Removed = t.clear(ev.Tier, ev.AllTiers)
		t.partial = ev.Incomplete || t.partial && !ev.AllTiers
		return out
	case ev.Tier >= event.NumTiers || ev.Group >= event.MaxCacheGroups:
		return out
	case ev.Kind == event.Removed:
		t.remove(ev, countCopies, &out)
	case ev.Kind == event.Stored:
		t.store(ev, countCopies, nil, &out)
	}
	if ev.Group == 0 {
		return core.Outcome{}
	}
	return out
}

// Restore applies an event of a dump, with the copies of each of its blocks (see
// core.Index.Dump): names without copies are known until Restored.
func (t *Table) Restore(ev *event.Event, copies []uint32) (out core.Outcome) {
	if ev.Kind != event.Stored || ev.Tier >= event.NumTiers || ev.Group >= event.MaxCacheGroups || len(copies) < len(ev.Engine) {
		return out
	}
	t.partial = t.partial || ev.Incomplete
	t.store(ev, true, copies, &out)
	return out
}

// Restored ends what Restore began.
func (t *Table) Restored() {
	for _, at := range t.names {
		t.drop(at)
	}
}

// store stores blocks. Those of group 0 with content get their places.
func (t *Table) store(ev *event.Event, countCopies bool, copies []uint32, out *core.Outcome) {
	if len(ev.Engine) > 0 {
		t.seen |= 1 << ev.Group
		t.tiers |= 1 << ev.Tier
	}
	place, placed := uint64(0), false
	n := len(ev.Engine)
	if ev.Group == 0 && len(ev.Local) > 0 {
		n = min(n, len(ev.Local))
		if placed = !ev.HasParent; ev.HasParent {
			if at, ok := t.names[ev.Parent]; ok {
				place, placed = t.entries[at].place, t.entries[at].placed
			}
		}
	}
	for i := range n {
		if ev.Group == 0 && len(ev.Local) > 0 {
			if i == 0 && !ev.HasParent {
				place = ev.Local[0]
			} else {
				place = blockhash.NextSequenceHash(place, ev.Local[i])
			}
			if i+1 < n && ev.Engine[i+1] == ev.Engine[i] {
				continue // of a dump: a block that the rank has no name for
			}
		}
		at, known := t.names[ev.Engine[i]]
		if !known {
			if ev.Group == 0 && len(ev.Local) == 0 {
				continue // the index knows no such block either, or says so
			}
			at = t.make(ev.Engine[i])
		}
		if placed {
			t.bind(at, place)
		}
		many := uint32(1)
		if copies != nil {
			many = copies[i]
		}
		if many > 0 {
			t.hold(at, heldBit(ev.Group, ev.Tier), countCopies, many, out)
		}
	}
}

// hold adds copies.
func (t *Table) hold(at uint32, bit uint8, countCopies bool, many uint32, out *core.Outcome) {
	e := &t.entries[at]
	if e.held&(1<<bit) == 0 {
		if e.held&ofMain == 0 && 1<<bit&uint64(ofMain) != 0 && !e.placed {
			t.lost++
		}
		t.note(at, event.Tier(bit/event.MaxCacheGroups))
		e.held |= 1 << bit
		out.Stored++
		many--
	} else {
		out.Duplicate++
	}
	if countCopies && many > 0 {
		if t.more == nil {
			t.more = make(map[copyOf]uint32)
		}
		t.more[copyOf{e.name, bit}] += many
	}
}

func (t *Table) remove(ev *event.Event, countCopies bool, out *core.Outcome) {
	bit := heldBit(ev.Group, ev.Tier)
	for _, name := range ev.Engine {
		at, known := t.names[name]
		switch key := (copyOf{name, bit}); {
		case !known || t.entries[at].held&(1<<bit) == 0:
			out.Unknown++
		case countCopies && t.more[key] > 0:
			if t.more[key]--; t.more[key] == 0 {
				delete(t.more, key)
			}
			out.Decremented++
		default:
			delete(t.more, key)
			t.let(at, 1<<bit)
			t.drop(at)
			out.Removed++
		}
	}
}

// let takes bits from an entry.
func (t *Table) let(at uint32, mask uint64) {
	e := &t.entries[at]
	if !e.placed && e.held&ofMain != 0 && e.held&^mask&ofMain == 0 {
		t.lost--
	}
	e.held &^= mask
}

func (t *Table) make(name uint64) uint32 {
	at := uint32(len(t.entries))
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.entries = append(t.entries, entry{})
	}
	t.entries[at] = entry{name: name}
	t.names[name] = at
	return at
}

// drop forgets an entry that holds nothing.
func (t *Table) drop(at uint32) {
	e := &t.entries[at]
	if e.held != 0 {
		return
	}
	t.unbind(at)
	delete(t.names, e.name)
	*e = entry{}
	t.free = append(t.free, at)
}

// bind says where the entry's block stands.
func (t *Table) bind(at uint32, place uint64) {
	e := &t.entries[at]
	if e.placed && e.place == place {
		return
	}
	t.unbind(at)
	first, ok := t.places[place]
	if ok && t.crowded(first) {
		return // one without a known place
	}
	if e.held&ofMain != 0 {
		t.lost--
	}
	e.place, e.placed = place, true
	if ok {
		e.next = first + 1
	}
	t.places[place] = at
}

// maxNames is how many names of one place are followed. An engine has one, or a few after
// it has changed how it hashes; who gives more does not make others wait.
const maxNames = 8

// crowded tells whether the place has as many names as it may.
func (t *Table) crowded(first uint32) bool {
	n := 1
	for at := first; t.entries[at].next != 0; at = t.entries[at].next - 1 {
		n++
	}
	return n >= maxNames
}

// unbind takes the entry off its place.
func (t *Table) unbind(at uint32) {
	e := &t.entries[at]
	if !e.placed {
		return
	}
	if e.held&ofMain != 0 {
		t.lost++
	}
	e.placed = false
	if first := t.places[e.place]; first == at {
		if e.next == 0 {
			delete(t.places, e.place)
		} else {
			t.places[e.place] = e.next - 1
		}
	} else {
		before := first
		for t.entries[before].next != at+1 {
			before = t.entries[before].next - 1
		}
		t.entries[before].next = e.next
	}
	e.next = 0
}

// holds tells whether some block at the place has one of the bits.
func (t *Table) holds(place uint64, mask uint64) bool {
	at, ok := t.places[place]
	if !ok {
		return false
	}
	for {
		e := &t.entries[at]
		if e.held&mask != 0 {
			return true
		}
		if e.next == 0 {
			return false
		}
		at = e.next - 1
	}
}

// Reusable returns how many leading blocks of a prompt the rank can reuse, for each tier and
// those before it: places are the sequence hashes of the prompt's blocks, main how many
// of them group 0 holds, tokens how long the prompt is; 0 if that is not known, and then
// something follows its last block.
func (t *Table) Reusable(m *Model, places []uint64, tokens int, main [event.NumTiers]uint32) (depth [event.NumTiers]uint32) {
	size := m.layout.unit
	if tokens == 0 {
		tokens = len(places)*size + 1
	}
	for tier := range event.Tier(event.NumTiers) {
		if tier > 0 && main[tier] == main[tier-1] && t.tiers>>tier&1 == 0 {
			depth[tier] = depth[tier-1]
			continue
		}
		depth[tier] = uint32(m.layout.Reusable(tokens, func(i, end int) bool {
			at := end / size
			if m.numbers[i] == 0 {
				return at <= int(main[tier])
			}
			return at <= len(places) && t.holds(places[at-1], ofGroup(m.numbers[i], tier))
		}) / size)
		if tier > 0 { // with EAGLE a longer candidate may come to less
			depth[tier] = max(depth[tier], depth[tier-1])
		}
	}
	return depth
}

// Exact tells whether what Reusable returns is what the engine would reuse; else it may be
// less or more. A group that nothing was stored of since all was cleared may be one that is
// not told, or not there any more: an engine may come back with others.
func (t *Table) Exact(m *Model) bool { return !t.partial && t.lost == 0 && t.seen == m.known }

// Dump calls f for events that, after those that rebuild group 0, rebuild the other groups,
// in a fixed order. copies[i] is how many copies Engine[i] has. Slices live until f returns.
func (t *Table) Dump(f func(ev *event.Event, copies []uint32)) {
	t.dump(slices.Sorted(maps.Keys(t.names)), f)
}

// Copy is Dump in any order, for less time.
func (t *Table) Copy(f func(ev *event.Event, copies []uint32)) {
	t.dump(slices.Collect(maps.Keys(t.names)), f)
}

func (t *Table) dump(names []uint64, f func(ev *event.Event, copies []uint32)) {
	var copies []uint32
	ev := event.Event{Kind: event.Stored, Incomplete: t.partial}
	for group := uint8(1); group < event.MaxCacheGroups; group++ {
		if t.seen>>group&1 == 0 {
			continue
		}
		for tier := range event.Tier(event.NumTiers) {
			ev.Group, ev.Tier = group, tier
			bit := heldBit(group, tier)
			flush := func() {
				if len(copies) > 0 {
					f(&ev, copies)
				}
				ev.Engine, copies = ev.Engine[:0], copies[:0]
			}
			for _, name := range names {
				if t.entries[t.names[name]].held>>bit&1 != 0 {
					ev.Engine, copies = append(ev.Engine, name), append(copies, 1+t.more[copyOf{name, bit}])
				}
				if len(copies) == maxDumped {
					flush()
				}
			}
			flush()
		}
	}
}

// maxDumped is how many blocks an event of a dump has at most.
const maxDumped = 2048

// Digest returns the sum over the held blocks of groups other than 0 of their terms (see
// core.DigestTerm), in which they have no place.
func (t *Table) Digest(space, worker uint64, dpRank uint32) (sum uint64) {
	t.Copy(func(ev *event.Event, copies []uint32) {
		for i, name := range ev.Engine {
			sum += core.DigestTerm(space, worker, dpRank, ev.Tier, uint32(ev.Group), name, 0, copies[i])
		}
	})
	return sum
}

// Partial tells whether something that is held may not be here.
func (t *Table) Partial() bool { return t.partial }

// Held returns how many blocks groups other than 0 hold, and Names how many blocks of all
// groups are told apart.
func (t *Table) Held() (n int) {
	for _, at := range t.names {
		n += bits.OnesCount64(t.entries[at].held &^ ofMain)
	}
	return n
}

// Knows tells whether some group holds a block of the name.
func (t *Table) Knows(name uint64) bool {
	_, ok := t.names[name]
	return ok
}

// Names returns how many blocks are known.
func (t *Table) Names() int { return len(t.names) }

// Bytes returns about how many bytes the Table uses.
func (t *Table) Bytes() int64 {
	slots := func(n int) int64 { // of a map: it doubles beyond 7 of 8
		size := int64(8)
		for size*7/8 < int64(n) {
			size *= 2
		}
		return size
	}
	noted := 0
	for i := range t.recent {
		noted += cap(t.recent[i].entries)
	}
	return 384 + int64(cap(t.entries))*40 + int64(noted)*4 + int64(cap(t.free))*4 + 17*(slots(len(t.names))+slots(len(t.places))) + 33*int64(len(t.more))
}
