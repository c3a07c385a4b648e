package bench

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// chosen are ways in which a hostile or a simple engine may choose its hashes: name i of many.
var chosen = []struct {
	name string
	make func(n int) []uint64
}{
	{"random", func(n int) []uint64 {
		r := rand.New(rand.NewPCG(30, 1))
		return each64(n, func(int) uint64 { return r.Uint64() })
	}},
	{"counted", func(n int) []uint64 { return each64(n, func(i int) uint64 { return uint64(i + 1) }) }},
	{"high", func(n int) []uint64 { return each64(n, func(i int) uint64 { return uint64(i+1) << 40 }) }},
	{"reversed", func(n int) []uint64 { return each64(n, func(i int) uint64 { return bits.Reverse64(uint64(i + 1)) }) }},
	// For who knows the key: the directory has them all in its first 256th.
	{"crowded", func(n int) []uint64 {
		r := rand.New(rand.NewPCG(31, 1))
		return each64(n, func(int) uint64 {
			for {
				h := r.Uint64()
				hi, lo := bits.Mul64(h^0x9E3779B97F4A7C15, h^0xD6E8FEB86659FD93)
				if hi, lo = bits.Mul64(hi^lo, 0xD6E8FEB86659FD93); (hi^lo)>>56 == 0 {
					return h
				}
			}
		})
	}},
}

func each64(n int, of func(i int) uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = of(i)
	}
	return out
}

// BenchmarkChosen: an operation is one event that stores a new chain whose hashes, engine and local, were
// chosen, and one that removes it; under the zero key, which all know, and under another, as programs have.
func BenchmarkChosen(b *testing.B) {
	for _, hashes := range chosen {
		all := hashes.make(2 * pairs)
		for _, key := range []struct {
			name string
			key  core.Key
		}{{"zero", core.Key{}}, {"own", core.Key{0x5DEECE66D1F3A9B7, 0x27BB2EE687B0B0FD}}} {
			b.Run("hashes="+hashes.name+"/key="+key.name, func(b *testing.B) {
				var stored, gone []*event.Event
				for i := range pairs / span {
					at := 2 * i * span
					c := chain{all[at : at+span], all[at+span : at+2*span]}
					tail := slices.Clone(c.engine)
					slices.Reverse(tail)
					stored, gone = append(stored, c.stored(0, span)), append(gone, removed(tail))
				}
				var ix core.Index
				rounds(b, len(stored), func() { ix = core.NewRadix(core.Options{Key: key.key}) }, func(i int) {
					h := core.Holder(i % holders)
					expect(b, "stored", ix.Store(h, stored[i], true).Stored, span)
					// What was stored a while ago goes, so that the tables are full when they are measured.
					if old := i - len(stored)/2; old >= 0 {
						expect(b, "removed", ix.Remove(core.Holder(old%holders), gone[old], true).Removed, span)
					}
				})
				report(b, span, storeFloor(span))
			})
		}
	}
}
