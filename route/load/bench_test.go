package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// BenchmarkRequest is one whole life of a request: Add, PrefillComplete, 8
// Outputs, Free, with 256 others live, of which each shares half its prompt.
func BenchmarkRequest(b *testing.B) {
	for _, blocks := range []int{8, 128, 512, 8192} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			table := New(Config{BlockSize: 16, AssumeReuse: true, TrackOutput: true})
			now := time.Unix(0, 0)
			prompt := make([]uint64, blocks)
			for i := range prompt {
				prompt[i] = uint64(i)
			}
			vary := func(i int) []uint64 { prompt[blocks/2] = uint64(1)<<40 + uint64(i); return prompt }
			for i := range 256 {
				s := table.Keep(shard.RankID{Worker: uint64(i % 64)})
				if err := table.Add(Key{ID: fmt.Sprint(i)}, s, Request{Blocks: vary(i)}, now); err != nil {
					b.Fatal(err)
				}
			}
			k := Key{ID: "new"}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := table.Add(k, uint32(i%64), Request{Blocks: vary(1000), PromptTokens: blocks * 16, Leased: true}, now); err != nil {
					b.Fatal(err)
				}
				table.PrefillComplete(k, now)
				for range 8 {
					table.Output(k, 1, now)
				}
				table.Free(k)
			}
		})
	}
}

// BenchmarkActive asks what of a prompt is in use on each of the slots.
func BenchmarkActive(b *testing.B) {
	for _, slots := range []int{64, 4096} {
		for _, blocks := range []int{512, 8192} {
			b.Run(fmt.Sprintf("slots=%d/blocks=%d", slots, blocks), func(b *testing.B) {
				table := New(Config{BlockSize: 16, AssumeReuse: true})
				prompt := make([]uint64, blocks)
				for i := range prompt {
					prompt[i] = uint64(i)
				}
				for i := range slots {
					s := table.Keep(shard.RankID{Worker: uint64(i)})
					n := blocks * (1 + i%4) / 4
					if err := table.Add(Key{ID: fmt.Sprint(i)}, s, Request{Blocks: prompt[:n]}, time.Time{}); err != nil {
						b.Fatal(err)
					}
				}
				depth := make([]uint32, slots)
				b.ReportAllocs()
				for b.Loop() {
					clear(depth)
					table.Active(prompt, depth)
				}
			})
		}
	}
}
