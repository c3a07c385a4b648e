package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestPagesComeAndGo: no page is given out twice, each is clear, and blocks of which nobody has a page go back when many are free.
func TestPagesComeAndGo(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	r := rand.New(rand.NewPCG(1, 29))
	p := &pages{stock: new(hugemem.Stock)}
	defer p.reset()
	var have []*page
	is := make(map[*page]bool)
	get := func() {
		free, blocks := p.free(), len(p.blocks)
		g := p.get()
		if free > 0 && len(p.blocks) > blocks {
			t.Fatalf("a block is taken while %d pages are free", free)
		}
		if is[g] || *g != (page{}) {
			t.Fatal("a page is given out that somebody has, or had")
		}
		g[r.IntN(pageChunks)].blk[0] = 1
		have, is[g] = append(have, g), true
	}
	put := func(i int) {
		g := have[i]
		have[i] = have[len(have)-1]
		have = have[:len(have)-1]
		delete(is, g)
		p.put(g)
		if free := p.small + len(p.blocks)*blockPages - len(have); p.inUse != len(have) || p.free() != free {
			t.Fatalf("%d pages in use of %d, %d free of %d", p.inUse, len(have), p.free(), free)
		}
	}
	for range 5 {
		for len(have) < 20*blockPages {
			get()
		}
		for range 10_000 {
			if put(r.IntN(len(have))); r.IntN(2) == 0 || len(have) < 4*blockPages {
				get()
			}
		}
		most := len(p.blocks)
		if most > 20 {
			t.Fatalf("%d blocks for %d pages at most", most, 20*blockPages)
		}
		// By block, so that whole ones are free.
		slices.SortFunc(have, func(a, b *page) int { return p.at(a) - p.at(b) })
		for len(have) > 10 {
			put(len(have) - 1)
		}
		if n := len(p.blocks); n > 4 {
			t.Fatalf("%d of %d blocks for %d pages", n, most, len(have))
		}
	}
	for len(have) > 0 {
		put(0)
	}
	if p.bytes() != 0 {
		t.Errorf("%d bytes for no page", p.bytes())
	}
}
