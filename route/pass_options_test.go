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
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// TestPassedByOptions: TestPassedBy's comparison with whatever a request may ask, engines that do not find what the index
// has, workers that fail, come, go and are others afterwards, and settings that change.
func TestPassedByOptions(t *testing.T) {
	racetest.Without(t, "one goroutine makes all choices")
	const prefix, chains = 600, 3
	type request struct {
		id    string
		p     Prompt
		at    uint64 // worker
		found int
	}
	passed, doubted, failing := 0, 0, 0
	const ( // behind 40 histories, those where nobody is passed over, as it would change choices or what others are told
		besideOthers = 40 + iota
		withPeers
		byKV
		histories
	)
	for seed := range uint64(histories) {
		rng := rand.New(rand.NewPCG(seed, 79))
		ranks := fewestPassed + rng.IntN(40)
		now := time.Unix(1000, 0)
		describe := func(id uint64) Worker {
			return Worker{
				ID: id, Ranks: 1 + uint32(rng.IntN(4)/3), FirstRank: uint32(rng.IntN(8) / 7), Role: Role(min(seed%4, 1) * uint64(rng.IntN(3))), CPU: rng.IntN(4) == 0,
				Pooled: rng.IntN(16) == 0, TotalBlocks: rng.IntN(3) * 2000, MaxBatchedTokens: rng.IntN(3) * 2048,
				Draining: rng.IntN(24) == 0, Dead: rng.IntN(24) == 0, Addressless: rng.IntN(24) == 0,
				Peer: seed%8 == 7 && rng.IntN(20) == 0 || seed == withPeers && rng.IntN(2) == 0,
			}
		}
		var routers [2]*Router
		var spaces [2]*shard.Space
		var said [2]string // to other routers
		for i := range routers {
			r, space, _ := open(t, func(c *Config) {
				c.Settings.Mode, c.Settings.Seed = "auto", seed
				c.Settings.Objective = Objectives()[seed%3]
				if seed%5 == 4 {
					c.Settings.TierCredits = [event.NumTiers]float64{1, 1, 0.5, 0.25}
				}
				if seed == byKV {
					c.Settings.Mode = "kv"
				}
				if seed%7 == 6 {
					c.Index, c.Shares = nil, oneShare{c.Index, seed%2 == 0}
				}
				c.Now = func() time.Time { return now }
			})
			if seed == withPeers {
				r.times.speeds.loads[pulled] = loadTime{1, 1e6} // it is worth much
			}
			r.SetJournal(journal(func(c load.Change) { said[i] += fmt.Sprintln(c) }))
			routers[i], spaces[i] = r, space
		}
		both := func(f func(r *Router)) {
			for _, r := range routers {
				f(r)
			}
		}
		set := func(id uint64) {
			w := describe(id)
			both(func(r *Router) {
				if err := r.SetWorker(w); err != nil {
					t.Fatal(err)
				}
			})
		}
		give := func(id uint64) {
			tier := event.Tier(max(0, rng.IntN(10)-6))
			chain := numbers(10_000*rng.IntN(chains)+1, rng.IntN(prefix))
			for _, s := range spaces {
				store(t, s, id, 0, tier, chain...)
			}
		}
		for id := range uint64(ranks) {
			set(id)
			give(id)
		}
		var live []request
		stale := make(map[shard.RankID]bool)
		for n := range 400 {
			now = now.Add(time.Duration(rng.IntN(20)) * time.Millisecond)
			if rng.IntN(100) == 0 {
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
			for range rng.IntN(3) {
				if len(live) == 0 {
					break
				}
				k := rng.IntN(len(live))
				q := live[k]
				switch rng.IntN(4) {
				case 0:
					both(func(r *Router) { r.MarkPrefillComplete(q.id) })
					continue
				case 1:
					if q.at%5 == 0 {
						failing++
						both(func(r *Router) { r.Failed(q.id, Whole, Failure{Full: q.at%2 == 0}) })
					}
				default:
					found := q.found
					if q.at%3 == 0 { // it does not find what the index has
						found /= 8
					}
					both(func(r *Router) {
						r.Output(q.id, 10)
						r.Reported(q.id, Whole, q.p, Usage{Prompt: q.p.Length, Cached: found})
					})
				}
				both(func(r *Router) { r.Free(q.id) })
				live = append(live[:k], live[k+1:]...)
			}
			id := uint64(rng.IntN(ranks))
			switch on := rng.IntN(8) == 0; rng.IntN(30) {
			case 0:
				both(func(r *Router) { _ = r.Drain(id, on) })
			case 1:
				both(func(r *Router) { _ = r.SetDead(id, on) })
			case 2:
				stale[shard.RankID{Worker: id}] = on
				both(func(r *Router) { r.SetStale(stale) })
			case 3:
				set(id)
			case 4:
				both(func(r *Router) { r.RemoveWorker(id) })
			case 5:
				id = uint64(ranks + rng.IntN(5))
				set(id)
			case 6:
				give(id)
			case 7:
				for _, s := range spaces {
					if err := s.RemoveWorker(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
			case 8:
				both(func(r *Router) { r.Renew(id) })
			case 9:
				report := Report{ActiveBlocks: rng.IntN(4000), PrefillTokens: rng.IntN(20_000), CacheUsage: rng.Float64()}
				both(func(r *Router) { _ = r.ReportLoad(shard.RankID{Worker: id}, report) })
			case 10:
				if seed%6 == 5 {
					most := rng.IntN(40_000)
					both(func(r *Router) { _, _ = r.SetThresholds(Thresholds{PrefillTokens: &most}) })
				}
			}
			known := rng.IntN(prefix)
			p := Prompt{Local: append(numbers(10_000*rng.IntN(chains)+1, known), numbers(1000*n+500_000, 1+rng.IntN(400))...)}
			p.Length = len(p.Local)*testBlock + rng.IntN(testBlock)
			o := Options{
				RequestID: fmt.Sprint(n), Patient: rng.IntN(3) == 0, Waiting: rng.IntN(2 * ranks), Watched: rng.IntN(2) == 0, Whole: rng.IntN(4) == 0,
				Settled: rng.IntN(4) == 0, Pull: rng.IntN(2) == 0, Waited: time.Duration(rng.IntN(2)) * time.Second,
			}
			some := func() (list []uint64) {
				for range 1 + rng.IntN(ranks) {
					list = append(list, uint64(rng.IntN(ranks)))
				}
				return list
			}
			switch rng.IntN(40) {
			case 0:
				o.Stage = Stage(rng.IntN(3))
			case 1:
				o.Session = &Session{Rank: shard.RankID{Worker: uint64(rng.IntN(ranks))}, Tokens: rng.IntN(5000)}
				p.Guessed = rng.IntN(2) == 0
			case 2:
				o.Allowed = some()
			case 3:
				o.Excluded = some()
			case 4:
				o.Worker = ptr(uint64(rng.IntN(ranks)))
			case 5:
				o.DPRank = ptr(uint32(rng.IntN(2)))
			case 6:
				o.Ranks = make(map[shard.RankID]bool)
				for _, id := range some() {
					o.Ranks[shard.RankID{Worker: id}] = true
				}
			case 7:
				o.Weight = ptr(float64(rng.IntN(3)))
			case 8:
				o.Temperature = ptr(float64(rng.IntN(2)) / 2)
			case 9:
				o.FirstToken = ptr(time.Duration(rng.IntN(3)) * time.Second)
			case 10:
				if seed%2 == 0 {
					o.Token = ptr(time.Duration(rng.IntN(3)) * 10 * time.Millisecond)
				}
			case 11:
				o.ExpectedOutput = rng.IntN(1 << 20)
			case 12:
				o.MostOutput = rng.IntN(1 << 20)
			case 13:
				o.Trial = time.Second
			case 14:
				o.RequestID = ""
			case 15:
				p.Rest = rng.IntN(5000)
			case 16:
				p.Guessed = true
			}
			if seed == besideOthers {
				c := load.Change{Kind: load.Sought, Key: load.Key{Owner: 2, ID: fmt.Sprint(n)}, Held: n%2 == 0, Request: load.Request{PromptTokens: 1000}}
				for _, id := range some() {
					c.Ranks = append(c.Ranks, load.Want{Rank: shard.RankID{Worker: id}, NewTokens: rng.IntN(4000)})
				}
				both(func(r *Router) {
					r.Replace(2, func(func(load.Change) bool) {})
					r.SetDelay(time.Millisecond, 0)
					r.bids.crowd = 1e6
					r.Apply(c)
				})
			}
			pair := seed%4 != 0 && rng.IntN(3) == 0
			var answers [2]Answer
			var before [2]Answer
			var errs [2]error
			for i, r := range routers {
				o.Explain = i == 1
				if pair {
					a, err := r.BestPair(context.Background(), p, o)
					if errs[i] = err; a.Prefill != nil {
						before[i] = *a.Prefill
					}
					answers[i] = a.Decode
				} else {
					answers[i], errs[i] = r.BestWorker(context.Background(), p, o)
				}
				answers[i].Ranks, before[i].Ranks = nil, nil
			}
			for _, of := range [][2]Answer{answers, before} {
				a, all := &of[0], &of[1]
				if a.Settle != all.Settle || a.RankID != all.RankID || a.Cost != all.Cost || a.Account != all.Account || a.First != all.First || a.Overdue != all.Overdue || a.Pull != all.Pull || fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
					t.Fatalf("seed %d, request %d: %+v (%v), of all %+v (%v)", seed, n, a, errs[0], all, errs[1])
				}
			}
			if said[0] != said[1] {
				t.Fatalf("seed %d, request %d: others are told %s, of all %s", seed, n, said[0], said[1])
			}
			if said = [2]string{}; seed >= besideOthers && routers[0].weigh.passed.ranks > 0 {
				t.Fatalf("seed %d, request %d: %d are passed over", seed, n, routers[0].weigh.passed.ranks)
			}
			passed += routers[0].weigh.passed.ranks
			for _, m := range routers[0].members {
				if m.belief.doubted {
					doubted++
				}
			}
			switch a := &answers[0]; {
			case errors.Is(errs[0], ErrLater), errs[0] != nil, o.RequestID == "":
			default:
				live = append(live, request{o.RequestID, p, a.Worker, a.Account.Selected})
			}
		}
		if a, b := routers[0].weigh.Rand.Uint64(), routers[1].weigh.Rand.Uint64(); a != b {
			t.Fatalf("seed %d: chance goes on otherwise", seed)
		}
		a, b := routers[0].Stats(), routers[1].Stats()
		if a != b {
			t.Fatalf("seed %d: %+v, of all %+v", seed, a, b)
		}
	}
	t.Logf("%d passed over, %d doubted, %d failed", passed, doubted, failing)
	if passed < 10_000 || doubted < 1000 || failing < 100 {
		t.Errorf("%d ranks passed over, %d times one was doubted, %d requests failed: it shows little", passed, doubted, failing)
	}
}

// oneShare is an index as other processes have it, of whom one answers, or does not for some workers.
type oneShare struct {
	Index
	part bool
}

func (x oneShare) Find(_ context.Context, local []uint64, each func(id shard.RankID, depth [event.NumTiers]uint32)) (unknown func(worker uint64) bool) {
	var found shard.Result
	x.Index.Find(local, &found)
	if x.part && len(local)%2 == 0 {
		unknown = func(worker uint64) bool { return worker%9 == 0 }
	}
	found.Each(func(id shard.RankID, depth [event.NumTiers]uint32) {
		if unknown == nil || !unknown(id.Worker) {
			each(id, depth)
		}
	})
	return unknown
}
