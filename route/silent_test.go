package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestAnyOverdueRequestTells: a worker is left out as silent from when on any request that waits there has waited too
// long, however long those may that came before it, or are not watched; until it gives something.
func TestAnyOverdueRequestTells(t *testing.T) {
	type waits struct {
		id      string
		sent    time.Time
		allowed time.Duration
	}
	silent, spoke := 0, 0
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r, _, c := open(t, func(c *Config) { c.Settings.Lease = 0 }, workers(3)...)
		var all []waits
		var last time.Time
		for n := range 60 {
			switch {
			case rnd.IntN(3) > 0:
				o := Options{RequestID: fmt.Sprint(n), Worker: ptr(uint64(1)), Watched: rnd.IntN(3) > 0, Whole: rnd.IntN(2) == 0, ExpectedOutput: rnd.IntN(3000)}
				a := best(t, r, Prompt{Local: numbers(100*n, 1+rnd.IntN(50))}, o)
				if (a.Overdue > 0) != o.Watched {
					t.Fatalf("%+v may wait %v", o, a.Overdue)
				}
				all = append(all, waits{o.RequestID, c.Now(), a.Overdue})
			case len(all) > 0 && rnd.IntN(4) == 0:
				i := rnd.IntN(len(all))
				r.MarkPrefillComplete(all[i].id)
				all, last = append(all[:i], all[i+1:]...), c.Now()
				spoke++
			}
			c.add(time.Duration(rnd.Int64N(int64(20 * time.Second))))
			out := false
			for _, w := range all {
				since := w.sent
				if last.After(since) {
					since = last
				}
				late := w.allowed > 0 && c.Now().Sub(since) > w.allowed
				if out = out || late; r.Overdue(w.id, Whole) != late {
					t.Fatalf("seed %d, %d: request %s is overdue: %v, want %v", seed, n, w.id, !late, late)
				}
			}
			if left := r.Loads()[0].Left; (left == Failing) != out {
				t.Fatalf("seed %d, %d: %v, want left out: %v", seed, n, left, out)
			}
			if out {
				silent++
			}
		}
	}
	if silent < 100 || spoke < 100 {
		t.Errorf("silent %d times, spoke %d times: that shows little", silent, spoke)
	}
}
