package ingest

import (
	"context"
	"fmt"
	"testing"

	"github.com/puzpuzpuz/xsync/v3"
)

// BenchmarkLiveGroup finds the group of a live message, among those of 16 spaces.
func BenchmarkLiveGroup(b *testing.B) {
	in := new(Ingest)
	in.groups = xsync.NewMapOf[string, *group]()
	var tokens []string
	for i := range 16 {
		tokens = append(tokens, fmt.Sprintf("%016x", uint64(i)*0x9E3779B9))
		in.groups.Store(tokens[i], new(group))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := in.liveGroup(context.Background(), tokens[i%16], nil); err != nil {
				b.Error(err)
			}
		}
	})
}
