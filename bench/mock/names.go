package mock

import "math/bits"

// names finds the block of a name: a table with linear probing, as one line of memory is
// what a lookup may cost where hundreds of engines have one each.
type names struct {
	slots []nameSlot // a power of two, at most half of them in use
	shift int
	used  int
}

type nameSlot struct {
	name  uint64
	block int32 // plus one; 0 where the slot is free
}

// newNames makes a table for so many names, and never more.
func newNames(m *Memory, most int) names {
	log := bits.Len(uint(2*most - 1))
	return names{slots: table[nameSlot](m, 1<<log), shift: 64 - log}
}

// home is where a name is looked for first.
func (t *names) home(name uint64) int { return int(name * 0x9e3779b97f4a7c15 >> t.shift) }

// at returns the slot of the name, or the free one that it would have.
func (t *names) at(name uint64) int {
	i := t.home(name)
	for t.slots[i].block != 0 && t.slots[i].name != name {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

func (t *names) get(name uint64) (block int32, ok bool) {
	b := t.slots[t.at(name)].block
	return b - 1, b != 0
}

func (t *names) set(name uint64, block int32) {
	s := &t.slots[t.at(name)]
	if s.block == 0 {
		t.used++
	}
	*s = nameSlot{name, block + 1}
}

// remove takes a name out, and moves up what had to give way to it.
func (t *names) remove(name uint64) {
	i := t.at(name)
	if t.slots[i].block == 0 {
		return
	}
	t.used--
	mask := len(t.slots) - 1
	for k := (i + 1) & mask; t.slots[k].block != 0; k = (k + 1) & mask {
		// It may stand in the gap unless its home lies after the gap, up to where it is.
		if h := t.home(t.slots[k].name); (k-h)&mask >= (k-i)&mask {
			t.slots[i] = t.slots[k]
			i = k
		}
	}
	t.slots[i] = nameSlot{}
}

func (t *names) clear() {
	clear(t.slots)
	t.used = 0
}
