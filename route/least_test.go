package route

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// TestPassedOver: which ranks are not weighed whole makes no difference to which one is chosen, nor to its cost: with all of
// them weighed, as for an explanation, it is the same. What a rank costs at least is no more than it costs.
func TestPassedOver(t *testing.T) {
	passed := 0
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 31))
		a := newAuto()
		upTo := func(n int) int { return rng.IntN(1 + rng.IntN(n)) }
		w := Weighing{
			BlockSize: 16, PromptTokens: 1 + upTo(50_000), Settings: new(DefaultSettings()), Stage: Stage(rng.IntN(3)), Now: time.Unix(1000, 0),
			expected: upTo(3000), guessed: rng.IntN(3) == 0,
		}
		if rng.IntN(4) == 0 {
			w.Temperature = rng.Float64()
		}
		if rng.IntN(4) == 0 {
			w.aim, w.aims = aim{first: rng.Float64() * 1000, token: rng.Float64() * 50}, true
		}
		if rng.IntN(4) == 0 { // an engine that is never well
			a.speeds.prefill.a, a.speeds.prefill.b = rng.Float64()*1e6, rng.Float64()*1e3
		}
		cands := make([]Candidate, 1+rng.IntN(40))
		held := make([]int, len(cands))
		w.holds = func(slot uint32) int { return held[slot] }
		for i := range cands {
			c := &cands[i]
			held[i], c.slot, c.Worker = upTo(3), uint32(i), uint64(i)
			c.TotalBlocks, c.MaxBatchedTokens, c.others = upTo(4)*2000, upTo(4)*1024, rng.IntN(3) == 0
			c.Prefilling = upTo(3)
			c.Requests, c.Context = c.Prefilling+upTo(50), upTo(100_000)
			c.NewTokens = rng.IntN(w.PromptTokens + 1)
			if rng.IntN(2) == 0 && i > 0 {
				c.NewTokens = cands[i-1].NewTokens
			}
			c.CachedTokens = w.PromptTokens - c.NewTokens
			depth := uint32(c.CachedTokens / w.BlockSize)
			c.Cached = [event.NumTiers]uint32{depth, depth, depth, depth}
			if rng.IntN(4) == 0 {
				c.Cached[event.External] += 3
			}
			if c.Prefilling > 0 {
				c.HeadTokens, c.Since = upTo(20_000), w.Now.Add(-time.Duration(upTo(2e9)))
			}
			c.PrefillTokens = c.NewTokens + c.HeadTokens + max(0, c.Prefilling-1)*upTo(10_000)
			c.DecodeBlocks = float64(upTo(8000))
			if r := a.speeds.rank(c.slot, rankKey{c.Worker, 0}); rng.IntN(2) == 0 {
				r.prefill.log, r.decode.log = rng.Float64()*8-4, rng.Float64()*8-4
			}
		}
		choose := func(explained bool) (int, []Candidate) {
			w, cands := w, slices.Clone(cands)
			w.explained, w.Rand = explained, rand.New(rand.NewPCG(seed, 1))
			i, err := a.Choose(&w, cands)
			if err != nil {
				t.Fatal(err)
			}
			return i, cands
		}
		i, some := choose(false)
		j, all := choose(true)
		if i != j || some[i].Cost != all[j].Cost {
			t.Fatalf("seed %d: %d of %d at %v, with all weighed %d at %v", seed, i, len(cands), some[i].Cost, j, all[j].Cost)
		}
		for n := range some {
			switch c := &some[n]; {
			case c.Cost > all[n].Cost || !c.atLeast && c.Cost != all[n].Cost || math.IsNaN(c.Cost):
				t.Fatalf("seed %d: rank %d costs %v, and at least %v (%v)", seed, n, all[n].Cost, c.Cost, c.atLeast)
			case c.atLeast:
				passed++
			}
		}
		a.complete(&w, some)
		for n := range some {
			if some[n].Cost != all[n].Cost || some[n].atLeast {
				t.Fatalf("seed %d: rank %d costs %v, weighed later %v", seed, n, all[n].Cost, some[n].Cost)
			}
		}
	}
	if passed < 1000 {
		t.Errorf("%d ranks were passed over", passed)
	}
}
