package route

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
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
		if 2*r.heard >= firstPatience {
			fastest = 0
		}
		log, trust := f.log, s.trust(r)
		if log > fastest {
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
