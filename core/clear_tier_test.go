package core_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// tierwise is an index that clears one tier of a holder in small steps between the operations of others: it is done
// before the holder itself does something, or anything is asked.
type tierwise struct {
	*core.Radix
	*temper
	r    *rand.Rand
	walk *core.Walk // nil: nothing is cleared
	h    core.Holder
	tier event.Tier
}

func (v *temper) newTierwise() core.Index {
	return &tierwise{Radix: v.newRadix(), temper: v, r: rand.New(rand.NewPCG(1, 45))}
}

func (x *tierwise) step() {
	if x.walk.Clear(x.tier, 1+x.r.IntN(3)) {
		x.walk = nil
	}
	if err := x.Check(); err != nil {
		panic(err)
	}
}

func (x *tierwise) settle() {
	for x.walk != nil {
		x.step()
	}
}

// write is called before an operation of holders.
func (x *tierwise) write(of ...core.Holder) {
	x.before(x.Radix, x.r)
	if slices.Contains(of, x.h) {
		x.settle()
	} else if x.walk != nil && x.r.IntN(2) == 0 {
		x.step()
	}
}

func (x *tierwise) Clear(h core.Holder, tier event.Tier, all bool) (out core.Outcome) {
	x.settle()
	x.write(h)
	if all || tier >= event.NumTiers {
		return x.Radix.Clear(h, tier, all)
	}
	out.Removed = x.Radix.Held(h, tier)
	x.walk, x.h, x.tier = x.BeginWalk(h), h, tier
	return out
}

func (x *tierwise) Store(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.write(h)
	return x.Radix.Store(h, ev, count)
}

func (x *tierwise) StoreCopies(h core.Holder, tier event.Tier, hash uint64, n uint32) core.Outcome {
	x.write(h)
	return x.Radix.StoreCopies(h, tier, hash, n)
}

func (x *tierwise) Remove(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.write(h)
	return x.Radix.Remove(h, ev, count)
}

func (x *tierwise) Forget(h core.Holder, engine []uint64) int {
	x.write(h)
	return x.Radix.Forget(h, engine)
}

func (x *tierwise) Infer(h, from core.Holder, hash uint64) int {
	x.write(h, from)
	return x.Radix.Infer(h, from, hash)
}

func (x *tierwise) StoreFrom(h, from core.Holder, hash uint64, t event.Tier) core.Outcome {
	x.write(h, from)
	return x.Radix.StoreFrom(h, from, hash, t)
}

func (x *tierwise) Find(local []uint64, m *core.Matches) {
	x.settle()
	x.Radix.Find(local, m)
}

func (x *tierwise) Digest(space uint64, identity func(core.Holder) (uint64, uint32)) uint64 {
	x.settle()
	return x.Radix.Digest(space, identity)
}

func (x *tierwise) Dump(h core.Holder, f func(ev *event.Event, copies []uint32) bool) {
	x.settle()
	x.Radix.Dump(h, f)
}

func (x *tierwise) WhoKnows(hash uint64, f func(core.Holder) bool) (core.Holder, bool) {
	x.settle()
	return x.Radix.WhoKnows(hash, f)
}

// Of others it may be asked in between.

func (x *tierwise) Knows(h core.Holder, e uint64) bool {
	x.write(h)
	return x.Radix.Knows(h, e)
}

func (x *tierwise) KnowsAny(h core.Holder, e []uint64) bool {
	x.write(h)
	return x.Radix.KnowsAny(h, e)
}

func (x *tierwise) KnowsChain(h core.Holder, e uint64) bool {
	x.write(h)
	return x.Radix.KnowsChain(h, e)
}

func (x *tierwise) Inferred(h core.Holder) int {
	x.write(h)
	return x.Radix.Inferred(h)
}

func (x *tierwise) Empty(h core.Holder) bool {
	x.write(h)
	return x.Radix.Empty(h)
}

func (x *tierwise) Held(h core.Holder, t event.Tier) int {
	x.write(h)
	return x.Radix.Held(h, t)
}

// TestTiersClearedInStepsEqualOracle: one tier of a holder is cleared in steps while others store and remove in the same runs.
func TestTiersClearedInStepsEqualOracle(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(max(2, g.Seeds/8)) {
				r := rand.New(rand.NewPCG(seed, 46))
				var ops []coretest.Op
				for _, op := range g.History(seed) {
					if ops = append(ops, op); r.IntN(6) == 0 {
						ops = append(ops, coretest.Op{Holder: op.Holder, Event: event.Event{Kind: event.Cleared, Tier: op.Event.Tier}})
					}
				}
				v := &tempers[seed%uint64(len(tempers))]
				if at, err := coretest.Check(v.newTierwise, ops[:min(len(ops), 400)], max(4, g.Interval/4)); err != nil {
					t.Fatalf("%s, seed %d, operation %d: %v", v.name, seed, at, err)
				}
			}
		})
	}
}

func FuzzTiersClearedInSteps(f *testing.F) { coretest.Fuzz(f, tempers[0].newTierwise) }
