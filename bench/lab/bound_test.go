package lab

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
)

// TestBoundByHand: two engines, 1 ms a prompt token and 1 ms each further one; four prompts
// at once, the third an extension of the first by 48 tokens, as the caches are one.
func TestBoundByHand(t *testing.T) {
	for policy, want := range map[string][4]float64{
		// In order: 160 and 96 at 0, then 48 behind the 96, then 64 behind the 48.
		"bound-fcfs": {160, 96, 144, 208},
		// 64 and 96 at 0; then behind the 64 the first, whose extension has 48 left once it is
		// begun, and follows the 96.
		"bound-wspt": {64 + 160, 96, 96 + 48, 64},
	} {
		c := Default()
		c.Workers, c.Engine.BlockSize = 2, 16
		c.Timing = mock.Timing{PrefillToken: 1, DecodeBase: 1}
		if err := c.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		first := ids(10, 1)
		r := run(t, c, &script{
			{Input: 160, IDs: first, Output: 3}, {Input: 96, IDs: ids(6, 2)},
			{Input: 208, IDs: append(first[:10:10], ids(3, 3)...)}, {Input: 64, IDs: ids(4, 4)},
		})
		sum := 0.0
		for _, v := range want {
			sum += v / 4
		}
		if got := r.Summary(); math.Abs(got.TTFT.Mean-sum) > 1e-6 || math.Abs(got.E2E.Mean-sum-0.5) > 1e-6 {
			t.Errorf("%s: %v, want %v: %v", policy, got.TTFT.Mean, sum, r.ttft)
		}
	}
}

// TestBoundIsOne: no policy here has less time to the first token in the mean, nor more reuse,
// where caches are small and requests wait.
func TestBoundIsOne(t *testing.T) {
	for seed := range uint64(6) {
		c := small(rand.New(rand.NewPCG(seed, 41)))
		c.Workers, c.Routers, c.Engine.HostBlocks, c.Engine.DiskBlocks = 3, 1, 0, 0
		c.bound = Shortest
		b := run(t, c, requests(t, 200, seed)).Summary()
		for _, name := range []string{"auto", "round-robin", "dynamo-scale-32", "smg", "dynamo-scale-32+wspt-0"} {
			if err := c.SetPolicy(name); err != nil {
				t.Fatal(err)
			}
			got := run(t, c, requests(t, 200, seed)).Summary()
			if got.TTFT.Mean < b.TTFT.Mean || got.E2E.Mean < b.E2E.Mean || got.Reuse > b.Reuse+0.02 {
				t.Errorf("seed %d: %s has %+v, the bound %+v", seed, name, got, b)
			}
		}
	}
	c := Default()
	c.bound, c.ClosedLoop, c.Think = FirstCome, true, time.Second
	if _, err := Run(t.Context(), c, requests(t, 1, 1)); err == nil {
		t.Error("a bound of a closed loop is given")
	}
}
