package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// TestNothingIsLeft: whatever is told of requests, in whatever order, and whoever comes and goes meanwhile, each booking ends
// once: with the last one no rank has load, no request under way, no fetch and no target.
func TestNothingIsLeft(t *testing.T) {
	booked := uint64(0)
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		mode := []string{"auto", "kv", "least-loaded", "round-robin"}[rnd.IntN(4)]
		var all []Worker
		for i := range 6 {
			all = append(all, Worker{ID: uint64(i + 1), Role: []Role{Aggregated, Decode, Prefill}[i%3], Ranks: uint32(1 + i%2), Peer: true, TotalBlocks: 40 * (i % 3), MaxBatchedTokens: 64 * (i % 2)})
		}
		r, space, c := open(t, func(c *Config) {
			c.Settings.Mode, c.Settings.Lease, c.Settings.TrackOutputBlocks, c.Settings.OutputDecay = mode, time.Minute, true, seed%2 == 0
			c.Settings.Busy.PrefillTokens = ptr(600)
		}, all...)
		local := numbers(1, 60)
		store(t, space, 1, 0, 0, local...)
		store(t, space, 3, 0, 0, local[:40]...)
		told := map[load.Key]bool{}
		r.SetJournal(journal(func(c load.Change) {
			switch c.Kind {
			case load.Added:
				if told[c.Key] {
					t.Fatalf("seed %d: %v is booked twice", seed, c.Key)
				}
				told[c.Key] = true
			case load.Freed:
				if !told[c.Key] {
					t.Fatalf("seed %d: %v ends twice", seed, c.Key)
				}
				delete(told, c.Key)
			}
		}))
		var ids []string
		var blames []Blame
		for n := range 400 {
			c.add(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			if len(ids) == 0 || rnd.IntN(4) == 0 {
				id := fmt.Sprint(n)
				p := Prompt{Local: slices.Concat(local[:rnd.IntN(61)], numbers(1000*n, rnd.IntN(20))), Rest: rnd.IntN(2) * rnd.IntN(50), Guessed: rnd.IntN(5) == 0}
				o := Options{
					RequestID: id, Watched: rnd.IntN(2) == 0, Whole: rnd.IntN(2) == 0, Pull: rnd.IntN(2) == 0, ExpectedOutput: rnd.IntN(30), Patient: rnd.IntN(3) == 0,
					Client: rnd.Uint64N(3), Question: rnd.IntN(9) == 0,
				}
				if rnd.IntN(3) == 0 {
					o.Token, o.FirstToken = ptr(time.Duration(rnd.IntN(50))*time.Millisecond), ptr(time.Second)
				}
				if rnd.IntN(6) == 0 {
					o.Allowed = []uint64{rnd.Uint64N(9)}
				}
				switch rnd.IntN(5) {
				case 0, 1:
					_, _ = r.BestPair(t.Context(), p, o)
				case 2:
					_ = r.Reserve(Reservation{RequestID: id, Rank: a1(1 + rnd.Uint64N(6)), Stage: Stage(rnd.IntN(3)), Blocks: p.Local, PromptTokens: len(p.Local) * testBlock, NewTokens: rnd.IntN(100)})
				default:
					o.Stage = Stage(rnd.IntN(3))
					_, _ = r.BestWorker(t.Context(), p, o)
				}
				ids = append(ids, id)
				continue
			}
			id, stage := ids[rnd.IntN(len(ids))], Stage(rnd.IntN(3))
			switch rnd.IntN(16) {
			case 0, 1:
				r.MarkPrefillComplete(id)
			case 2:
				r.Output(id, rnd.IntN(20))
			case 3:
				r.OutputBlock(id, rnd.Float64()*2-0.5)
			case 4, 5:
				r.Free(id)
			case 6:
				r.FreeStage(id, stage)
			case 7:
				blames = append(blames, r.Failed(id, stage, Failure{Full: rnd.IntN(3) == 0, Wrong: rnd.IntN(3) == 0, Shared: rnd.IntN(2) == 0}))
			case 8:
				r.Succeeded(id, stage)
			case 9:
				r.Cut(id, stage)
			case 10:
				if b := r.Stalled(id, stage); !b.None() && rnd.IntN(2) == 0 {
					r.WentOn(id, stage, b)
				}
			case 11:
				if len(blames) > 0 {
					r.Withdraw(blames[rnd.IntN(len(blames))])
					blames = nil
				}
			case 12:
				w := all[rnd.IntN(len(all))]
				if rnd.IntN(3) == 0 {
					r.RemoveWorker(w.ID)
				}
				w.Ranks, w.Draining = 1+rnd.Uint32N(2), rnd.IntN(3) == 0
				if err := r.SetWorker(w); err != nil {
					t.Fatal(err)
				}
			case 13:
				r.Reported(id, stage, Prompt{Local: local}, Usage{Prompt: rnd.IntN(300), Cached: rnd.IntN(300)})
			case 14:
				if w, due := r.Ask(id, stage); due {
					r.Asked(w, Asked(rnd.IntN(3)), 0)
				}
			case 15:
				r.Overdue(id, stage)
				r.Expire()
			}
			for _, l := range r.Loads() {
				if l.Requests < 0 || l.Prefilling < 0 || l.Prefilling > l.Requests || l.PrefillTokens < 0 || !(l.DecodeBlocks >= 0) || l.OutputLeft < 0 || l.PromptTokens < 0 {
					t.Fatalf("seed %d, %d: %+v", seed, n, l)
				}
			}
			if len(told) != r.Stats().Live || len(told) != len(r.attempts) {
				t.Fatalf("seed %d, %d: others know of %d bookings, there are %d, and %d attempts", seed, n, len(told), r.Stats().Live, len(r.attempts))
			}
		}
		for _, id := range ids {
			r.Free(id)
		}
		c.add(time.Hour)
		r.Expire()
		for _, l := range r.Loads() {
			if l.Load != (load.Load{}) {
				t.Errorf("seed %d: %+v", seed, l)
			}
		}
		for _, w := range r.workers {
			if w.oldest != nil || w.newest != nil || len(w.under) != 0 {
				t.Errorf("seed %d: worker %d has requests: %v, %v", seed, w.ID, w.oldest, w.under)
			}
			if w.breaker.State(c.Now().Add(time.Hour)) != 0 && !w.breaker.Admits(&r.settings.Breaker, c.Now().Add(time.Hour)) {
				t.Errorf("seed %d: worker %d has probes that never end", seed, w.ID)
			}
		}
		for i, of := range r.times.speeds.ranks {
			if of.live != 0 {
				t.Errorf("seed %d: slot %d has %d requests", seed, i, of.live)
			}
		}
		if slices.ContainsFunc(r.times.fetching, func(n int) bool { return n != 0 }) || r.times.aimedAt != 0 || len(r.unseen) > 0 || len(r.attempts) > 0 || len(told) > 0 {
			t.Errorf("seed %d: fetches %v, targets %d, unseen %d, attempts %d, told %d", seed, r.times.fetching, r.times.aimedAt, len(r.unseen), len(r.attempts), len(told))
		}
		booked += r.Stats().Booked
	}
	if booked < 3000 {
		t.Errorf("%d bookings: that shows little", booked)
	}
}
