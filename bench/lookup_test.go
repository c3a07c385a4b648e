package bench

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// BenchmarkLookup: every holder has the whole chain; the answer is each of
// them. Floor: comparing the request with one copy of the chain.
func BenchmarkLookup(b *testing.B) {
	for _, blocks := range []int{64, 512, 2048} {
		for _, holders := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("blocks=%d/holders=%d", blocks, holders), func(b *testing.B) {
				each(b, blocks*holders, func(b *testing.B, make func() core.Index) {
					c := newChains(1, 1, blocks)[0]
					ix := make()
					for h := range holders {
						ix.Store(core.Holder(h), c.stored(0, blocks), true)
					}
					var m core.Matches
					ix.Find(c.local, &m)
					if n, sum := m.Sum(event.Device); n != holders || sum != uint64(blocks*holders) {
						b.Fatalf("%d holders, %d blocks", n, sum)
					}
					for b.Loop() {
						ix.Find(c.local, &m)
					}
					report(b, blocks, measured().compare(blocks))
				})
			})
		}
	}
}

// BenchmarkLookupCold: requests for one of many chains, so that most of each
// is in no cache. Floor: one random access, then a compare at the same size.
func BenchmarkLookupCold(b *testing.B) {
	for _, blocks := range []int{16, 256} {
		const pairs = 1 << 20
		b.Run(fmt.Sprintf("blocks=%d/chains=%d", blocks, pairs/blocks), func(b *testing.B) {
			each(b, pairs, func(b *testing.B, make func() core.Index) {
				chains := newChains(2, pairs/blocks, blocks)
				ix := make()
				for i, c := range chains {
					ix.Store(core.Holder(i%64), c.stored(0, blocks), true)
				}
				var m core.Matches
				i := 0
				for b.Loop() {
					ix.Find(chains[i].local, &m)
					i = (i + 40503) % len(chains) // odd, so that every chain has its turn
				}
				f := measured()
				report(b, blocks, f.dependent+f.compare(blocks))
			})
		})
	}
}

// BenchmarkLookupMiss: the first block is not in the index. Floor: one random
// access.
func BenchmarkLookupMiss(b *testing.B) {
	const chains, blocks = 1 << 10, 64
	each(b, chains*blocks, func(b *testing.B, make func() core.Index) {
		ix := make()
		for i, c := range newChains(3, chains, blocks) {
			ix.Store(core.Holder(i%64), c.stored(0, blocks), true)
		}
		absent := newChains(4, chains, blocks)
		var m core.Matches
		i := 0
		for b.Loop() {
			ix.Find(absent[i].local, &m)
			i = (i + 1) % chains
		}
		report(b, 1, measured().dependent)
	})
}
