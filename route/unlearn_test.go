package route

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// workAll lets clients ask one request after the other, of workers whose times are
// those that a router begins with, multiplied by slow. It returns how many each worker
// got, by its id, and the mean time to the first token in ms.
func workAll(t *testing.T, r *Router, c *clock, clients, requests int, slow func(worker uint64) float64) (got map[uint64]int, mean float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, uint64(c.Now().UnixNano())))
	type live struct {
		id    string
		sent  time.Time
		first bool
		rest  float64
		n     int
	}
	state := make([]live, clients)
	free := map[uint64]time.Time{} // when a worker has computed the prompts that it has
	var agenda benchAgenda
	for i := range clients {
		heap.Push(&agenda, benchEvent{c.Now().Add(time.Duration(i) * time.Millisecond), i})
	}
	got = map[uint64]int{}
	sum, next := 0.0, 0
	dur := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	for agenda.Len() > 0 {
		e := heap.Pop(&agenda).(benchEvent)
		c.add(e.at.Sub(c.Now()))
		now, s := c.Now(), &state[e.client]
		switch {
		case s.id == "":
			if next++; next > requests {
				continue
			}
			n := 100 + rng.IntN(400)
			*s = live{id: fmt.Sprint(next, "-", now.UnixNano()), sent: now, n: 20 + rng.IntN(60)}
			a, err := r.BestWorker(context.Background(), Prompt{Local: numbers(rng.IntN(math.MaxInt32), n)}, Options{RequestID: s.id})
			if err != nil {
				t.Fatal(err)
			}
			got[a.Worker]++
			f := slow(a.Worker) * (0.9 + 0.2*rng.Float64())
			done := now
			if free[a.Worker].After(done) {
				done = free[a.Worker]
			}
			done = done.Add(dur(f * (16 + 0.0175*float64(a.NewTokens))))
			free[a.Worker], s.rest = done, f*6.2*float64(s.n)
			heap.Push(&agenda, benchEvent{done, e.client})
		case !s.first:
			s.first = true
			sum += ms(now.Sub(s.sent))
			r.MarkPrefillComplete(s.id)
			heap.Push(&agenda, benchEvent{now.Add(dur(s.rest)), e.client})
		default:
			r.Output(s.id, s.n)
			r.Free(s.id)
			s.id = ""
			heap.Push(&agenda, benchEvent{now, e.client})
		}
	}
	return got, sum / float64(requests)
}

// TestAutoUnlearns: a worker that was slow and is well again gets its part again soon;
// one that stays slow is tried seldom, and that costs the others little.
func TestAutoUnlearns(t *testing.T) {
	racetest.Without(t, "one goroutine makes all choices")
	for i := range 24 {
		factor := []float64{2, 4, 10}[i%3]
		r, _, c := autoFleet(t, 4, nil)
		c.add(time.Duration(i) * time.Hour) // other prompts
		well := func(uint64) float64 { return 1 }
		_, usual := workAll(t, r, c, 6, 400, well)
		slow := func(w uint64) float64 {
			if w == 2 {
				return factor
			}
			return 1
		}
		workAll(t, r, c, 6, 60, slow)
		got, mean := workAll(t, r, c, 6, 1000, slow)
		if got[2] > 200 || mean > 2*usual {
			t.Errorf("%v times slower: it got %v of 1,000, mean %.1f ms, %.1f with all well", factor, got, mean, usual)
		}
		t.Logf("%v times slower: %v, mean %.1f ms of %.1f", factor, got, mean, usual)
		soon, _ := workAll(t, r, c, 6, 1000, well)
		again, mean := workAll(t, r, c, 6, 400, well)
		if soon[2] < 80 || again[2] < 60 || mean > 1.1*usual {
			t.Errorf("well again: it got %v of 1,000, and then %v of 400, mean %.1f ms, %.1f before", soon, again, mean, usual)
		}
		t.Logf("well again: %d of 1000, and then %d of 400, %.2f", soon[2], again[2], mean/usual)
	}
}

// TestAutoTriesUsualOnes: one client at a time goes to a worker that is faster than the others,
// which are tried seldom; once they are as fast they get their part again soon, though they
// were never slow.
func TestAutoTriesUsualOnes(t *testing.T) {
	for i := range 8 {
		r, _, c := autoFleet(t, 4, nil)
		c.add(time.Duration(i) * time.Hour) // other prompts
		faster := func(w uint64) float64 {
			if w == 2 {
				return 0.4
			}
			return 1
		}
		workAll(t, r, c, 6, 400, func(uint64) float64 { return 1 })
		workAll(t, r, c, 1, 400, faster)
		got, _ := workAll(t, r, c, 1, 2000, faster)
		if n := got[2]; n < 1970 || n == 2000 {
			t.Errorf("a worker that is faster than three others got %v of 2,000", got)
		}
		workAll(t, r, c, 1, 500, func(uint64) float64 { return 0.4 })
		again, _ := workAll(t, r, c, 1, 400, func(uint64) float64 { return 0.4 })
		for w := range uint64(4) {
			if again[w+1] < 50 {
				t.Errorf("all as fast: %v of 400", again)
				break
			}
		}
		t.Logf("one is faster: %v of 2,000; all as fast: %v of 400", got, again)
	}
}

// TestTriedBesideFaster: what is known of a usual rank beside a faster one is void for one request
// that is as fast only if the rank was left alone, and one that is not leaves it alone for longer.
func TestTriedBesideFaster(t *testing.T) {
	for _, x := range []struct {
		known, left     int // requests to it, and then to others
		prompt, decode  float64
		heard, patience int // from then on
	}{
		{64, 0, 0.5, 0.5, 65, 0}, {64, 32*4 - 1, 0.5, 0.5, 65, 0},
		{64, 32 * 4, 0.5, 0.5, 1, 0}, {64, 99 * 4, 0.5, 0.5, 1, 0}, {64, 99 * 4, 0.5, 0.9, 1, 0}, {64, 99 * 4, 0.9, 0.5, 1, 0},
		{64, 32*4 - 1, 0.9, 0.9, 65, 0}, {64, 32 * 4, 0.9, 0.9, 65, maxPatience}, {15, 99 * 4, 0.9, 0.9, 16, 0}, {16, 99 * 4, 0.9, 0.9, 17, maxPatience},
	} {
		s := newSpeeds()
		ask := func(slot int, prompt, decode float64) {
			tr := &trip{slot: uint32(slot), steps: 1, tokens: 1000, stalls: 1}
			s.sent(tr)
			s.left(tr)
			s.learnPrefill(tr, prompt*s.prefill.at(1, 1000))
			s.learnDecode(tr, decode*s.decode.at(1, 0), 20)
			s.took(tr)
		}
		for i := range 64 * 4 {
			if slot := i % 4; slot == 3 {
				ask(slot, 0.4, 0.4)
			} else if slot > 0 || i/4 < x.known {
				ask(slot, 1, 1)
			}
		}
		for s.samples < s.ranks[0].last+x.left {
			ask(3, 0.4, 0.4)
		}
		r := &s.ranks[0]
		prompts, decodes := r.prefill.expected, r.decode.expected
		ask(0, x.prompt, x.decode)
		void := [2]bool{r.prefill.expected < prompts/2, r.decode.expected < decodes/2}
		if want := [2]bool{x.heard == 1 && x.prompt < 0.6, x.heard == 1 && x.decode < 0.6}; void != want || r.heard != x.heard || r.patience != x.patience {
			t.Errorf("%+v: now heard of it %d times, patience %d, what was known is void: %v", x, r.heard, r.patience, void)
		}
	}
}

// TestAutoWrongFirstGuess: a fleet ten times faster or slower than the router begins
// with, all alike and half of them busy at a time, is used evenly.
func TestAutoWrongFirstGuess(t *testing.T) {
	for _, factor := range []float64{0.1, 0.3, 1, 3, 10} {
		for _, clients := range []int{1, 4, 12} {
			r, _, c := autoFleet(t, 8, nil)
			got, _ := workAll(t, r, c, clients, 800, func(uint64) float64 { return factor })
			for w := range uint64(8) {
				if n := got[w+1]; n < min(10*clients, 50) || clients > 1 && n > 260 {
					t.Errorf("%v times the first guess, %d at once: %v of 800", factor, clients, got)
					break
				}
			}
		}
	}
}
