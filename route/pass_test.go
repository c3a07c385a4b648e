package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/shard"
)

// TestPassedBy: that no candidates are made of ranks which cannot be the best one changes no choice, nor what is said of it,
// nor who waits, nor what chance decides afterwards: with all of them made, as for an explanation, it is the same.
func TestPassedBy(t *testing.T) {
	racetest.Without(t, "one goroutine makes all choices")
	passed, later, idle, held, known, stayed := 0, 0, 0, 0, 0, 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 77))
		ranks := fewestPassed + rng.IntN(60)
		role := func(i int) Role { return Role(min(seed%4, 1) * uint64(i%3)) } // of some seeds all do both
		prefix := 3 + rng.IntN(3000)
		var routers [2]*Router
		stale := make(map[shard.RankID]bool)
		now := time.Unix(1000, 0)
		for i := range routers {
			rng := rand.New(rand.NewPCG(seed, 78)) // both the same
			r, space, _ := open(t, func(c *Config) {
				c.Settings.Mode, c.Settings.Seed = "auto", seed
				c.Now = func() time.Time { return now }
			})
			for w := range uint64(ranks) {
				n := Worker{ID: w, Ranks: 1, Role: role(int(w)), TotalBlocks: rng.IntN(3) * 2000, MaxBatchedTokens: rng.IntN(3) * 2048}
				n.Draining, n.Pooled = rng.IntN(12) == 0, rng.IntN(6) == 0
				if err := r.SetWorker(n); err != nil {
					t.Fatal(err)
				}
				tier := event.Device
				if rng.IntN(8) == 0 {
					tier = event.HostPinned + event.Tier(rng.IntN(3))
				}
				store(t, space, w, 0, tier, numbers(1, max(0, rng.IntN(3)-1)*(prefix-rng.IntN(3)))...)
			}
			for w := range uint64(ranks) {
				stale[shard.RankID{Worker: w}] = seed%3 == 0 && rng.IntN(3) == 0
			}
			r.SetStale(stale)
			routers[i] = r
		}
		var live []string
		for n := range 400 {
			now = now.Add(time.Duration(rng.IntN(20)) * time.Millisecond)
			if k := rng.IntN(len(live) + 1); rng.IntN(5) < 2 && k < len(live) {
				switch id := live[k]; rng.IntN(2) {
				case 0:
					for _, r := range routers {
						r.MarkPrefillComplete(id)
					}
				default:
					for _, r := range routers {
						r.Output(id, 10)
						r.Free(id)
					}
					live = append(live[:k], live[k+1:]...)
				}
			}
			if rng.IntN(3) == 0 { // a worker changes, and is not passed by for what it was
				id, on := uint64(rng.IntN(ranks)), rng.IntN(8) == 0
				stale[shard.RankID{Worker: id}] = on
				for _, r := range routers {
					switch seed / 4 % 4 { // each by itself, as each has to tell
					case 0:
						_ = r.Drain(id, on)
					case 1:
						_ = r.SetDead(id, on)
					case 2:
						r.SetStale(stale)
					default:
						if err := r.SetWorker(Worker{ID: id, Ranks: 1, Role: role(int(id) + n)}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			p := Prompt{Local: append(numbers(1, max(0, rng.IntN(4)-2)*rng.IntN(2)+prefix*min(1, rng.IntN(5))), numbers(1000*n+5000, 1+rng.IntN(400))...)}
			o := Options{RequestID: fmt.Sprint(n), Patient: rng.IntN(2) == 0, Waiting: rng.IntN(2 * ranks)}
			if rng.IntN(8) == 0 {
				o.Stage = Stage(rng.IntN(3))
			}
			if rng.IntN(8) == 0 {
				o.Session = &Session{Rank: shard.RankID{Worker: uint64(rng.IntN(ranks))}, Tokens: rng.IntN(5000)}
				p.Guessed = rng.IntN(2) == 0 // then the session's rank is taken though it costs more
			}
			var answers [2]Answer
			var errs [2]error
			for i, r := range routers {
				o.Explain = i == 1
				answers[i], errs[i] = r.BestWorker(context.Background(), p, o)
				answers[i].Ranks = nil
			}
			a, all := &answers[0], &answers[1]
			if a.RankID != all.RankID || a.Cost != all.Cost || a.Account != all.Account || a.First != all.First || fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
				t.Fatalf("seed %d, request %d: %+v (%v), of all %+v (%v)", seed, n, a, errs[0], all, errs[1])
			}
			if routers[1].weigh.passed.ranks != 0 {
				t.Fatal("ranks are passed over where all are to be explained")
			}
			if errs[0] == nil && p.Guessed && a.RankID == o.Session.Rank {
				stayed++
			}
			if by := routers[0].weigh.passed; by.ranks > 0 {
				passed += by.ranks
				if o.Session != nil {
					known++
				}
				if o.Patient && a.Prefilling > 0 && by.idle {
					idle++
				}
			}
			switch {
			case errors.Is(errs[0], ErrLater):
				later++
			case errs[0] == nil:
				live = append(live, o.RequestID)
				if o.Patient && a.Prefilling > 0 {
					held++
				}
			}
		}
		if a, b := routers[0].weigh.Rand.Uint64(), routers[1].weigh.Rand.Uint64(); a != b {
			t.Fatalf("seed %d: chance goes on otherwise", seed)
		}
	}
	if passed < 10_000 || later < 100 || idle < 100 || held < 100 || known < 100 || stayed < 100 {
		t.Errorf("%d ranks passed over, %d requests wait, %d choices with many that wait and an idle rank, %d behind others, %d of sessions whose prompts are known, %d that stay: it shows little",
			passed, later, idle, held, known, stayed)
	}
}

// TestNobodyIsPassedByForWhatIsLoaded: where who has most of a prompt has more of it in the host's memory, and to load that takes longer
// than to compute it, those who compute it are not passed over.
func TestNobodyIsPassedByForWhatIsLoaded(t *testing.T) {
	for _, explain := range []bool{true, false} {
		r, space, _ := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(fewestPassed+1)...)
		r.times.speeds.loads[event.HostPinned] = loadTime{4e6, 1e6}
		chain := numbers(1, 2000)
		store(t, space, 1, 0, event.Device, chain[:100]...)
		store(t, space, 1, 0, event.HostPinned, chain...)
		store(t, space, 2, 0, event.Device, chain[:99]...)
		if a := best(t, r, Prompt{Local: chain}, Options{Explain: explain}); a.Worker != 2 {
			t.Errorf("worker %d is chosen, with all of them explained: %v", a.Worker, explain)
		}
	}
}
