package route

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestAutoHeldBursts: engines that answer all of a burst at one moment, however much they have,
// are alike, whatever was learnt of them: of many that come at once each gets its part. A
// request that came first has waited longest, and that it had little ahead is no slowness of
// its engine.
func TestAutoHeldBursts(t *testing.T) {
	const requests, rounds = 64, 9
	for seed := range uint64(32) {
		rng := rand.New(rand.NewPCG(seed, 7))
		told := 1 + rng.IntN(10) // of a burst, whose time is learned from
		r, a, c := autoFleet(t, 3, nil)
		for round := range rounds {
			var got [4]int
			ids := make([]string, requests)
			for i := range ids {
				ids[i] = fmt.Sprint(round, "-", i)
				// Short ones: one more of them on a rank costs little.
				b, err := r.BestWorker(context.Background(), Prompt{Local: numbers(rng.IntN(math.MaxInt32), 2)}, Options{RequestID: ids[i]})
				if err != nil {
					t.Fatal(err)
				}
				got[b.Worker]++
				c.add(time.Duration(rng.IntN(2e6)))
			}
			if min(got[1], got[2], got[3]) < requests/10 {
				var f []float64
				for i := range a.speeds.ranks {
					f = append(f, a.speeds.ranks[i].prefill.times, a.speeds.ranks[i].decode.times)
				}
				t.Errorf("seed %d, %d told, round %d: of %d at once %v; factors %.2f", seed, told, round, requests, got[1:], f)
			}
			for i, n := range rng.Perm(requests) {
				r.MarkPrefillComplete(ids[n])
				if i < told {
					c.add(time.Duration(1e6 + rng.IntN(1e6)))
					r.Output(ids[n], 2)
				}
				r.Free(ids[n])
			}
		}
	}
}
