package chains

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Random chains come and go; what is there is always what a list of them says.
func TestChainsComeAndGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	tree := New[int]() // a node is how many chains end there
	at := map[uint32][]uint64{}
	for step := range 1000 {
		chain := make([]uint64, 1+rng.IntN(40))
		for i := range chain {
			chain[i] = rng.Uint64N(2) * rng.Uint64N(2) // also the same hash at many places
		}
		node, rest := uint32(Root), chain
		for len(rest) > 0 {
			next, n := tree.Step(node, rest)
			switch {
			case n == 0:
				next, n = tree.Hang(node, rest), len(rest)
			case n < len(tree.At(next).Blocks):
				next = tree.Split(next, n)
			}
			node, rest = next, rest[n:]
		}
		tree.At(node).Is++
		at[node] = chain
		for end := range at {
			if len(at) < 30 && step < 950 {
				break
			}
			delete(at, end)
			tree.At(end).Is = 0
			for n := tree.At(end); end != Root && n.Is == 0 && n.children == 0; n = tree.At(end) {
				up := n.Parent
				if len(n.Blocks) > 1 { // as who trims before
					tree.Trim(end, 1)
				}
				tree.Unhang(end)
				end = up
			}
			if end != Root && tree.At(end).Is == 0 && tree.Single(end) {
				tree.Merge(end)
			}
		}
		for end, chain := range at {
			if got := tree.Chain(nil, end); !slices.Equal(got, chain) {
				t.Fatalf("step %d: %v is %v", step, chain, got)
			}
		}
		if tree.Live() > 2*len(at) || len(tree.children) != tree.Live() {
			t.Fatalf("step %d: %d nodes, %d children, %d chains", step, tree.Live(), len(tree.children), len(at))
		}
		kept := 0
		for size, arrays := range tree.spare {
			for _, b := range arrays {
				if kept += cap(b); cap(b) < 1<<size {
					t.Fatalf("step %d: an array of %d is kept as one of %d", step, cap(b), 1<<size)
				}
			}
		}
		if kept != tree.kept || kept > mostKept {
			t.Fatalf("step %d: %d are kept, %d counted", step, kept, tree.kept)
		}
	}
	if tree.Live() != 0 {
		t.Errorf("%d nodes are left of nothing", tree.Live())
	}
}
