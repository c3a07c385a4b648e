package keeper

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Streams that are made again, more or fewer of them, go on from nothing that was known of the
// former: whoever has no publisher any more is not shown as known, however the worker's stream
// is called now, in a replica that ran on and in one that starts with snapshots of before.
func TestASpaceIsMoreOrFewerStreamsThanItWas(t *testing.T) {
	for _, of := range [][2]int{{2, 8}, {4, 1}} {
		w := newDivided(t, of[0], uint64(of[0]))
		runs := w.start("runs", nil)
		w.publish(300)
		runs.equal()
		before := w.start("before", nil)
		before.equal()
		waittest.Until(t, before.in.Ready)
		before.stop() // its snapshots are of all there was
		w.divideAnew(of[1], func(id int) bool { return id%2 == 0 })
		w.publish(100)
		starts := w.start("starts", nil)
		for name, n := range map[string]*node{"that ran on": runs, "that starts": starts} {
			waittest.For(t, "of who has no publisher nothing is shown as known, in a replica "+name, func() bool {
				for _, r := range n.in.Ranks() {
					if r.Worker%2 == 1 && !r.Incomplete && !r.Stale {
						return false
					}
				}
				return true
			})
		}
		runs.crash()
		starts.crash()
	}
}
