package route

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// What is unseen ends in order, each once, and none before its time.
func TestUnseen(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	for range 200 {
		var u unseen
		var want []int64
		begun := time.Unix(0, 0)
		for now := int64(0); now < 400; now += 40 {
			for range r.IntN(12) {
				at := now + r.Int64N(300)
				u.add(load.Key{Owner: uint64(at)}, begun.Add(time.Duration(at)))
				want = append(want, at)
			}
			slices.Sort(want)
			due, _ := slices.BinarySearch(want, now+1)
			var got []int64
			u.until(begun.Add(time.Duration(now)), func(k load.Key, at time.Time) {
				if got = append(got, int64(k.Owner)); at.Sub(begun) != time.Duration(k.Owner) {
					t.Errorf("%v at %v", k, at)
				}
			})
			if !slices.Equal(got, want[:due]) {
				t.Fatalf("by %d: %v, want %v", now, got, want[:due])
			}
			if want = want[due:]; len(u) != len(want) {
				t.Fatalf("%d are left, want %d", len(u), len(want))
			}
		}
	}
}
