package core

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestChildrenComeAndGo: a table of very many children, some of whose keys share their leading bits, finds each of them and
// no other; it grows and shrinks leaf by leaf, and is small again when few are left.
func TestChildrenComeAndGo(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	if n := sizeClass(int64(unsafe.Sizeof(childTable{}))); n > childTableBytes {
		t.Errorf("a table has %d bytes, %d are accounted", n, childTableBytes)
	}
	r := rand.New(rand.NewPCG(1, 30))
	table := newChildTable(Key{1, 2}.hasher())
	var crowd []uint64 // first hashes of keys that go to the same leaf for long
	for len(crowd) < 600 {
		if first := r.Uint64(); table.keyOf(7, first)>>54 == 5 {
			crowd = append(crowd, first)
		}
	}
	var in []child
	is := make(map[child]bool)
	change := func(f func()) {
		leaves := table.leaves
		if f(); table.leaves > leaves+1 || table.leaves < leaves-1 {
			t.Fatalf("%d leaves, then %d", leaves, table.leaves)
		}
	}
	add := func(off uint32, first uint64) {
		if c := (child{off, first, &run{off: off, first: first}}); table.find(off, first) == nil {
			change(func() { table.add(c) })
			in, is[c] = append(in, c), true
		}
	}
	remove := func() {
		i := r.IntN(len(in))
		c := in[i]
		in[i] = in[len(in)-1]
		in = in[:len(in)-1]
		delete(is, c)
		if change(func() { table.remove(c) }); table.find(c.off, c.first) != nil {
			t.Fatal("a child is found that was removed")
		}
	}
	check := func(most int) {
		t.Helper()
		for c := range is {
			if table.find(c.off, c.first) != c.run {
				t.Fatalf("of %d children one is not found", len(in))
			}
		}
		n := 0
		table.each(func(c *run) bool { n++; return is[child{c.off, c.first, c}] })
		depths := 0
		for _, k := range table.ofDepth {
			depths += int(k)
		}
		if n != len(in) || n != table.count || depths != table.leaves || len(*table.top.Load()) != 1<<table.depth {
			t.Fatalf("%d children of %d, %d leaves of %d, %d entries for depth %d", n, len(in), depths, table.leaves, len(*table.top.Load()), table.depth)
		}
		if have := table.leaves + table.over; have > most {
			t.Fatalf("%d leaves for %d children", have, len(in))
		}
	}
	for range 3 {
		for range 20_000 {
			add(uint32(r.IntN(4)), r.Uint64())
		}
		for _, first := range crowd {
			add(7, first)
		}
		check(600)
		for range 40_000 {
			if r.IntN(2) == 0 {
				add(uint32(r.IntN(4)), r.Uint64())
			} else {
				remove()
			}
		}
		check(600)
		for len(in) > 1000 {
			remove()
		}
		check(80)
		for len(in) > 20 {
			remove()
		}
		check(2)
	}
}
