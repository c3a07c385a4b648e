package proxy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/internal/router/spool"
)

// Whoever comes and goes: no client has more than its share, all have no more than there
// is, who is refused had no room, and of those that have left nothing is kept.
func TestInFlightOfEachClient(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		most, share := 1+rng.IntN(20), []float64{0, 0.001, 0.3, 0.5, 1}[rng.IntN(5)]
		each := most
		if share > 0 && share < 1 {
			each = max(int(share*float64(most)), 1)
		}
		f, all, by, guests := newFlight(most, share), 0, map[int]int{}, map[int]*guest{}
		client := func(i int) spool.Client { return spool.Client{Name: fmt.Sprint(i)} }
		for range 1000 {
			i := rng.IntN(5)
			if rng.IntN(5) < 2 && by[i] > 0 {
				f.leave(&place{guest: guests[i]})
				all--
				by[i]--
				continue
			}
			g, own := f.enter(client(i))
			ok := g != nil
			if wantOK, wantOwn := all < most && by[i] < each, all < most && by[i] >= each; ok != wantOK || own != wantOwn {
				t.Fatalf("seed %d: %v %v with %d of %d, %d of %d its own", seed, ok, own, all, most, by[i], each)
			}
			if ok {
				guests[i] = g
				all++
				by[i]++
			}
		}
		for i := range by {
			for range by[i] {
				f.leave(&place{guest: guests[i]})
			}
		}
		if f.count() != 0 || len(f.clients) != 0 {
			t.Fatalf("seed %d: %d are left, of %d clients", seed, f.count(), len(f.clients))
		}
	}
}
