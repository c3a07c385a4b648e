package route

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// together makes routers that know of each other and have heard nothing else yet. Each
// learns of the workers in an order of its own.
func together(t *testing.T, routers, ranks int) []*Router {
	t.Helper()
	all := make([]*Router, routers)
	for i := range all {
		ws := workers(ranks)
		for j := range ws {
			ws[j] = Worker{ID: uint64(1 + (i+j)%ranks)}
		}
		all[i], _, _ = open(t, func(c *Config) {
			c.Settings.Mode, c.ID, c.Settings.Seed = "auto", uint64(100-i), uint64(i)
		}, ws...)
		store(t, all[i].cfg.Index.(*shard.Space), 3, 0, 0, numbers(1, 500)...)
	}
	for _, r := range all {
		for _, o := range all {
			r.Replace(o.cfg.ID, func(func(load.Change) bool) {})
		}
	}
	return all
}

// TestRoutersAtOneMoment: requests that come to several routers at one moment go to
// different workers, as far as there are any; but a prompt that is cached goes to where it
// is; and with one router left, all workers are its own.
func TestRoutersAtOneMoment(t *testing.T) {
	for _, c := range []struct{ routers, ranks, each int }{{1, 8, 8}, {2, 8, 4}, {4, 8, 2}, {8, 8, 1}, {3, 7, 2}} {
		got := map[uint64]int{}
		all := together(t, c.routers, c.ranks)
		for i, r := range all {
			for n := range c.each {
				a := best(t, r, Prompt{Local: numbers(10_000*(i+1)+1000*n, 500)}, Options{RequestID: fmt.Sprint(n)})
				got[a.Worker]++
			}
		}
		if len(got) != c.routers*c.each {
			t.Errorf("%+v: requests at one moment went to %v", c, got)
		}
		for i, r := range all {
			if a := best(t, r, Prompt{Local: numbers(1, 500)}, Options{}); a.Worker != 3 && c.ranks > 1 && r.Loads()[2].Requests == 0 {
				t.Errorf("%+v: router %d sends what worker 3 has to %d", c, i, a.Worker)
			}
			for _, o := range all {
				r.DropOwner(o.cfg.ID)
			}
			if a := best(t, r, Prompt{Local: numbers(1e6, 500)}, Options{Explain: true}); slices.ContainsFunc(a.Ranks, func(e Explained) bool { return e.others }) {
				t.Errorf("%+v: router %d leaves ranks to routers that are gone: %+v", c, i, a.Ranks)
			}
		}
	}
}

// TestMoreRoutersThanRanks: each router still has a rank that it takes first.
func TestMoreRoutersThanRanks(t *testing.T) {
	got := map[uint64]int{}
	for i, r := range together(t, 9, 3) {
		got[best(t, r, Prompt{Local: numbers(1000*(i+1), 500)}, Options{}).Worker]++
	}
	if got[1] != 3 || got[2] != 3 || got[3] != 3 {
		t.Errorf("nine requests at one moment went to %v", got)
	}
}

// TestRoutersDrawApart: routers of one fleet that have one seed choose by chance, or in turn, each for itself; one that is
// alone as its seed says.
func TestRoutersDrawApart(t *testing.T) {
	const ranks, requests = 32, 200
	for _, mode := range []string{"random", "power-of-two", "least-loaded", "round-robin"} {
		chosen := func(ids ...uint64) (all [][]uint64) {
			for _, id := range ids {
				r, _, _ := open(t, func(c *Config) { c.Settings.Mode, c.ID = mode, id }, workers(ranks)...)
				for _, other := range ids {
					r.Replace(other, func(func(load.Change) bool) {})
				}
				var list []uint64
				for range requests {
					list = append(list, best(t, r, Prompt{Local: numbers(1, 3)}, Options{}).Worker)
				}
				all = append(all, list)
			}
			return all
		}
		all := chosen(7, 8)
		same := 0
		for i := range all[0] {
			if all[0][i] == all[1][i] {
				same++
			}
		}
		if same > requests/8 {
			t.Errorf("%s: two routers choose the same worker for %d of %d", mode, same, requests)
		}
		if a, b := chosen(7)[0], chosen(8)[0]; !slices.Equal(a, b) {
			t.Errorf("%s: a router that is alone chooses otherwise with the same seed", mode)
		}
	}
}
