package chains

import (
	"runtime"
	"testing"
)

// Elements stay where they are, and who gets a number that was in use gets it empty.
func TestElementsDoNotMove(t *testing.T) {
	var s Slab[int]
	at := map[uint32]*int{}
	for n := range 3 * pageSize {
		k := s.Take()
		p := s.At(k)
		if *p != 0 || at[k] != nil && at[k] != p {
			t.Fatalf("element %d is %d", k, *p)
		}
		if *p, at[k] = n+1, p; n%3 == 2 {
			s.Give(k)
		}
	}
	for k, p := range at {
		if s.At(k) != p {
			t.Fatalf("element %d has moved", k)
		}
	}
	if s.Live() != 2*pageSize || s.Len() != len(at) || s.Len() != s.Live()+1 {
		t.Errorf("%d of %d elements live, %d were seen", s.Live(), s.Len(), len(at))
	}
}

// A chain that is parted at every block, from its end on, has not an array for each that is as long as it was.
func TestPartedChainsHoldLittle(t *testing.T) {
	const blocks = 4096
	chain := make([]uint64, blocks)
	tree := New[int]()
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	at := tree.Hang(Root, chain)
	for n := blocks - 1; n > 0; n-- {
		at = tree.Split(at, n)
	}
	if used := heap() - before; used > 8<<20 {
		t.Errorf("%d nodes of one block take %d bytes", tree.Live(), used)
	}
	runtime.KeepAlive(tree)
}
