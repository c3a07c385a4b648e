package recovery

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// What is dumped and restored is what was there, parents before children, and
// counts copies as before.
func TestOrphansComeBack(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 21))
		var l Orphans
		want := map[uint64][event.NumTiers]uint32{} // copies
		for range rng.IntN(80) {
			hash, tier, count := 1+rng.Uint64N(20), event.Tier(rng.IntN(event.NumTiers)), rng.IntN(2) == 0
			w := want[hash]
			switch k := rng.IntN(10); {
			case k < 5: // its parent is the number below; the first one's is missing
				l.Store(&event.Event{Kind: event.Stored, Tier: tier, HasParent: true, Parent: hash - 1,
					Engine: []uint64{hash}, Local: []uint64{100 + hash}}, count)
				if w[tier] == 0 || count {
					w[tier]++
				}
			case k < 8:
				gone := l.Remove(hash, tier, count)
				if count {
					w[tier] = max(w[tier], 1) - 1
				} else {
					w[tier] = 0
				}
				if gone != (w[tier] == 0) {
					t.Fatalf("seed %d: gone %v, %v copies", seed, gone, w)
				}
			case k < 9:
				if l.StoreHashOnly(hash, tier, count) != (w != [event.NumTiers]uint32{}) {
					t.Fatalf("seed %d: block %d is not there, or is", seed, hash)
				}
				if w != ([event.NumTiers]uint32{}) && (w[tier] == 0 || count) {
					w[tier]++
				}
			default:
				x := core.NewOracle()
				x.Store(0, &event.Event{Kind: event.Stored, Engine: []uint64{hash}, Local: []uint64{1}}, true)
				l.Attach(x, 0, []uint64{hash}, true)
				w[0]++
				if got := x.KnownHashes(0)[0].Copies; got != w {
					t.Fatalf("seed %d: %v copies, want %v", seed, got, w)
				}
				w = [event.NumTiers]uint32{}
			}
			if want[hash] = w; w == ([event.NumTiers]uint32{}) {
				delete(want, hash)
			}
		}
		var back Orphans
		var order []uint64
		l.Dump(func(ev *event.Event, copies []uint32) {
			if !ev.Incomplete || len(ev.Engine) != 1 {
				t.Fatalf("seed %d: %+v", seed, ev)
			}
			if ev.HasParent {
				if slices.Contains(order, ev.Engine[0]+1) {
					t.Fatalf("seed %d: block %d comes after its child", seed, ev.Engine[0])
				}
				order = append(order, ev.Engine[0])
			}
			back.Restore(ev, copies)
		})
		if l.Len() != len(want) || back.Len() != len(want) {
			t.Fatalf("seed %d: %d blocks, %d came back, want %d", seed, l.Len(), back.Len(), len(want))
		}
		for hash, copies := range want {
			if !reflect.DeepEqual(l.blocks[hash], back.blocks[hash]) || back.blocks[hash].copies != copies {
				t.Fatalf("seed %d: block %d: %+v, came back as %+v, want %v", seed, hash, l.blocks[hash], back.blocks[hash], copies)
			}
		}
		tier := event.Tier(rng.IntN(event.NumTiers))
		l.Clear(tier, false)
		for hash, b := range l.blocks {
			if b.copies[tier] != 0 || b.copies == ([event.NumTiers]uint32{}) {
				t.Fatalf("seed %d: block %d after a clear of tier %d: %v", seed, hash, tier, b.copies)
			}
		}
		if l.Clear(0, true); l.Len() != 0 {
			t.Fatalf("seed %d: %d blocks after a clear", seed, l.Len())
		}
	}
}

// Blocks whose parents form a ring come out all the same.
func TestARingOfOrphansEnds(t *testing.T) {
	var l Orphans
	for hash := range uint64(3) {
		l.Store(&event.Event{Kind: event.Stored, HasParent: true, Parent: (hash + 1) % 3, Engine: []uint64{hash}, Local: []uint64{9}}, false)
	}
	n := 0
	l.Dump(func(*event.Event, []uint32) { n++ })
	if n != 3 {
		t.Errorf("%d blocks", n)
	}
}
