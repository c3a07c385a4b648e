package core_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// heldBy returns the hashes that a holder has copies of.
func heldBy(x core.Index, h core.Holder) map[uint64]bool {
	held := make(map[uint64]bool)
	x.Dump(h, func(ev *event.Event, copies []uint32) bool {
		for i, e := range ev.Engine {
			if copies[i] > 0 {
				held[e] = true
			}
		}
		return true
	})
	return held
}

// walks lets walks over holders go on while the operations are applied, and requires of each that it
// gives what the oracle's holder has all the time, and nothing that it never has.
func walks(ops []coretest.Op, seed uint64) (given int, err error) {
	rng := rand.New(rand.NewPCG(seed, 13))
	x, o := core.NewRadix(core.Options{}), core.NewOracle()
	type under struct {
		*core.Walk
		all, some, got map[uint64]bool
	}
	now := make(map[core.Holder]*under)
	for i := range ops {
		op := &ops[i]
		op.Apply(x)
		out := op.Apply(o)
		for h, w := range now {
			held := heldBy(o, h)
			for e := range held {
				w.some[e] = true
			}
			for e := range w.all {
				if !held[e] || h == op.Holder && out.Replaced > 0 && slices.Contains(op.Event.Engine, e) {
					delete(w.all, e)
				}
			}
		}
		if h := op.Holder; now[h] == nil && rng.IntN(4) == 0 {
			held := heldBy(o, h)
			now[h] = &under{x.BeginWalk(h), held, heldBy(o, h), make(map[uint64]bool)}
			if x.BeginWalk(h) != nil {
				return 0, fmt.Errorf("operation %d: a second walk of holder %d", i, h)
			}
		}
		for h, w := range now {
			if rng.IntN(3) > 0 {
				continue
			}
			n, amount := 0, 1+rng.IntN(6)
			done := w.Next(amount, func(e uint64) { n++; w.got[e] = true })
			given += n
			if n > amount+100 {
				return 0, fmt.Errorf("operation %d: %d given for %d", i, n, amount)
			}
			for e := range w.got {
				if !w.some[e] {
					return 0, fmt.Errorf("operation %d: holder %d never had %x", i, h, e)
				}
			}
			if !done {
				if rng.IntN(100) == 0 {
					w.End()
					delete(now, h)
				}
				continue
			}
			for e := range w.all {
				if !w.got[e] {
					return 0, fmt.Errorf("operation %d: holder %d has %x all the time, and the walk has not given it", i, h, e)
				}
			}
			delete(now, h)
		}
	}
	for _, w := range now {
		w.End()
	}
	return given, x.Check()
}

func TestWalksGiveWhatIsHeldAllTheTime(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			given := 0
			for _, seed := range coretest.Seeds(max(1, g.Seeds/15)) {
				ops := g.History(seed)
				n, err := walks(ops[:min(len(ops), 150)], seed)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				given += n
			}
			if given == 0 {
				t.Error("nothing was given")
			}
		})
	}
}

// TestWalksBesideMovingRuns: a holder whose list of runs is swept again and again, with runs that are split and joined, while
// walks go on slowly.
func TestWalksBesideMovingRuns(t *testing.T) {
	racetest.Without(t, "one goroutine does all, in turns")
	for _, seed := range coretest.Seeds(3) {
		rng := rand.New(rand.NewPCG(seed, 14))
		x := core.NewRadix(core.Options{})
		held := make(map[uint64]bool)
		name := func(chain, tail, i int) (local, engine uint64) { // tails leave the chain at their number
			if i < tail {
				tail = 0
			}
			local = uint64(chain*1000 + tail*50 + i + 1)
			return local, local << 8
		}
		some := func(kind event.Kind) {
			chain, tail := rng.IntN(40), rng.IntN(4)
			n := 1 + rng.IntN(8)
			ev := event.Event{Kind: kind}
			for i := range n {
				l, e := name(chain, tail, i)
				if kind == event.Removed {
					if rng.IntN(2) == 0 { // from the end, mostly
						continue
					}
					delete(held, e)
					ev.Engine = append([]uint64{e}, ev.Engine...)
					continue
				}
				held[e] = true
				ev.Local, ev.Engine = append(ev.Local, l), append(ev.Engine, e)
			}
			if kind == event.Removed {
				x.Remove(1, &ev, false)
			} else {
				x.Store(1, &ev, false)
			}
		}
		for range 100 {
			some(event.Stored)
		}
		for round := range 30 {
			all, got := maps.Clone(held), make(map[uint64]bool)
			w := x.BeginWalk(1)
			for step := 0; !w.Next(1+rng.IntN(8), func(e uint64) { got[e] = true }); step++ {
				for range 1 + rng.IntN(6) {
					some(event.Kind(1 + rng.IntN(2)))
					for e := range all {
						if !held[e] {
							delete(all, e)
						}
					}
				}
				if step > 10_000 {
					t.Fatal("it does not end")
				}
			}
			for e := range all {
				if !got[e] {
					t.Fatalf("seed %d, round %d: %x is held all the time, and the walk has not given it", seed, round, e)
				}
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// A holder of thousands of runs, which come and go so that its list of them is swept again and again, in several
// pages: what a walk gives is what it has all the time, and what it has at the end is what is dumped.
func TestWalkOverAListThatIsSwept(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	rng := rand.New(rand.NewPCG(3, 19))
	x := core.NewRadix(core.Options{})
	held := make(map[uint64]bool)
	var names []uint64
	store := func() {
		e := rng.Uint64()
		x.Store(1, &event.Event{Kind: event.Stored, Engine: []uint64{e}, Local: []uint64{e}}, true)
		names, held[e] = append(names, e), true
	}
	remove := func() {
		i := rng.IntN(len(names))
		x.Remove(1, &event.Event{Kind: event.Removed, Engine: []uint64{names[i]}}, true)
		delete(held, names[i])
		names[i] = names[len(names)-1]
		names = names[:len(names)-1]
	}
	for range 5 {
		for len(names) < 6000 {
			store()
		}
		for len(names) > 1500+rng.IntN(3000) {
			remove()
		}
		w, all, got := x.BeginWalk(1), maps.Clone(held), make(map[uint64]bool)
		for done := false; !done; {
			done = w.Next(50, func(e uint64) { got[e] = true })
			for range 20 {
				store()
				remove()
			}
			for e := range all {
				if !held[e] {
					delete(all, e)
				}
			}
		}
		for e := range all {
			if !got[e] {
				t.Fatalf("the walk gave %d hashes, and not %x, one of %d that were held all the time", len(got), e, len(all))
			}
		}
		if now := heldBy(x, 1); !maps.Equal(now, held) {
			t.Fatalf("%d hashes are dumped, %d are held", len(now), len(held))
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	}
	x.Clear(1, event.Device, true)
	if m := x.Memory(); m.Holders != 0 {
		t.Errorf("with nothing held %d bytes are told for holders", m.Holders)
	}
}

// A run that a walk has passed takes another in, which the walk has not come to, while the holder's list is swept in steps: it
// is in the list again for that, and no repetition.
func TestWalkBesideASweepGivesWhatIsJoined(t *testing.T) {
	x := core.NewRadix(core.Options{})
	store := func(names ...uint64) {
		x.Store(1, &event.Event{Kind: event.Stored, Engine: names, Local: names}, false)
	}
	remove := func(name uint64) {
		x.Remove(1, &event.Event{Kind: event.Removed, Engine: []uint64{name}}, false)
	}
	chain := func(from uint64, n int) (names []uint64) {
		for i := range uint64(n) {
			names = append(names, from+i)
		}
		return names
	}
	const others, stay = 3000, 1000 // chains of one block
	upper, lower := chain(1_000_001, 24), chain(2_000_001, 1)
	store(upper...)
	for i := range uint64(others) {
		store(1 + i)
	}
	store(append(upper[:16:16], lower...)...) // a run of its own, at the end of the list
	for i := range uint64(others - stay) {
		remove(1 + i)
	}
	w, got := x.BeginWalk(1), make(map[uint64]bool)
	give := func(hash uint64) { got[hash] = true }
	store(5000) // the sweep begins
	if w.Next(40, give); !got[upper[15]] || got[lower[0]] {
		t.Fatalf("the walk is not between the two runs: it gave %v", got)
	}
	before := x.Runs()
	x.Remove(1, &event.Event{Kind: event.Removed, Engine: upper[16:]}, false)
	if runs := x.Runs(); runs != before-1 {
		t.Fatalf("%d runs, then %d: nothing was joined", before, runs)
	}
	for i := range uint64(200) { // it ends
		store(6000 + i)
	}
	for !w.Next(1000, give) {
	}
	for name := range heldBy(x, 1) {
		if (name < 5000 || name > 1_000_000) && !got[name] {
			t.Fatalf("%d is held all the time, and the walk has not given it", name)
		}
	}
}
