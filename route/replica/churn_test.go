package replica

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// restarts has the node's router learn that a worker has gone and is there again, as another incarnation: by then its
// requests there are over.
func (n *node) restarts(t *testing.T, worker uint64) {
	t.Helper()
	n.router.RemoveWorker(worker)
	if err := n.router.SetWorker(route.Worker{ID: worker, Ranks: 2}); err != nil {
		t.Fatal(err)
	}
}

// TestWorkersThatComeBack: routers learn at different times that workers have restarted, or not at all, and book requests there
// meanwhile. Whoever learns it ends its own bookings; of the others' it hears. So all agree.
func TestWorkersThatComeBack(t *testing.T) {
	for seed := range uint64(20) {
		net := newNetwork(seed)
		for id := range uint64(3) {
			net.join(t, id+1, nil)
		}
		net.drop, net.dup, net.delay = 0.1, 0.1, 100
		net.run(t, 3*time.Second, func() {
			for _, id := range net.ids() {
				net.nodes[id].act(t)
				if net.rng.IntN(20) == 0 {
					net.nodes[id].restarts(t, net.rng.Uint64N(fleetWorkers))
				}
			}
		})
		net.drop, net.dup, net.delay = 0, 0, 20
		net.run(t, 3*time.Second, nil)
		if problem := net.agree(t); problem != "" {
			t.Fatal(fmt.Sprint("seed ", seed, ": ", problem))
		}
		for _, n := range net.nodes {
			for _, id := range n.live {
				n.router.Free(id)
			}
		}
		net.now = net.now.Add(2 * time.Hour)
		net.run(t, 4*time.Second, nil)
		for id, n := range net.nodes {
			if s := n.router.Stats(); s.Live != 0 {
				t.Errorf("seed %d: router %d keeps %d bookings", seed, id, s.Live)
			}
		}
	}
}
