package route

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/account"
)

// TestOnlyChoicesAreSampled: requests that go nowhere, or wait and are asked for again and again, take none of the tables that
// may be written from those that are chosen for.
func TestOnlyChoicesAreSampled(t *testing.T) {
	for name, try := range map[string]func(r *Router) error{
		"nobody may serve it": func(r *Router) error {
			_, err := r.BestWorker(t.Context(), Prompt{Local: numbers(1, 50)}, Options{RequestID: "again", Allowed: []uint64{99}})
			return err
		},
		"it waits": func(r *Router) error {
			_, err := r.BestWorker(t.Context(), Prompt{Local: numbers(1, 50)}, Options{RequestID: "again", Patient: true})
			return err
		},
		"nobody may go on with it": func(r *Router) error {
			_, err := r.BestPair(t.Context(), Prompt{Local: numbers(1, 50)}, Options{RequestID: "again", Allowed: []uint64{99}})
			return err
		},
	} {
		log := account.New(account.Config{Keep: 1000, Memory: 1 << 24, Rows: 30, Run: "r"})
		r, _, c := open(t, func(c *Config) { c.Settings.Mode, c.Decisions = "auto", log }, append(workers(2), Worker{ID: 3, Role: Prefill})...) // 10 a second
		for w := range uint64(2) {
			if err := r.Reserve(Reservation{RequestID: fmt.Sprint("busy", w), Rank: a1(w + 1), PromptTokens: 1e6, NewTokens: 1e6}); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 200 {
			for range 5 {
				c.add(20 * time.Millisecond)
				if err := try(r); !errors.Is(err, ErrNoWorker) && !errors.Is(err, ErrLater) {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if n%2 > 0 { // 5 a second
				continue
			}
			id := fmt.Sprint(n)
			if a := best(t, r, Prompt{Local: numbers(1, 50)}, Options{RequestID: id}); a.Decision == "" {
				t.Errorf("%s: choice %d is not sampled", name, n)
			}
			r.Free(id)
		}
	}
}
