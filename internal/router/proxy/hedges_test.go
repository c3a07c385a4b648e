package proxy

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Of questions that come and end in any order, exactly those that are due are late, and at once.
func TestWhoIsDueIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, rand.Uint64()))
		over, cancel := context.WithCancel(t.Context())
		cancel() // of who is late nothing else is asked
		var h hedges
		type question struct {
			*asking
			due     time.Time
			removed bool
		}
		var all []*question
		for range 3000 {
			switch n := len(all); {
			case n == 0 || r.IntN(3) > 0:
				q := &question{asking: &asking{ctx: over, until: time.Now().Add(time.Hour)}}
				q.due = time.Now().Add(time.Duration(r.IntN(60)) * time.Millisecond)
				h.add(q.asking, q.due)
				all = append(all, q)
			default:
				if q := all[r.IntN(n)]; !q.removed {
					if q.removed = h.remove(q.asking); q.removed != q.due.After(time.Now()) {
						t.Fatalf("removed %v, due in %v", q.removed, time.Until(q.due))
					}
				}
			}
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
			synctest.Wait()
			for i := 0; i < len(all); i++ {
				q := all[i]
				h.mu.Lock() // look makes the channel
				late := len(q.other) > 0
				h.mu.Unlock()
				if want := !q.removed && !q.due.After(time.Now()); late != want {
					t.Fatalf("late %v, want %v: removed %v, due in %v", late, want, q.removed, time.Until(q.due))
				}
				if late || q.removed && r.IntN(20) == 0 {
					all[i] = all[len(all)-1]
					all = all[:len(all)-1]
					i--
				}
			}
		}
	})
}
