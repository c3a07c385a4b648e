package core

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/testing/vectortest"
)

// whatVectorsDo is each of the assembly's loops, given so many hashes.
type whatVectorsDo struct {
	what string
	f    func()
}

func eachThatVectorsDo(n int, f func(do whatVectorsDo)) {
	r := rand.New(rand.NewPCG(uint64(n), 50))
	key := Key{1, 50}.hasher()
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	d := &directory{arena: a, pages: &pages{stock: a.stock}, key: key}
	d.insert(r.Uint64(), a.alloc(1, 0, 0)<<segBits)
	hashes := make([]uint64, n, n+8)
	for i := range hashes {
		hashes[i] = r.Uint64()
	}
	segs := []uint32{a.alloc(1, 0, 0), a.alloc(1, 0, 0)}
	for i := range segBlocks {
		a.hashes(segs[1])[i] = r.Uint64()
	}
	other := slices.Clone(hashes)
	other[n-1] ^= 1 << 63
	c, fl, p := newContent(hashes, n), newFilter(n), &probe{}
	d.locate(p, hashes)
	for i := range p.n {
		p.blocks[i] = a.alloc(1, 0, 0) << segBits
		a.set(p.blocks[i], hashes[i])
	}
	words := hashes[: n : n+8][:(n+7)&^7]
	for _, do := range []whatVectorsDo{
		{"comparing", func() { matchLen(hashes, other[:n-1]) }},
		{"comparing what differs", func() { matchLen(hashes, other) }},
		{"comparing content", func() { c.matchLen(0, other[:n-1]) }},
		{"comparing content that differs", func() { c.matchLen(0, other) }},
		{"asking for a filter's lines", func() { fl.ask(&key, hashes) }},
		{"asking a filter", func() { fl.leadingAbsent(&key, hashes) }},
		{"adding to a filter", func() { fl.add(&key, hashes) }},
		{"asking a filter that has them", func() { fl.leadingAbsent(&key, hashes) }},
		{"dropping from a filter", func() { fl.drop(&key, hashes) }},
		{"aiming", func() { d.aimAt(p.at[:p.n], hashes) }},
		{"entering", func() { insertAt(p.at[:p.n], p.blocks[:p.n]) }},
		{"removing", func() { removeAt(p.at[:p.n], p.blocks[:p.n]) }},
		{"asking for segments", func() { a.ask(segs) }},
		{"searching in vain", func() { a.search(segs, 1) }},
		{"searching", func() { a.search(segs, a.hashes(segs[1])[3]) }},
		{"looking for a word in vain", func() { indexWord(words, 1) }},
		{"looking for a word", func() { indexWord(words, hashes[n-1]) }},
	} {
		f(do)
	}
}

// TestVectorsAreLeftClean: whatever assembly was given, the upper halves of the vectors are clear after it, or what is compiled
// would be slower until somebody else clears them.
func TestVectorsAreLeftClean(t *testing.T) {
	eachVectors(t, func(t *testing.T) {
		for n := 1; n <= 80; n++ {
			eachThatVectorsDo(n, func(do whatVectorsDo) {
				vectortest.UpperHalves()
				if do.f(); vectortest.UpperHalves() {
					t.Errorf("%s of %d: something is left in the upper halves", do.what, n)
				}
			})
		}
	})
}

// TestWithoutVectorsNoneAreUsed: a processor that has none is told to do nothing with them. The runtime's comparison of memory
// does what it finds the processor to have.
func TestWithoutVectorsNoneAreUsed(t *testing.T) {
	if vectors == noVectors {
		t.Skip("this machine has no vectors")
	}
	WithVectors(noVectors, func() {
		for n := 1; n <= 80; n++ {
			eachThatVectorsDo(n, func(do whatVectorsDo) {
				if strings.HasPrefix(do.what, "comparing") {
					return
				}
				for range 10 { // the goroutine may have been moved
					vectortest.Fill()
					if do.f(); vectortest.Filled() {
						return
					}
				}
				t.Errorf("%s of %d: the vectors were used", do.what, n)
			})
		}
	})
}
