package predict

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/shard"
)

// BenchmarkObserve is one answer noted, beside others of the same rank and of
// 64 ranks.
func BenchmarkObserve(b *testing.B) {
	for _, ranks := range []uint64{1, 64} {
		b.Run(fmt.Sprintf("Ranks%d", ranks), func(b *testing.B) {
			c := New(Config{BlockSize: 16})
			var streams atomic.Uint64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := streams.Add(1) * 7; pb.Next(); i++ {
					c.Observe(shard.RankID{Worker: i % ranks}, 1000, 996)
				}
			})
		})
	}
}
