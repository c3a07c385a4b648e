package obs

import (
	"io"
	"log/slog"
	"testing"
	"time"
)

// BenchmarkSuppressed is a warning that is left out, because its key was logged
// just before: what a flood of refusals costs.
func BenchmarkSuppressed(b *testing.B) {
	l := NewLimited(slog.New(slog.NewTextHandler(io.Discard, nil)), time.Hour, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Warn("key", "message")
		}
	})
}
