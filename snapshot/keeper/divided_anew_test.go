package keeper

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Streams that are made again, more or fewer of them, go on from nothing that was known of the
// former: whoever has no publisher any more is not shown as known, however the worker's stream
// is called now, in a replica that ran on and in one that starts with snapshots of before.
func TestASpaceIsMoreOrFewerStreamsThanItWas(t *testing.T) {
	for _, of := range [][2]int{{2, 8}, {4, 2}, {4, 1}} {
		w := newDivided(t, of[0], uint64(of[0]))
		runs := w.start("runs", nil)
		w.publish(300)
		runs.equal()
		before := w.start("before", nil)
		before.equal()
		waittest.Until(t, before.in.Ready)
		before.stop() // its snapshots are of all there was
		// All workers end, and the streams go with all that is in them.
		for id := 0; id < len(w.pubs); id++ {
			w.kill(w.pubs[id])
		}
		for _, at := range w.streams() {
			if err := w.js.DeleteStream(deadline(t), at.Name); err != nil {
				t.Fatal(err)
			}
		}
		w.of = of[1]
		for id := range w.pubs {
			if w.pubs[id] = nil; id%2 == 0 {
				w.pubs[id] = w.publisher(id)
				w.mu.Lock()
				w.oracle.Clear(core.Holder(id), 0, true)
				w.held[id] = nil
				w.mu.Unlock()
			}
		}
		w.publish(100)
		starts := w.start("starts", nil)
		for name, n := range map[string]*node{"that ran on": runs, "that starts": starts} {
			waittest.For(t, "of who has no publisher nothing is shown as known", func() bool {
				for _, r := range n.in.Ranks() {
					if r.Worker%2 == 1 && !r.Incomplete && !r.Stale {
						t.Logf("%d to %d, %s: %+v", of[0], of[1], name, r)
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
