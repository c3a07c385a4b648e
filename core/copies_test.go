package core_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// TestCopiesAreStores: copies that are stored at once are as many stores, among any others.
func TestCopiesAreStores(t *testing.T) {
	stored := 0
	for _, g := range coretest.Solo()[:2] {
		for _, seed := range coretest.Seeds(20) {
			r := rand.New(rand.NewPCG(seed, 46))
			x := core.NewRadix(core.Options{})
			c := coretest.NewChecker(x, seed)
			restored := core.NewOracle() // the same, by its own StoreCopies
			for i, op := range g.History(seed) {
				if err := c.Apply(&op); err != nil {
					t.Fatal(err)
				}
				op.Apply(restored)
				ev := event.Event{Kind: event.Stored, Tier: event.Tier(r.IntN(event.NumTiers + 1)), Engine: []uint64{1}}
				if len(op.Event.Engine) > 0 {
					ev.Engine[0] = op.Event.Engine[r.IntN(len(op.Event.Engine))]
				}
				n := r.Uint32N(4)
				var want core.Outcome
				for j := range n {
					if one := c.Oracle.Store(op.Holder, &ev, true); j == 0 {
						want = one
					}
				}
				have := x.StoreCopies(op.Holder, ev.Tier, ev.Engine[0], n)
				if also := restored.StoreCopies(op.Holder, ev.Tier, ev.Engine[0], n); have != want || also != want {
					t.Fatalf("%s, seed %d, operation %d: %+v, the oracle %+v, want %+v", g.Name, seed, i, have, also, want)
				}
				stored += have.Stored + have.Duplicate
				if err := x.Check(); err != nil {
					t.Fatalf("%s, seed %d, operation %d: %v", g.Name, seed, i, err)
				}
			}
			if err := c.State(3); err != nil {
				t.Fatalf("%s, seed %d: %v", g.Name, seed, err)
			}
			for h := range core.Holder(8) {
				if !slices.Equal(restored.KnownHashes(h), c.Oracle.KnownHashes(h)) {
					t.Fatalf("%s, seed %d: holder %d differs", g.Name, seed, h)
				}
			}
		}
	}
	if stored == 0 {
		t.Error("nothing was stored")
	}
}

// TestAnyNumberOfCopies: a dump may say any number of copies. To restore them takes no longer than to
// restore one, and a further one is none instead of as if there were none.
func TestAnyNumberOfCopies(t *testing.T) {
	chain := event.Event{Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}
	second := event.Event{Kind: event.Stored, Engine: []uint64{3}, Local: []uint64{1}} // has a position of its own name
	for _, x := range []core.Index{core.NewRadix(core.Options{}), core.NewOracle()} {
		r := core.Restorer{Index: x}
		r.Add(&chain, []uint32{math.MaxUint32, 1})
		for e := range uint64(100) { // most in a pile
			second.Engine[0] = 3 + e
			r.Add(&second, []uint32{math.MaxUint32})
		}
		r.Finish()
		for _, e := range []uint64{1, 3, 102} {
			again := event.Event{Kind: event.Stored, Engine: []uint64{e}}
			x.Store(0, &again, true)
			x.StoreCopies(0, event.Device, e, math.MaxUint32)
			again.Kind = event.Removed
			if out := x.Remove(0, &again, true); out != (core.Outcome{Decremented: 1}) {
				t.Errorf("%T, block %d: a copy taken away: %+v", x, e, out)
			}
		}
		most := 0
		x.Dump(0, func(_ *event.Event, copies []uint32) bool {
			for _, n := range copies {
				if n >= math.MaxUint32-1 {
					most++
				}
			}
			return true
		})
		if most != 101 {
			t.Errorf("%T: %d blocks have as many copies as were told, want 101", x, most)
		}
	}
}
