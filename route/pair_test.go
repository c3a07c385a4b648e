package route

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestNoPairIsApart: of workers of which some pairs are apart, none of those is ever chosen, and a request is done by
// one worker alone only where no other pair may take it; whoever the request names, and whoever is drained.
func TestNoPairIsApart(t *testing.T) {
	alone, paired := 0, 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		nd, np := 1+rnd.IntN(4), 1+rnd.IntN(4)
		var workers []Worker
		for i := range np {
			workers = append(workers, Worker{ID: uint64(1 + i), Role: Prefill})
		}
		for i := range nd {
			workers = append(workers, Worker{ID: uint64(11 + i), Role: []Role{Decode, Aggregated}[rnd.IntN(2)], Ranks: uint32(1 + rnd.IntN(2))})
		}
		r, _, _ := open(t, nil, workers...)
		apart := map[[2]uint64]bool{}
		for p := range np {
			for d := range nd {
				apart[[2]uint64{uint64(1 + p), uint64(11 + d)}] = rnd.IntN(3) > 0
			}
		}
		r.SetApart(func(p, d uint64) bool { return apart[[2]uint64{p, d}] })
		drained := map[uint64]bool{}
		for i := range workers {
			if id := workers[i].ID; rnd.IntN(4) == 0 {
				drained[id] = true
				if err := r.Drain(id, true); err != nil {
					t.Fatal(err)
				}
			}
		}
		for n := range 8 {
			o := Options{RequestID: fmt.Sprint(n)}
			var named []uint64
			for d := range nd {
				if rnd.IntN(2) == 0 {
					named = append(named, uint64(11+d))
				}
			}
			may := func(d uint64) bool { return !drained[d] }
			switch rnd.IntN(3) {
			case 0:
				o.Allowed = append([]uint64{}, named...)
				may = func(d uint64) bool { return !drained[d] && slices.Contains(named, d) }
			case 1:
				o.Excluded = named
				may = func(d uint64) bool { return !drained[d] && !slices.Contains(named, d) }
			}
			some, whole := false, false
			for d := range nd {
				d := uint64(11 + d)
				whole = whole || may(d)
				for p := range np {
					p := uint64(1 + p)
					some = some || may(d) && !drained[p] && !apart[[2]uint64{p, d}]
				}
			}
			pair, err := r.BestPair(t.Context(), Prompt{Local: prompt(3)}, o)
			switch {
			case !whole:
				if !errors.Is(err, ErrNoWorker) {
					t.Fatalf("seed %d: %+v, %v", seed, pair, err)
				}
			case err != nil || (pair.Prefill != nil) != some || !may(pair.Decode.Worker):
				t.Fatalf("seed %d, a pair may be had: %v; %+v, %v", seed, some, pair, err)
			case some && apart[[2]uint64{pair.Prefill.Worker, pair.Decode.Worker}]:
				t.Fatalf("seed %d: %d and %d are apart", seed, pair.Prefill.Worker, pair.Decode.Worker)
			case some:
				paired++
			default:
				alone++
			}
			if rnd.IntN(2) == 0 {
				r.Free(o.RequestID)
			}
		}
		if s := r.Stats(); int(s.DecodeOnly) > 8 {
			t.Fatalf("%+v", s)
		}
	}
	if alone < 100 || paired < 100 {
		t.Errorf("%d alone, %d in pairs", alone, paired)
	}
}

// In mode direct the worker that a request names does all of it, as nobody names one for the prompt.
func TestANamedWorkerDoesAll(t *testing.T) {
	r, _, _ := open(t, func(c *Config) { c.Settings.Mode = "direct" }, Worker{ID: 1, Role: Prefill}, Worker{ID: 2, Role: Decode})
	worker := uint64(2)
	pair, err := r.BestPair(t.Context(), Prompt{Tokens: []uint32{1, 2, 3}}, Options{RequestID: "a", Worker: &worker})
	if err != nil || pair.Prefill != nil || pair.Decode.Worker != worker {
		t.Errorf("%+v, %v", pair, err)
	}
	if _, err := r.BestPair(t.Context(), Prompt{Tokens: []uint32{1, 2, 3}}, Options{}); !errors.Is(err, ErrSettings) {
		t.Errorf("of a request that names none: %v", err)
	}
}
