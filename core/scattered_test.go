package core_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestRemovalsInNoOrder: holders that share chains remove their blocks in no order, many an event:
// among them hashes twice, unknown ones, pieces in chain order, up and down, blocks with a second copy, hashes
// of a holder's own, and runs in which another holder has blocks on a lower tier.
func TestRemovalsInNoOrder(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const holders, chains = 4, 6
	for _, seed := range coretest.Seeds(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		x := core.NewRadix(core.Options{})
		c := coretest.NewChecker(x, seed)
		apply := func(h core.Holder, ev event.Event) {
			if err := c.Apply(&coretest.Op{Holder: h, Event: ev, Count: h%2 == 0}); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		var left [holders][]uint64
		for k := range chains {
			local := chain(uint64(k+1)<<32, 1+r.IntN(200))
			for h := range core.Holder(holders) {
				n := len(local) - r.IntN(len(local))/2
				engine := append([]uint64(nil), local[:n]...)
				if h == 3 { // calls what others have otherwise
					for i := range engine {
						engine[i] += 1 << 60
					}
				}
				apply(h, event.Event{Kind: stored, Engine: engine, Local: local[:n]})
				left[h] = append(left[h], engine...)
				if h == 2 && k%2 == 0 {
					apply(h, event.Event{Kind: stored, Tier: host, Engine: engine[n/2:]})
				}
				if h == 0 {
					apply(h, event.Event{Kind: stored, Engine: engine[:n/3+1], Local: local[:n/3+1]})
				}
			}
		}
		for h := range left {
			shuffle := func(hashes []uint64) {
				r.Shuffle(len(hashes), func(i, j int) { hashes[i], hashes[j] = hashes[j], hashes[i] })
			}
			shuffle(left[h])
			for at := 0; at+40 < len(left[h]); at += 100 { // a chain's hashes are in order where they are sorted
				switch piece := left[h][at : at+40]; r.IntN(3) {
				case 0:
					slices.Sort(piece)
				case 1:
					slices.Sort(piece)
					slices.Reverse(piece)
				}
			}
		}
		for i := 0; ; i++ {
			h := r.IntN(holders)
			n := min(1+r.IntN(80), len(left[h]))
			if n == 0 {
				if len(left[0])+len(left[1])+len(left[2])+len(left[3]) == 0 {
					break
				}
				continue
			}
			gone := append([]uint64(nil), left[h][:n]...)
			left[h] = left[h][n:]
			for range r.IntN(4) {
				at := r.IntN(len(gone))
				gone = append(gone, gone[at], gone[at]-1, r.Uint64())
			}
			apply(core.Holder(h), event.Event{Kind: removed, Engine: gone})
			if err := c.State(4); err != nil {
				t.Fatalf("seed %d, event %d: %v", seed, i, err)
			}
			if err := x.Check(); err != nil {
				t.Fatalf("seed %d, event %d: %v", seed, i, err)
			}
		}
	}
}
