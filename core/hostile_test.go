package core_test

import (
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

const (
	stored, removed = event.Stored, event.Removed
	device, host    = event.Device, event.HostPinned
)

// What events can make an index do is bounded: the tests here send what would
// cost most and count steps, not time.

// TestChosenHashesCrowdNoTable: hashes that crowd one place of the tables under
// one key, and would under the key of somebody who sends events and guesses it,
// do not under another.
func TestChosenHashesCrowdNoTable(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
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

// ownContent is an event of n blocks whose hashes are those of everyone and whose
// content is the worker's own.
func ownContent(worker, first, n int) *event.Event {
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
	racetest.Without(t, "one goroutine does all")
	const blocks = 32
	cost := func(x *core.Radix, f func()) float64 {
		before := x.Steps()
		f()
		return float64(x.Steps()-before) / blocks
	}
	type costs struct{ store, join, again, remove float64 }
	measure := func(x *core.Radix, w int) (c costs) {
		ev := ownContent(w, 0, blocks)
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
	l := loaded.NewLoader(0)
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
	racetest.Without(t, "one goroutine does all")
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

// TestCrowdedRuns: what one rank does at the end of a run that many others share,
// and with its tiers, costs no more beside 5,000 of them than beside 100; and what
// is put off for that is done in the end.
func TestCrowdedRuns(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const one, events = core.Holder(50), 1000
	trunk := chain(1, 20)
	measure := func(holders int) (costs [5]float64) {
		event := func(kind event.Kind, tier event.Tier, parent uint64, content bool, hashes ...uint64) *event.Event {
			ev := &event.Event{Kind: kind, Tier: tier, HasParent: parent > 0, Parent: parent, Engine: hashes}
			if content {
				ev.Local = hashes
			}
			return ev
		}
		for i, act := range []func(x *core.Radix, k uint64){
			func(x *core.Radix, _ uint64) { // appends and truncates
				x.Store(one, event(stored, device, 20, true, 100), false)
				x.Remove(one, event(removed, device, 0, false, 100), false)
			},
			func(x *core.Radix, _ uint64) { // appends more than there is room for
				x.Store(one, event(stored, device, 20, true, chain(100, 60)...), false)
				x.Remove(one, event(removed, device, 0, false, chain(100, 60)...), false)
			},
			func(x *core.Radix, _ uint64) { // leaves a single child
				for k := range uint64(3) {
					x.Store(one, event(stored, device, 20, true, 100+k), false)
				}
				x.Remove(one, event(removed, device, 0, false, 100, 102, 101), false)
			},
			func(x *core.Radix, k uint64) { // swaps tails
				x.Store(one, event(stored, device, 20, true, chain(1000*k, 5)...), false)
				x.Store(one, event(stored, device, 20, true, chain(1000*k+500, 5)...), false)
				x.Remove(one, event(removed, device, 0, false, chain(1000*k, 5)...), false)
				x.Remove(one, event(removed, device, 0, false, chain(1000*k+500, 5)...), false)
			},
			func(x *core.Radix, _ uint64) { // comes to and leaves a lower tier
				x.Store(one, event(stored, host, 0, false, 5), false)
				x.Remove(one, event(removed, host, 0, false, 5), false)
			},
		} {
			x := core.NewRadix(core.Options{})
			for h := range core.Holder(holders) {
				x.Store(h, event(stored, device, 0, true, trunk...), false)
			}
			before := x.Steps()
			for k := range uint64(events) {
				act(x, k+1)
			}
			costs[i] = float64(x.Steps()-before) / events
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			elsewhere := chain(1<<32, holders)
			x.Store(one, event(stored, device, 0, true, elsewhere...), false)
			x.Remove(one, event(removed, device, 0, false, elsewhere...), false)
			if n := x.Loose(); n > 0 {
				t.Errorf("%d holders, act %d: %d runs have more than is of need after %d removals", holders, i, n, holders)
			}
			for h := range core.Holder(holders) {
				x.Clear(h, 0, true)
			}
			if n := x.Memory().Total(); n > 4096 {
				t.Errorf("%d holders, act %d: %d bytes are left", holders, i, n)
			}
		}
		return costs
	}
	few, many := measure(100), measure(5000)
	once := 5000.0 * 3 * event.NumTiers / events // coverage may be made anew some times, not with each act
	t.Logf("steps an act beside 100 holders %.0f, beside 5,000 %.0f", few, many)
	for i := range many {
		if many[i] > 1.5*few[i]+once {
			t.Errorf("act %d takes %.0f steps beside 5,000 holders, %.0f beside 100", i, many[i], few[i])
		}
	}
}

// TestLongChains: what a rank does with a few blocks of a chain costs no more where
// the chain is long.
func TestLongChains(t *testing.T) {
	measure := func(blocks int) (costs [2]float64) {
		x := core.NewRadix(core.Options{})
		c := chain(1, blocks)
		x.Store(0, &event.Event{Kind: stored, Engine: c, Local: c}, false)
		x.Infer(1, 0, uint64(blocks))
		x.Store(0, &event.Event{Kind: stored, Tier: host, Engine: c[5:6]}, false)
		for i, act := range []func(){
			func() { // another block on the lower tier
				x.Store(0, &event.Event{Kind: stored, Tier: host, Engine: c[7:8]}, false)
				x.Remove(0, &event.Event{Kind: removed, Tier: host, Engine: c[7:8]}, false)
			},
			func() { // the deepest one is inferred again
				x.Remove(1, &event.Event{Kind: removed, Engine: c[blocks-1:]}, false)
				x.Infer(1, 0, uint64(blocks))
			},
		} {
			before := x.Steps()
			act()
			costs[i] = float64(x.Steps() - before)
		}
		return costs
	}
	few, many := measure(100), measure(100_000)
	t.Logf("steps an act in a chain of 100 blocks %v, of 100,000 %v", few, many)
	for i := range many {
		if many[i] > 1.5*few[i]+4 {
			t.Errorf("act %d takes %v steps in a chain of 100,000 blocks, %v in one of 100", i, many[i], few[i])
		}
	}
}

// TestDeepChains: a chain that forks at each of its blocks is as deep as a rank
// makes it, and to dump who has its end takes no stack for that.
func TestDeepChains(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	const depth = 40_000
	x := core.NewRadix(core.Options{})
	var above []uint64
	for i := range uint64(depth) {
		for k := range uint64(3) { // others first, so that the chain goes on in a child
			hash := []uint64{3*i + k + 1}
			ev := &event.Event{Kind: stored, HasParent: i > 0, Parent: 3 * i, Engine: hash, Local: []uint64{k}}
			x.Store(1, ev, false)
			if k == 2 {
				x.Store(0, ev, false)
				above = append(above, hash...)
			}
		}
	}
	x.Remove(0, &event.Event{Kind: removed, Engine: above[:depth-1]}, false)
	x.Store(0, &event.Event{Kind: stored, Engine: []uint64{1 << 40}, Local: []uint64{1 << 40}}, false) // its runs are listed anew
	defer debug.SetMaxStack(debug.SetMaxStack(1 << 17))                                                // more is the end of the process
	blocks := 0
	x.Dump(0, func(ev *event.Event, _ []uint32) bool { blocks += len(ev.Engine); return true })
	if blocks != depth+1 {
		t.Errorf("%d blocks dumped", blocks)
	}
}

// TestWhoKnowsAmongManyRanks: to find whoever knows a hash costs what they are, not what
// all ranks are: also where none of them is wanted.
func TestWhoKnowsAmongManyRanks(t *testing.T) {
	measure := func(ranks uint64) (most int) {
		x := core.NewRadix(core.Options{})
		for h := range ranks {
			c := chain(1+100*h, 10)
			x.Store(core.Holder(h), &event.Event{Kind: stored, Engine: c, Local: c}, false)
		}
		last := core.Holder(ranks - 1)
		hash := 100*uint64(last) + 3
		x.Store(last-1, &event.Event{Kind: stored, HasParent: true, Parent: 100*uint64(last-1) + 5, Engine: []uint64{hash}, Local: []uint64{1}}, false) // the same, of other content
		x.Remove(last, &event.Event{Kind: removed, Engine: chain(1+100*uint64(last), 9)}, false)                                                        // known for what is below
		for _, want := range []core.Holder{last - 1, last, 1 << 30} {
			before := x.Steps()
			h, ok := x.WhoKnows(hash, func(h core.Holder) bool { return h >= want })
			most = max(most, x.Steps()-before)
			if ok != (want <= last) || ok && h != want {
				t.Errorf("of %d ranks it is %d, %v; want %d", ranks, h, ok, want)
			}
		}
		return most
	}
	if few, many := measure(20), measure(10_000); many > 2*few+10 {
		t.Errorf("%d steps among 10,000 ranks, %d among 20", many, few)
	} else {
		t.Logf("%d and %d steps", few, many)
	}
}

// No write looks at a whole list of runs, however many chains a holder has that come and go; and the lists stay in
// proportion to what is held.
func TestNoWriteSweepsAWholeList(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const chains, rounds = 20_000, 60_000
	f := newFiller(33)
	hashes := [2][]uint64{f.hashes(chains), f.hashes(chains)}
	for i := range chains {
		for h := range hashes {
			f.store(h, hashes[h][i:i+1], hashes[h][i:i+1])
		}
	}
	most := 0
	for i := range rounds {
		for h := range hashes {
			at := hashes[h][i%chains : i%chains+1]
			before := f.Steps()
			f.remove(h, at)
			if i%3 > 0 {
				at[0] = f.hashes(1)[0]
			}
			f.store(h, at, at)
			most = max(most, f.Steps()-before)
		}
	}
	if most < 50 || most > 1000 {
		t.Errorf("%d steps for two writes", most)
	}
	if m := f.Memory(); m.Holders > 2*chains*(2*4*3/2+8) { // and their filters
		t.Errorf("%d bytes for two holders of %d runs", m.Holders, chains)
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}
