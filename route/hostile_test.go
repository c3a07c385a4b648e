package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// boastful is an index that finds more than was asked for.
type boastful struct {
	*shard.Space
	more []uint64
}

func (b boastful) Find(local []uint64, r *shard.Result) {
	b.Space.Find(slices.Concat(local, b.more), r)
}

// hostileDepths are no lookup's: not cumulative, or beyond the prompt.
func hostileDepths(r *rand.Rand, blocks int) [event.NumTiers]uint32 {
	var d [event.NumTiers]uint32
	for t := range d {
		switch r.IntN(4) {
		case 0:
			d[t] = uint32(r.IntN(blocks + 1))
		case 1:
			d[t] = math.MaxUint32 - uint32(r.IntN(3))
		case 2:
			d[t] = uint32(r.IntN(2 * blocks))
		}
	}
	return d
}

// TestHostileDepths: whatever an index says, in every mode and at every stage,
// no rank has less than nothing to compute, and what is not cached costs.
func TestHostileDepths(t *testing.T) {
	for _, mode := range Modes() {
		t.Run(mode, func(t *testing.T) {
			r, space, _ := open(t, func(c *Config) { c.Settings.Mode = mode }, workers(3)...)
			p := prompt(20)
			store(t, space, 1, 0, event.Device, p...)
			store(t, space, 2, 0, event.Device, p[:2]...)
			r.cfg.Index = boastful{space, p[10:]}
			a, err := r.PotentialLoads(t.Context(), Prompt{Local: p[:10], Length: 43}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int{3, 35, 43} {
				if a[i].NewTokens != want || a[i].CachedTokens != 43-want || a[i].Cached[event.External] > 10 {
					t.Errorf("worker %d: %+v, want %d tokens to compute", a[i].Worker, a[i], want)
				}
			}

			rng := rand.New(rand.NewPCG(1, 1))
			for range 2000 {
				blocks := 1 + rng.IntN(2400)
				prompt := blocks*testBlock + rng.IntN(testBlock)
				said := hostileDepths(rng, blocks)
				c := Candidate{Requests: rng.IntN(3)}
				setWithin(&c.Cached, &said, blocks)
				r.credit(&c, prompt)
				c.PrefillTokens = c.NewTokens
				longest := int(min(said[event.External], uint32(blocks)))
				if !slices.IsSorted(c.Cached[:]) || int(c.Cached[event.External]) != longest {
					t.Fatalf("%v of %d blocks counts as %v", said, blocks, c.Cached)
				}
				if c.NewTokens < prompt-longest*testBlock || c.NewTokens > prompt || c.CachedTokens < 0 || c.CachedTokens > longest*testBlock {
					t.Fatalf("%v of %d tokens: %+v", said, prompt, c)
				}
				r.weigh.PromptTokens, r.weigh.Stage = prompt, Stage(rng.IntN(3))
				r.weigh.override(&Options{Worker: ptr(uint64(0))})
				cands := []Candidate{c, c}
				if _, err := r.policy.Choose(&r.weigh, cands); err != nil {
					t.Fatal(err)
				}
				for _, c := range cands {
					if !(c.Cost >= 0) || c.NewTokens < 0 || c.PrefillTokens < 0 {
						t.Fatalf("%v of %d tokens: %+v", said, prompt, c)
					}
				}
			}
		})
	}
}

// TestHugeNumbersDoNotMakeARankIdle: requests that say they are longer than
// numbers are make their rank the busiest, and leave nothing behind.
func TestHugeNumbersDoNotMakeARankIdle(t *testing.T) {
	r, _, _ := open(t, func(c *Config) { c.Settings.TrackOutputBlocks = true }, workers(2)...)
	id := shard.RankID{Worker: 1}
	for i := range 40 {
		err := r.Reserve(Reservation{RequestID: fmt.Sprint(i), Rank: id,
			PromptTokens: math.MaxInt, NewTokens: math.MaxInt - i, ExpectedOutput: math.MaxInt})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.Output(fmt.Sprint(i), math.MaxInt)
		}
	}
	for range 40 {
		a := best(t, r, Prompt{Local: prompt(3), Length: math.MaxInt}, Options{Explain: true})
		for _, e := range a.Ranks {
			if e.PrefillTokens < load.MaxCount || e.DecodeBlocks < 3 || !(e.Cost > 0) {
				t.Fatalf("%+v", e)
			}
		}
		if a.Worker != 2 {
			t.Fatalf("the busy worker is chosen: %+v", a)
		}
	}
	for i := range 40 {
		r.Free(fmt.Sprint(i))
	}
	for _, l := range r.Loads() {
		if l.Load != (load.Load{}) {
			t.Errorf("when all is over: %+v", l)
		}
	}
}

// A prompt's numbers may be any: a caller's mistake neither makes a rank idle nor is found cached.
func TestAnyNumbersOfAPrompt(t *testing.T) {
	r, _, _ := open(t, nil, workers(1)...)
	all := []int{math.MinInt, -4, -1, 0, 5, math.MaxInt}
	for _, rest := range all {
		for _, length := range all {
			p := Prompt{Length: length, Rest: rest}
			want := min(min(max(length, 0), load.MaxCount)+min(max(rest, 0), load.MaxCount), load.MaxCount)
			if got := min(p.Size(), load.MaxCount); got != want {
				t.Errorf("%+v has %d tokens, want %d", p, got, want)
			}
			p.Local = []uint64{}
			a := best(t, r, p, Options{RequestID: "r"})
			if a.NewTokens != want || a.CachedTokens != 0 || a.NewBlocks < 0 || a.DecodeBlocks < 0 {
				t.Errorf("%+v: %+v", p, a.Candidate)
			}
			got, _ := r.Reported("r", Whole, p, Usage{Prompt: rest, Cached: length})
			if got.Actual < 0 || got.Prompt < 0 || got.Prompt > load.MaxCount {
				t.Errorf("%+v reported as %+v", p, got)
			}
			r.Free("r")
		}
	}
	for _, l := range r.Loads() {
		if l.Load != (load.Load{}) || l.Found > l.Prompt {
			t.Errorf("when all is over: %+v", l)
		}
	}
}
