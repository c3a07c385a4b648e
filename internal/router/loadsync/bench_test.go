package loadsync

import (
	"fmt"
	"runtime"
	"testing"
)

// BenchmarkConvergence is the time from a booking in one router to another's
// knowing it, and back to nothing, over a NATS server in the process.
func BenchmarkConvergence(b *testing.B) {
	dir := b.TempDir()
	one, two := start(b, dir, 1, space), start(b, dir, 2, space)
	until := func(live int) {
		for two.Stats().Live != live {
			runtime.Gosched()
		}
	}
	one.book(b, "first")
	until(1)
	one.Free("first")
	until(0)
	n := 0
	for b.Loop() {
		n++
		id := fmt.Sprint(n)
		one.book(b, id)
		until(1)
		one.Free(id)
		until(0)
	}
}
