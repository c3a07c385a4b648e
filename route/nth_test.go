package route

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestNth: it finds what sorting does, also among equal ones, with no more before it, and so does the middle.
func TestNth(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 91))
		v := make([]float64, 1+rng.IntN(40))
		for i := range v {
			v[i] = float64(rng.IntN(1+rng.IntN(40))) - 10
		}
		want, k := slices.Sorted(slices.Values(v)), rng.IntN(len(v))
		if got := nth(v, k); got != want[k] || slices.Max(v[:k+1]) != want[k] || !slices.Equal(slices.Sorted(slices.Values(v)), want) {
			t.Fatalf("seed %d: the %d. of %v is %v", seed, k, want, got)
		}
		var s speeds
		for _, log := range v {
			s.ranks = append(s.ranks, rankSpeed{prefill: factor{log: log, expected: 1}})
		}
		middle := s.middle(func(r *rankSpeed) *factor { return &r.prefill }, func(f *factor) float64 { return f.log })
		if n := len(v); middle != (want[(n-1)/2]+want[n/2])/2 {
			t.Fatalf("seed %d: the middle of %v is %v", seed, want, middle)
		}
	}
}
