package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// TestVectorsSearchAsTheLoops: what assembly finds in segments and among words is what the loops do, wherever it stands, more than
// once or not at all.
func TestVectorsSearchAsTheLoops(t *testing.T) {
	eachVectors(t, vectorsSearchAsTheLoops)
}

func vectorsSearchAsTheLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 47))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	var all []uint32
	for range slabSegs + 100 { // in two slabs
		s := a.alloc(1, 0, 0)
		for i := range a.hashes(s) {
			a.hashes(s)[i] = r.Uint64N(1 << 40)
		}
		all = append(all, s)
	}
	found := 0
	for range 4000 {
		segs := make([]uint32, r.IntN(40))
		for i := range segs {
			segs[i] = all[r.IntN(len(all))]
		}
		hash := r.Uint64N(1 << 40)
		if len(segs) > 0 && r.IntN(3) > 0 {
			hash = a.hashes(segs[r.IntN(len(segs))])[r.IntN(segBlocks)]
		}
		want := a.searchEach(segs, hash)
		if got := a.search(segs, hash); got != want {
			t.Fatalf("segment %d of %d has the hash, found in %d", want, len(segs), got)
		}
		if want < len(segs) {
			found++
		}

		words := make([]uint64, 8*r.IntN(20))
		for i := range words {
			words[i] = r.Uint64N(200)
		}
		word := r.Uint64N(200)
		if got, want := indexWord(words, word), slices.Index(words, word); got != want {
			t.Fatalf("word %d of %d is the one, found %d", want, len(words), got)
		}
	}
	if found < 1000 {
		t.Errorf("%d were there", found)
	}
}
