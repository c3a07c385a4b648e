package route

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestFastestIsTheLeast: what is kept of the fastest rank is what a look at all of them says, however ranks
// change, come and go; and no rank counts as faster.
func TestFastestIsTheLeast(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 256))
		s := newSpeeds()
		for i := range 400 {
			w := rng.Uint32N(6)
			id := rankKey{worker: uint64(w)}
			if rng.IntN(50) == 0 {
				id.rank = 1 // another rank has the slot now
			}
			trip := &trip{slot: w, id: id, at: time.Unix(int64(i), 0), steps: 1, tokens: 1000, stalls: 1, prompt: 1000, context: 5000, begun: 5000, ended: 5000, trust: 1}
			s.sent(trip)
			slow := 0.2 + float64(w)*rng.Float64()
			s.learnPrefill(trip, 33*slow)
			s.learnDecode(trip, 6*slow, 20)
			s.left(trip)
			s.took(trip)
			var want [2]float64
			for j := range s.ranks {
				r := &s.ranks[j]
				want[0], want[1] = min(want[0], banded(r.prefill.log, r.prefill.band)), min(want[1], banded(r.decode.log, r.decode.band))
			}
			if s.fastest != want {
				t.Fatalf("seed %d, request %d: %v, want %v", seed, i, s.fastest, want)
			}
			for j := range s.ranks {
				const rounding = 1 + 1e-12
				if v, best := s.of(uint32(j), s.ranks[j].id), s.best(); best.prefillToken > rounding*v.prefillToken || best.decodeStep > rounding*v.decodeStep {
					t.Fatalf("seed %d, request %d: rank %d is faster, %+v, than the best, %+v", seed, i, j, v, best)
				}
			}
		}
	}
}
