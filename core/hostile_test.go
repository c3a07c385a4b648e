package core_test

import (
	"errors"
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
	// Hashes that share the leading bits, first blocks that do, and first blocks that
	// do as children of block 5.
	hashes, roots := pick(guessed.Mix), pick(func(h uint64) uint64 { return guessed.MixAt(0, h) })
	children := pick(func(h uint64) uint64 { return guessed.MixAt(5, h) })
	for _, key := range []core.Key{{}, {7, 9}, {1 << 63, 0}} {
		x := core.NewRadix(core.Options{Key: key})
		store := func(parent, hash, local uint64) {
			x.Store(0, &event.Event{Kind: event.Stored, HasParent: parent != 0, Parent: parent, Engine: []uint64{hash}, Local: []uint64{local}}, false)
		}
		for i := range hashes {
			store(0, hashes[i], roots[i])
		}
		trunk := chain(1, 6)
		x.Store(0, &event.Event{Kind: event.Stored, Engine: trunk, Local: trunk}, false)
		for i := range children {
			store(trunk[4], 1<<40+uint64(i), children[i])
		}
		childSteps := x.ChildSteps()
		directorySteps, spilled := x.DirectorySteps()
		t.Logf("key %x: a child takes %d steps at most, a hash %d, %d hashes spilled", key, childSteps, directorySteps, spilled)
		if crowded := childSteps > 100 || directorySteps > 10 || spilled > 0; crowded != (key == core.Key{}) {
			t.Errorf("key %x, chosen for the zero one: a child takes %d steps at most, a hash %d, %d hashes spilled", key, childSteps, directorySteps, spilled)
		}
	}
}

// stored is an event of n blocks whose hashes are those of everyone and whose
// content is the worker's own.
func stored(worker, first, n int) *event.Event {
	ev := &event.Event{Kind: event.Stored}
	for i := range n {
		ev.Engine = append(ev.Engine, uint64(first+i))
		ev.Local = append(ev.Local, uint64(worker+1)<<32|uint64(first+i))
	}
	return ev
}

// TestHashesOfManyPositions: where w workers call their own content by the same
// hashes, a block costs no more for the thousandth of them than for the tenth,
// also where others join their chains, and a cut that is loaded goes on so.
func TestHashesOfManyPositions(t *testing.T) {
	const blocks = 32
	cost := func(x *core.Radix, f func()) float64 {
		before := x.Steps()
		f()
		return float64(x.Steps()-before) / blocks
	}
	type costs struct{ store, join, again, remove float64 }
	measure := func(x *core.Radix, w int) (c costs) {
		ev := stored(w, 0, blocks)
		h, other := core.Holder(2*w), core.Holder(2*w+1)
		c.store = cost(x, func() { x.Store(h, ev, true) })
		c.join = cost(x, func() { x.Store(other, ev, true) })
		c.again = cost(x, func() { x.Store(other, ev, true) })
		c.remove = cost(x, func() {
			x.Remove(other, &event.Event{Kind: event.Removed, Engine: ev.Engine}, true)
			x.Remove(other, &event.Event{Kind: event.Removed, Engine: ev.Engine}, true)
		})
		x.Store(other, ev, true)
		return c
	}
	fill := func(workers int) *core.Radix {
		x := core.NewRadix(core.Options{})
		for w := range workers {
			measure(x, w)
		}
		return x
	}
	few, many := measure(fill(10), 10), fill(1000)
	loaded := core.NewRadix(core.Options{})
	l := loaded.NewLoader()
	for _, p := range cutOf(many) {
		if err := l.Add(&p); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(many.Check(), loaded.Check()); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]*core.Radix{"written": many, "loaded": loaded} {
		for h := range core.Holder(2000) {
			if !x.Knows(h, 5) || !x.Knows(h, blocks-1) || x.Knows(h, blocks) {
				t.Fatalf("%s: holder %d does not know its names", name, h)
			}
		}
		have := measure(x, 1000)
		t.Logf("%s: steps a block with 10 workers %+v, with 1,000 %+v", name, few, have)
		for i, c := range [][2]float64{{have.store, few.store}, {have.join, few.join}, {have.again, few.again}, {have.remove, few.remove}} {
			if c[0] > 1.5*c[1]+4 {
				t.Errorf("%s: a block takes %v steps beside 1,000 workers, %v beside 10 (%d of store, join, store again, remove)", name, c[0], c[1], i)
			}
		}
	}
}

// TestManyHashesForOneContent: where one rank names the same content k times, what
// is done with one of the hashes costs no more for k = 5,000 than for k = 20.
func TestManyHashesForOneContent(t *testing.T) {
	const blocks = 4
	type costs struct{ store, again, lower, remove, idle float64 }
	measure := func(k int) (c costs) {
		x := core.NewRadix(core.Options{})
		local := chain(1, blocks)
		one := func(i int) *event.Event {
			ev := &event.Event{Kind: event.Stored, Local: local}
			for j := range local {
				ev.Engine = append(ev.Engine, uint64(i+1)<<16|uint64(j))
			}
			return ev
		}
		cost := func(f func(i int)) float64 {
			before := x.Steps()
			for i := range k {
				f(i * 7919 % k)
			}
			return float64(x.Steps()-before) / float64(k*blocks)
		}
		check := func(held, knows int) {
			if n := x.Held(0, event.Device); n != held || !x.Knows(0, one(knows).Engine[blocks-1]) {
				t.Fatalf("%d blocks held of %d, the last one named %v", n, held, x.Knows(0, one(knows).Engine[blocks-1]))
			}
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
		}
		c.store = cost(func(i int) { x.Store(0, one(i), true) })
		check(k*blocks, 0)
		c.again = cost(func(i int) { x.Store(0, one(i), true) })
		c.lower = cost(func(i int) {
			x.Store(0, &event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: one(i).Engine}, true)
			x.Remove(0, &event.Event{Kind: event.Removed, Tier: event.HostPinned, Engine: one(i).Engine}, true)
		})
		check(k*blocks, 1)
		// A block below the last hash holds the hashes above known.
		last := one(k).Engine
		x.Store(0, one(k), true)
		x.Store(0, &event.Event{Kind: event.Stored, HasParent: true, Parent: last[blocks-1], Engine: []uint64{7}, Local: []uint64{7}}, true)
		c.remove = cost(func(i int) {
			for range 2 {
				x.Remove(0, &event.Event{Kind: event.Removed, Engine: one(i).Engine}, true)
			}
		})
		check(blocks+1, 2)
		before := x.Steps()
		x.Remove(0, &event.Event{Kind: event.Removed, Engine: []uint64{7}}, true)
		c.idle = float64(x.Steps()-before) / float64(k)
		if check(blocks, k); x.Knows(0, one(0).Engine[0]) != true || x.Knows(0, one(0).Engine[blocks-1]) {
			t.Fatal("names of the last block are known by nothing, of those above as links")
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		if out := x.Clear(0, 0, true); out.Removed != blocks || x.Memory().Total() > 4096 {
			t.Fatalf("%+v, %+v", out, x.Memory())
		}
		return c
	}
	few, many := measure(20), measure(5000)
	t.Logf("steps a name, of 20 %+v, of 5,000 %+v", few, many)
	for i, c := range [][2]float64{{many.store, few.store}, {many.again, few.again}, {many.lower, few.lower}, {many.remove, few.remove}, {many.idle, few.idle}} {
		if c[0] > 1.5*c[1]+4 {
			t.Errorf("of 5,000 names one takes %v steps, of 20 %v (%d of store, store again, lower tier, remove, let go)", c[0], c[1], i)
		}
	}
}
