package mock

import "math/bits"

// names finds the run of a name: a table with linear probing, as one line of memory is
// what a lookup may cost where hundreds of engines have one each.
type names struct {
	slots []nameSlot // a power of two, at most half of them in use
	shift int
	used  int
}

type nameSlot struct {
	name uint64
	run  int32 // 0 where the slot is free
}

const fewestNames = 64

func newNames() names { return names{}.of(fewestNames) }

// of returns a table of so many slots, with what is in t.
func (t names) of(slots int) names {
	bigger := names{slots: make([]nameSlot, slots), shift: 64 - bits.Len(uint(slots-1))}
	for _, s := range t.slots {
		if s.run != 0 {
			bigger.slots[bigger.at(s.name)] = s
		}
	}
	bigger.used = t.used
	return bigger
}

// home is where a name is looked for first.
func (t *names) home(name uint64) int { return int(name * 0x9e3779b97f4a7c15 >> t.shift) }

// at returns the slot of the name, or the free one that it would have.
func (t *names) at(name uint64) int {
	i := t.home(name)
	for t.slots[i].run != 0 && t.slots[i].name != name {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

func (t *names) get(name uint64) (run int32, ok bool) {
	r := t.slots[t.at(name)].run
	return r, r != 0
}

func (t *names) set(name uint64, run int32) {
	i := t.at(name)
	if t.slots[i].run == 0 {
		if 2*t.used == len(t.slots) {
			*t = t.of(2 * len(t.slots))
			i = t.at(name)
		}
		t.used++
	}
	t.slots[i] = nameSlot{name, run}
}

// remove takes a name out, and moves up what had to give way to it.
func (t *names) remove(name uint64) {
	i := t.at(name)
	if t.slots[i].run == 0 {
		return
	}
	t.used--
	mask := len(t.slots) - 1
	for k := (i + 1) & mask; t.slots[k].run != 0; k = (k + 1) & mask {
		// It may stand in the gap unless its home lies after the gap, up to where it is.
		if h := t.home(t.slots[k].name); (k-h)&mask >= (k-i)&mask {
			t.slots[i] = t.slots[k]
			i = k
		}
	}
	t.slots[i] = nameSlot{}
}
