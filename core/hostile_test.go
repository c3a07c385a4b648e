package core_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// What events can make an index do is bounded: the tests here send what would
// cost most and count steps, not time.

// TestChosenHashesCrowdNoTable: hashes that crowd one place of the tables under
// one key, and would under the key of somebody who sends events and guesses it,
// do not under another.
func TestChosenHashesCrowdNoTable(t *testing.T) {
	const chosen = 4000
	guessed := core.NewRadix(core.Options{})
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(mixed func(uint64) uint64) []uint64 {
		var c []uint64
		for len(c) < chosen {
			if h := r.Uint64(); mixed(h)>>53 == 0 {
				c = append(c, h)
			}
		}
		return c
	}
	// Names that share the leading bits, first blocks that do, and first blocks that
	// do as children of block 5.
	names, roots := pick(guessed.Mix), pick(func(h uint64) uint64 { return guessed.MixAt(0, h) })
	kids := pick(func(h uint64) uint64 { return guessed.MixAt(5, h) })
	for _, key := range []core.Key{{}, {7, 9}, {1 << 63, 0}} {
		x := core.NewRadix(core.Options{Key: key})
		store := func(parent, name, local uint64) {
			x.Store(0, &event.Event{Kind: event.Stored, HasParent: parent != 0, Parent: parent, Engine: []uint64{name}, Local: []uint64{local}}, false)
		}
		for i := range names {
			store(0, names[i], roots[i])
		}
		trunk := chain(1, 6)
		x.Store(0, &event.Event{Kind: event.Stored, Engine: trunk, Local: trunk}, false)
		for i := range kids {
			store(trunk[4], 1<<40+uint64(i), kids[i])
		}
		kidSteps := x.KidSteps()
		nameSteps, spilled := x.NameSteps()
		t.Logf("key %x: a child takes %d steps at most, a name %d, %d names spilled", key, kidSteps, nameSteps, spilled)
		if crowded := kidSteps > 100 || nameSteps > 10 || spilled > 0; crowded != (key == core.Key{}) {
			t.Errorf("key %x, chosen for the zero one: a child takes %d steps at most, a name %d, %d names spilled", key, kidSteps, nameSteps, spilled)
		}
	}
}
