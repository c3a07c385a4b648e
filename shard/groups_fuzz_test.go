package shard

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// FuzzCacheGroups is TestCacheGroupsAreTheOracle with any groups and any history.
func FuzzCacheGroups(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("a window, a state, a chunk"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list := slices.Clone(hybridGroups)
		if len(data) > 2 {
			list[1].Span = 1 + uint32(data[0]%9)
			if data[1]%3 == 0 { // chunks are of whole blocks
				list[1].Kind, list[1].Span = "chunked_local_attention", 2+2*uint32(data[0]%4)
			}
			if data[2]%3 == 0 {
				list[2].Kind, list[2].Span = "sliding_window", 1+uint32(data[2]%16)
			}
			data = data[3:]
		}
		hybridHistories(t, func() *rand.Rand {
			return rand.New(&bytesThenRandom{data: data, then: rand.NewPCG(20, uint64(len(data)))})
		}, list)
	})
}

// bytesThenRandom makes a history of an input, and goes on where that ends.
type bytesThenRandom struct {
	data []byte
	then *rand.PCG
}

func (b *bytesThenRandom) Uint64() uint64 {
	if len(b.data) == 0 {
		return b.then.Uint64()
	}
	v := uint64(b.data[0]) * 0x0101010101010101 // IntN takes the upper bits, Uint64N others
	b.data = b.data[1:]
	return v
}
