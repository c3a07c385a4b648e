package route

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// What a choice does not ask of each rank, it may leave out only because the answer would
// be the same. These tests ask.

// TestWellUntil: until Router.wellUntil every worker could be sent a request, whatever
// became of the others.
func TestWellUntil(t *testing.T) {
	well, ill := 0, 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r, _, c := open(t, func(c *Config) { c.Settings.OverdueAfter = time.Duration(1+rng.IntN(10)) * time.Second }, workers(4)...)
		var blame Blame
		for i := range 400 {
			c.add(time.Duration(rng.IntN(200)) * time.Millisecond)
			id := fmt.Sprint(rng.IntN(30))
			switch rng.IntN(16) {
			case 0, 1, 2, 3, 4, 5:
				o := Options{RequestID: id, Watched: rng.IntN(4) > 0, Whole: rng.IntN(2) == 0}
				_, _ = r.BestWorker(context.Background(), Prompt{Local: numbers(100*i, 1+rng.IntN(2000))}, o) // live, or nobody is left
			case 6, 7, 8:
				r.MarkPrefillComplete(id)
			case 9:
				r.Output(id, 1)
			case 10, 11, 12:
				r.Free(id)
			case 13:
				if rng.IntN(2) == 0 { // at times several in a row
					blame = r.Failed(id, Whole, Failure{Full: rng.IntN(4) == 0, RetryAfter: time.Second})
				}
			case 14:
				r.Withdraw(blame)
				r.Renew(uint64(1 + rng.IntN(4)))
			case 15:
				c.add(time.Duration(rng.IntN(3)) * time.Second)
			}
			now := c.Now()
			if now.After(r.wellUntil) {
				ill++
				continue
			}
			well++
			for id, w := range r.workers {
				if w.silent || !w.breaker.Closed() || w.oldest != nil && w.oldest.overdue(now) {
					t.Fatalf("seed %d, step %d: worker %d is not well %v before the time", seed, i, id, r.wellUntil.Sub(now))
				}
			}
		}
	}
	if well < 1000 || ill < 1000 {
		t.Errorf("%d times well, %d times not: it shows nothing", well, ill)
	}
}

// TestFactorsAsTrusted: a rank's speed is that of its factors as far as each is trusted,
// and for the rest the fastest, to the bit, however little of that is reckoned.
func TestFactorsAsTrusted(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	literal := func(s *speeds, r *rankSpeed, f *factor, fastest float64) float64 {
		log, trust := f.log, s.trust(r)
		if log > fastest && (log >= f.band || trust == 0) {
			log = trust*log + (1-trust)*fastest
		}
		return math.Exp(banded(log, f.band))
	}
	partly := 0
	for range 200 {
		s := newSpeeds()
		for step := range 200 {
			tr := &trip{slot: uint32(rng.IntN(5)), steps: 1, tokens: 1000, stalls: 1, trust: 1}
			s.sent(tr)
			for slot := range uint32(6) {
				id := rankKey{}
				v := s.of(slot, id)
				p, d := 1.0, 1.0
				if int(slot) < len(s.ranks) {
					r := &s.ranks[slot]
					p, d = literal(&s, r, &r.prefill, s.fastest[0]), literal(&s, r, &r.decode, s.fastest[1])
					if p != r.prefill.times {
						partly++
					}
				}
				if want := (speed{p * s.prefill.a, p * s.prefill.b, d * s.decode.a, d * s.decode.b}); v != want {
					t.Fatalf("step %d, rank %d: %v, want %v", step, slot, v, want)
				}
			}
			s.left(tr)
			if slow := float64(1 + tr.slot*tr.slot); rng.IntN(int(1+3*tr.slot)) == 0 {
				s.learnPrefill(tr, slow*(0.5+rng.Float64())*33)
				s.learnDecode(tr, slow*(0.5+rng.Float64())*6, 100)
				s.took(tr)
			}
		}
	}
	if partly < 100 {
		t.Errorf("%d factors were trusted in part: it shows nothing", partly)
	}
}

// TestLeastIsNoMore: a rank that the choice does not weigh, as it costs too much whatever else it costs,
// is none that it would take: the same rank is taken, with as many draws, as where all are weighed.
func TestLeastIsNoMore(t *testing.T) {
	skipped, ties := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 92))
		a, settings := newAuto(), DefaultSettings()
		cands, held := make([]Candidate, 1+rng.IntN(12)), make([]int, 12)
		alike := rng.IntN(3) == 0
		for i := range cands {
			c := &cands[i]
			c.slot, c.Worker, c.TotalBlocks, held[i] = uint32(i), uint64(i), 1000, rng.IntN(3)*400
			c.NewTokens = rng.IntN(4) * rng.IntN(3000)
			if c.Requests = rng.IntN(4); c.Requests > 0 && !alike {
				c.Context, c.DecodeBlocks = rng.IntN(100000), float64(rng.IntN(1500))
				if c.Prefilling = rng.IntN(1 + c.Requests); c.Prefilling > 0 {
					c.HeadTokens, c.Since = rng.IntN(9000), time.Unix(0, 0).Add(-time.Duration(rng.IntN(1000))*time.Millisecond)
					c.PrefillTokens = c.HeadTokens + (c.Prefilling-1)*rng.IntN(9000)
				}
			}
			c.others = rng.IntN(3) == 0
			c.PrefillTokens += c.NewTokens
			if rng.IntN(8) == 0 {
				c.Cached[event.HostPinned], c.Cached[event.Disk], c.Cached[event.External] = 3, 3, 3
			}
			if !alike && rng.IntN(2) == 0 {
				a.speeds.rank(c.slot, rankKey{c.Worker, 0}).prefill.times = 0.5 + rng.Float64()
			}
		}
		var chosen [2]int
		var drawn [2]uint64
		for k := range chosen {
			w := &Weighing{
				BlockSize: 16, PromptTokens: 9000, Settings: &settings, Now: time.Unix(0, 0),
				Rand: rand.New(rand.NewPCG(seed, 93)), holds: func(slot uint32) int { return held[slot] }, explained: k == 1,
			}
			list := slices.Clone(cands)
			i, err := a.Choose(w, list)
			if err != nil {
				t.Fatal(err)
			}
			chosen[k], drawn[k] = i, w.Rand.Uint64()
			if k == 0 {
				cands[i].Cost = list[i].Cost
				for j := range list {
					var e estimate
					a.estimate(&e, w, &list[j], held[j])
					if list[j].Cost != e.cost() {
						skipped++
					}
				}
				if drawn[0] != rand.New(rand.NewPCG(seed, 93)).Uint64() {
					ties++
				}
			} else if list[i].Cost != cands[i].Cost {
				t.Errorf("seed %d: the cost is %v, %v where all are weighed", seed, cands[i].Cost, list[i].Cost)
			}
		}
		if chosen[0] != chosen[1] || drawn[0] != drawn[1] {
			t.Fatalf("seed %d: rank %d, and %d where all are weighed", seed, chosen[0], chosen[1])
		}
	}
	if skipped < 1000 || ties < 50 {
		t.Errorf("%d ranks were not weighed, %d choices tied: it shows nothing", skipped, ties)
	}
}
