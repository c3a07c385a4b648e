//go:build unix

package approx

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// BenchmarkPlaced is the look-up of a prompt of 150 blocks, of which the last 9 are its own, and
// the note of where it went, at an index that is full. What counts is cpu-ns/op, the processor time of
// all threads.
func BenchmarkPlaced(b *testing.B) {
	c, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	local := make([]uint64, 150)
	for i := range local {
		local[i] = rng.Uint64()
	}
	found := func(shard.RankID, uint32) {}
	i := 0
	one := func() {
		for j := len(local) - 9; j < len(local); j++ {
			local[j] = rng.Uint64()
		}
		c.Find(local, found)
		c.Placed(shard.RankID{Worker: uint64(i % 4)}, local)
		i++
	}
	for c.Stats().Pruned == 0 {
		one()
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportAllocs()
	before := used()
	for b.Loop() {
		one()
	}
	b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op")
}
