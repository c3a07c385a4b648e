package groups

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// A clear of one tier takes what is there, by a plain account of copies, and looks at no more than a few entries for each block that
// was stored since: however often a stream says it, of a rank that holds much elsewhere.
func TestClearsOfOneTierCostWhatCameToIt(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(31, seed))
		table, copies, stored := NewTable(), make(map[copyOf]int), 0
		if seed == 0 { // what is much, elsewhere
			ev := event.Event{Kind: event.Stored, Group: 1, Tier: event.HostPinned}
			for name := range uint64(10_000) {
				ev.Engine = append(ev.Engine, name)
				copies[copyOf{name, heldBit(1, event.HostPinned)}]++
			}
			table.Apply(&ev, true)
		}
		before := table.steps
		for step := range 2000 {
			ev := event.Event{Kind: event.Kind(1 + rnd.IntN(3)), Group: uint8(rnd.IntN(3)), Tier: event.Tier(rnd.IntN(event.NumTiers))}
			if ev.Kind == event.Cleared && seed > 0 && rnd.IntN(8) > 0 {
				continue
			}
			if seed == 0 && ev.Tier == event.HostPinned {
				ev.Tier = event.Disk
			}
			name := rnd.Uint64N(100)
			key := copyOf{name, heldBit(ev.Group, ev.Tier)}
			if ev.Kind != event.Cleared {
				ev.Engine = []uint64{name}
			}
			if ev.Kind == event.Stored && ev.Group == 0 {
				ev.Local = []uint64{name}
			}
			out := table.Apply(&ev, true)
			removed := 0
			switch ev.Kind {
			case event.Stored:
				copies[key]++
				stored++
			case event.Removed:
				if copies[key]--; copies[key] <= 0 {
					if delete(copies, key); out.Unknown == 0 && ev.Group > 0 {
						removed++
					}
				}
			case event.Cleared:
				for k := range copies {
					if onTier(ev.Tier)>>k.bit&1 != 0 {
						delete(copies, k)
						if k.bit%event.MaxCacheGroups > 0 {
							removed++
						}
					}
				}
			}
			if out.Removed != removed {
				t.Fatalf("seed %d: %+v has removed %d, not %d", seed, ev, out.Removed, removed)
			}
			if seed == 0 && step%100 > 0 {
				continue
			}
			held := 0
			for k, n := range copies {
				at, known := table.names[k.name]
				if !known || table.entries[at].held>>k.bit&1 == 0 || table.more[k] != uint32(n-1) {
					t.Fatalf("seed %d: after %+v, %d copies of %+v are not there", seed, ev, n, k)
				}
				if k.bit%event.MaxCacheGroups > 0 {
					held++
				}
			}
			if table.Held() != held {
				t.Fatalf("seed %d: after %+v, %d are held, not %d", seed, ev, table.Held(), held)
			}
		}
		if n := table.steps - before; n > 9*stored {
			t.Errorf("seed %d: clears have looked at %d entries, for %d that were stored", seed, n, stored)
		}
	}
}
