package bench

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// floors are what this machine needs for the accesses that an index cannot do
// without, measured once in each run.
type floors struct {
	dependent float64           // ns: one random cache line, its address known only from the one before
	scattered float64           // ns: one random cache line of many that are independent
	compare   func(int) float64 // ns to compare n hashes with n others, both in cache if they fit
	copied    float64           // ns to copy one block's two hashes, beyond the caches
}

// words is the size of the memory for random accesses: 256 MiB, more than any
// cache holds.
const words = 1 << 25

// sink keeps results alive.
var sink uint64

var measured = sync.OnceValue(func() (f floors) {
	mem := make([]uint64, words)
	// One cycle through a word of every cache line, in random order.
	order := rand.New(rand.NewPCG(1, 1)).Perm(words / 8)
	for i, line := range order {
		mem[line*8] = uint64(order[(i+1)%len(order)] * 8)
	}
	const steps = 1 << 20
	at := uint64(order[0] * 8)
	f.dependent = perStep(steps, func() {
		for range steps {
			at = mem[at]
		}
	})
	sum := at
	f.scattered = perStep(steps, func() {
		x := uint64(88172645463325252)
		for range steps {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			sum += mem[x%words]
		}
	})
	half := words / 2
	f.copied = 2 * perStep(half, func() { copy(mem[:half], mem[half:]) })
	sink += sum
	f.compare = func(n int) float64 {
		// Requests repeat every few thousand blocks; so do these.
		a, b := view(mem[:n]), view(mem[half:half+n])
		copy(b, a)
		rounds := max(1, 1<<22/n)
		equal := 0
		ns := perStep(rounds, func() {
			for range rounds {
				if bytes.Equal(a, b) {
					equal++
				}
			}
		})
		sink += uint64(equal)
		return ns
	}
	return f
})

// perStep is the smallest time of three runs of f, in ns for each of n steps.
func perStep(n int, f func()) float64 {
	best := time.Duration(1 << 62)
	for range 3 {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return float64(best.Nanoseconds()) / float64(n)
}

func view(a []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), 8*len(a))
}

// report adds the floor of one operation, the ratio to it, and the time for
// each of the operation's blocks to what b prints.
func report(b *testing.B, blocks int, floor float64) {
	b.Helper()
	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	b.ReportMetric(floor, "floor-ns/op")
	b.ReportMetric(ns/floor, "x-floor")
	b.ReportMetric(ns/float64(blocks), "ns/block")
}
