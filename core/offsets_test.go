package core

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestOffsetsKnowTheLargest(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s offsets
		var want []uint32
		for step := range 2000 {
			if grow := step%400 < 200; len(want) == 0 || r.IntN(3) > 0 == grow {
				o := uint32(r.IntN(1 + int(seed)*7))
				s.add(o)
				want = append(want, o)
			} else {
				i := r.IntN(len(want))
				if r.IntN(2) == 0 { // deepest first
					i = slices.Index(want, slices.Max(want))
				}
				s.remove(want[i])
				want = slices.Delete(want, i, i+1)
			}
			largest := uint32(0)
			if len(want) > 0 {
				largest = slices.Max(want)
			}
			if got := s.max(); got != largest {
				t.Fatalf("seed %d, step %d: %d, want %d of %v", seed, step, got, largest, want)
			}
			if len(s.in) > 2*len(want)+32 {
				t.Fatalf("seed %d, step %d: %d kept for %d", seed, step, len(s.in), len(want))
			}
		}
	}
}
