package core_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// TestOracleDumpRestores replays the dump of random holders into an empty
// oracle: every hash, position and copy must come back.
func TestOracleDumpRestores(t *testing.T) {
	links, unnamed := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := core.NewOracle()
		pick := func(n int) []uint64 {
			s := make([]uint64, n)
			for i := range s {
				s[i] = r.Uint64N(12)
			}
			return s
		}
		for range 60 {
			n := 1 + r.IntN(4)
			ev := event.Event{Tier: event.Tier(r.IntN(event.NumTiers)), Engine: pick(n), Local: pick(n)}
			for i := range ev.Local {
				ev.Local[i] %= 3
			}
			ev.HasParent, ev.Parent = r.IntN(3) > 0, r.Uint64N(12)
			switch r.IntN(3) {
			case 0, 1:
				o.Store(0, &ev, r.IntN(2) == 0)
			default:
				o.Remove(0, &ev, r.IntN(2) == 0)
			}
		}
		got := core.NewOracle()
		restore := core.Restorer{Index: got}
		o.Dump(0, func(ev *event.Event, copies []uint32) bool {
			if len(ev.Engine) > 1 && ev.Engine[0] == ev.Engine[1] {
				unnamed++
			}
			restore.Add(ev, copies)
			return true
		})
		restore.Finish()
		for _, n := range o.KnownHashes(0) {
			if n.Copies == [event.NumTiers]uint32{} {
				links++
			}
			if !reflect.DeepEqual(o.Chain(0, n.Engine), got.Chain(0, n.Engine)) {
				t.Fatalf("seed %d: name %d came back at another place", seed, n.Engine)
			}
		}
		if !reflect.DeepEqual(o.KnownHashes(0), got.KnownHashes(0)) {
			t.Fatalf("seed %d:\nhave %v\nwant %v", seed, got.KnownHashes(0), o.KnownHashes(0))
		}
		id := func(h core.Holder) (uint64, uint32) { return uint64(h) + 5, 1 }
		if o.Digest(9, id) != got.Digest(9, id) {
			t.Fatalf("seed %d: digests differ", seed)
		}
	}
	if links == 0 || unnamed == 0 {
		t.Fatalf("the histories had %d links and %d unnamed places: they test nothing", links, unnamed)
	}
}

// TestOracleScripts holds the oracle to the scenarios that were written and
// checked by hand.
func TestOracleScripts(t *testing.T) {
	coretest.RunScripts(t, "testdata/scripts/*.txt", func() core.Index { return core.NewOracle() })
}
