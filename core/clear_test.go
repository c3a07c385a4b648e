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

// renumbering is an index whose holders have another number after each clear of all tiers: what is under the one
// before is taken apart in small steps between the operations, of which as many are left to the end as may be.
type renumbering struct {
	*core.Radix
	*temper
	r       *rand.Rand
	number  map[core.Holder]core.Holder
	leaving []core.Holder
	free    []core.Holder
	check   bool // what the writer's structures promise, after each step
}

func newRenumbering() core.Index { return tempers[0].newRenumbering() }

func (v *temper) newRenumbering() core.Index {
	return &renumbering{Radix: v.newRadix(), temper: v, r: rand.New(rand.NewPCG(1, 23)), number: make(map[core.Holder]core.Holder), check: true}
}

// of returns the number of a holder: the lowest free one at first.
func (x *renumbering) of(h core.Holder) core.Holder {
	n, ok := x.number[h]
	if ok {
		return n
	}
	if k := len(x.free); k > 0 {
		n, x.free = x.free[k-1], x.free[:k-1]
	} else {
		n = core.Holder(len(x.number) + len(x.leaving))
	}
	x.number[h] = n
	return n
}

// holder returns whose number it is: nobody's, of one that is leaving.
func (x *renumbering) holder(n core.Holder) (core.Holder, bool) {
	for h, is := range x.number {
		if is == n {
			return h, true
		}
	}
	return 0, false
}

// step takes something apart.
func (x *renumbering) step() {
	x.before(x.Radix, x.r)
	if len(x.leaving) == 0 || x.r.IntN(3) > 0 {
		return
	}
	i := x.r.IntN(len(x.leaving))
	if !x.ClearSome(x.leaving[i], 1+x.r.IntN(80)) {
		x.free = append(x.free, x.leaving[i])
		x.leaving = slices.Delete(x.leaving, i, i+1)
	}
	if err := x.Check(); x.check && err != nil {
		panic(err)
	}
}

func (x *renumbering) Store(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.step()
	return x.Radix.Store(x.of(h), ev, count)
}

func (x *renumbering) StoreCopies(h core.Holder, tier event.Tier, e uint64, n uint32) core.Outcome {
	x.step()
	return x.Radix.StoreCopies(x.of(h), tier, e, n)
}

func (x *renumbering) Remove(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.step()
	return x.Radix.Remove(x.of(h), ev, count)
}

func (x *renumbering) Clear(h core.Holder, tier event.Tier, all bool) core.Outcome {
	x.step()
	n := x.of(h)
	if !all || tier >= event.NumTiers || x.Radix.Empty(n) {
		return x.Radix.Clear(n, tier, all)
	}
	var out core.Outcome
	for t := range event.Tier(event.NumTiers) {
		out.Removed += x.Radix.Held(n, t)
	}
	delete(x.number, h)
	x.leaving = append(x.leaving, n)
	x.of(h)
	x.ClearSome(n, 0)
	return out
}

func (x *renumbering) Forget(h core.Holder, engine []uint64) int {
	return x.Radix.Forget(x.of(h), engine)
}
func (x *renumbering) Knows(h core.Holder, e uint64) bool      { return x.Radix.Knows(x.of(h), e) }
func (x *renumbering) KnowsAny(h core.Holder, e []uint64) bool { return x.Radix.KnowsAny(x.of(h), e) }
func (x *renumbering) KnowsChain(h core.Holder, e uint64) bool { return x.Radix.KnowsChain(x.of(h), e) }
func (x *renumbering) Inferred(h core.Holder) int              { return x.Radix.Inferred(x.of(h)) }
func (x *renumbering) Empty(h core.Holder) bool                { return x.Radix.Empty(x.of(h)) }
func (x *renumbering) Held(h core.Holder, t event.Tier) int    { return x.Radix.Held(x.of(h), t) }

func (x *renumbering) WhoKnows(hash uint64, f func(core.Holder) bool) (core.Holder, bool) {
	var all []core.Holder
	x.Radix.WhoKnows(hash, func(n core.Holder) bool {
		h, ok := x.holder(n)
		if !ok {
			panic(fmt.Sprintf("%d, which is leaving, knows %x", n, hash))
		}
		all = append(all, h)
		return false
	})
	slices.Sort(all)
	i := slices.IndexFunc(all, f)
	if i < 0 {
		return 0, false
	}
	return all[i], true
}

func (x *renumbering) Infer(h, from core.Holder, hash uint64) int {
	return x.Radix.Infer(x.of(h), x.of(from), hash)
}

func (x *renumbering) StoreFrom(h, from core.Holder, hash uint64, t event.Tier) core.Outcome {
	return x.Radix.StoreFrom(x.of(h), x.of(from), hash, t)
}

func (x *renumbering) Find(local []uint64, m *core.Matches) {
	x.Radix.Find(local, m)
	m.Rename(x.holder)
}

func (x *renumbering) Digest(space uint64, identity func(core.Holder) (uint64, uint32)) uint64 {
	return x.Radix.Digest(space, func(n core.Holder) (uint64, uint32) {
		h, ok := x.holder(n)
		if !ok {
			panic(fmt.Sprintf("%d, which is leaving, is in the digest", n))
		}
		return identity(h)
	})
}

func (x *renumbering) Dump(h core.Holder, f func(ev *event.Event, copies []uint32) bool) {
	for _, n := range x.leaving {
		x.Radix.Dump(n, func(*event.Event, []uint32) bool { panic(fmt.Sprintf("%d, which is leaving, is dumped", n)) })
	}
	x.Radix.Dump(x.of(h), f)
}

// clearing has some of a history's operations clear their holders.
func clearing(ops []coretest.Op, seed uint64) []coretest.Op {
	r := rand.New(rand.NewPCG(seed, 24))
	all := make([]coretest.Op, 0, len(ops))
	for i := range ops {
		if all = append(all, ops[i]); r.IntN(16) == 0 {
			all = append(all, coretest.Op{Holder: ops[i].Holder, Event: event.Event{Kind: event.Cleared, AllTiers: true}})
		}
	}
	return all
}

// TestClearedInStepsEqualsOracle: holders are cleared again and again, and store anew, while what they had is taken
// apart: nobody sees anything of it, and nothing of it is left at the end.
func TestClearedInStepsEqualsOracle(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(max(2, g.Seeds/8)) {
				ops := clearing(g.History(seed), seed)
				ops = ops[:min(len(ops), 300)]
				if at, err := coretest.Check(newRenumbering, ops, max(1, g.Interval/4)); err != nil {
					t.Fatalf("seed %d, operation %d: %v", seed, at, err)
				}
				v := &tempers[seed%uint64(len(tempers))]
				if at, err := coretest.Check(v.newRenumbering, ops[:min(len(ops), 200)], len(ops)); err != nil {
					t.Fatalf("%s, seed %d, operation %d: %v", v.name, seed, at, err)
				}
				x := v.newRenumbering().(*renumbering)
				x.check = false
				for i := range ops {
					ops[i].Apply(x)
				}
				for _, h := range slices.Sorted(maps.Keys(x.number)) {
					x.Clear(h, 0, true)
				}
				for len(x.leaving) > 0 {
					x.step()
				}
				if m := x.Memory(); x.Runs() != 0 || x.Segments() != 0 || m.Holders+m.Coverage+m.Exceptions+m.Descendants+m.Runs+m.Content > 0 {
					t.Fatalf("seed %d: nobody has anything: %d runs, %d segments, %+v", seed, x.Runs(), x.Segments(), m)
				}
				if err := x.Check(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

func FuzzClearedInSteps(f *testing.F) { coretest.Fuzz(f, newRenumbering) }

// TestNoStepClearsMore: whatever a holder has, one-block chains, a long one, thousands of hashes for one block, all by
// hashes of its own or others', a step takes no more of it apart than it is told to.
func TestNoStepClearsMore(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const many, amount = 5000, 640
	f := newFiller(34)
	one := f.hashes(many)
	long, again, alone := f.hashes(many), f.hashes(many), f.hashes(many)
	for i := range one {
		f.store(1, one[i:i+1], one[i:i+1])
		f.store(1, f.hashes(1), long[:1])
	}
	f.store(1, long, long)
	f.store(1, alone, alone) // ordinary
	f.store(2, again, again)
	f.store(1, f.hashes(many), again) // an exception of as many hashes
	blocks, runs, steps := f.Blocks(), f.Runs(), 0
	for left := true; left; steps++ {
		left = f.ClearSome(1, amount)
		if n := blocks - f.Blocks(); n > amount+64 {
			t.Fatalf("step %d took %d blocks", steps, n)
		}
		if n := runs - f.Runs(); n > amount/32+1 {
			t.Fatalf("step %d took %d runs", steps, n)
		}
		blocks, runs = f.Blocks(), f.Runs()
	}
	if steps < (many*32+3*many)/amount*3/4 {
		t.Errorf("%d steps", steps)
	}
	if blocks != many || runs != 1 {
		t.Errorf("%d blocks in %d runs are left of the other holder's %d", blocks, runs, many)
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}

// TestWhatIsOwedIsWhatCanBeCleared: who clears as much as comes to be held, while holders come and go, never has more
// to clear than one of them.
func TestWhatIsOwedIsWhatCanBeCleared(t *testing.T) {
	const rounds, many = 20, 500
	f := newFiller(35)
	var leaving []core.Holder
	for h := range core.Holder(rounds) {
		for range many {
			f.store(int(h), f.hashes(1), f.hashes(1))
			for amount := f.Owed(); amount > 0 && len(leaving) > 0; amount = 0 {
				if !f.ClearSome(leaving[0], amount) {
					leaving = leaving[1:]
				}
			}
		}
		if leaving = append(leaving, h); len(leaving) > 2 {
			t.Fatalf("%d holders are left to be cleared after %d", len(leaving), h)
		}
		f.ClearSome(h, 0)
		if runs := f.Runs(); runs > many*5/4 {
			t.Fatalf("%d runs of holders that have %d each", runs, many)
		}
	}
}

// TestClearedWhileItsListIsSwept: of a holder whose long list of runs is swept in steps most is taken apart before the
// sweep goes on.
func TestClearedWhileItsListIsSwept(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const many = 12_000
	f := newFiller(36)
	hashes := f.hashes(many)
	for i := range hashes {
		f.store(1, hashes[i:i+1], hashes[i:i+1])
	}
	for i := range many {
		if i%4 > 0 {
			f.remove(1, hashes[i:i+1])
		}
	}
	for range 15 {
		f.store(1, f.hashes(1), f.hashes(1)) // the sweep has begun
	}
	for f.ClearSome(1, many) && f.Runs() > 100 {
	}
	for range 100 {
		f.store(2, f.hashes(1), f.hashes(1)) // and would go on
	}
	for f.ClearSome(1, many) {
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
	f.Clear(2, 0, true)
	if m := f.Memory(); m.Holders != 0 || f.Runs() != 0 {
		t.Errorf("%d runs, %+v", f.Runs(), m)
	}
}
