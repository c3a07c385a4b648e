package coretest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// broken is an oracle with one fault.
type broken struct {
	*core.Oracle
	store  func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome
	remove func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome
	clear  func(o *core.Oracle, h core.Holder, tier event.Tier, all bool) core.Outcome
	knows  func(o *core.Oracle, h core.Holder, e uint64) bool
	find   func(o *core.Oracle, local []uint64, m *core.Matches)
	dump   func(o *core.Oracle, h core.Holder, f func(*event.Event, []uint32) bool)
}

func (b *broken) Store(h core.Holder, ev *event.Event, count bool) core.Outcome {
	if b.store != nil {
		return b.store(b.Oracle, h, *ev, count)
	}
	return b.Oracle.Store(h, ev, count)
}

func (b *broken) Remove(h core.Holder, ev *event.Event, count bool) core.Outcome {
	if b.remove != nil {
		return b.remove(b.Oracle, h, *ev, count)
	}
	return b.Oracle.Remove(h, ev, count)
}

func (b *broken) Clear(h core.Holder, tier event.Tier, all bool) core.Outcome {
	if b.clear != nil {
		return b.clear(b.Oracle, h, tier, all)
	}
	return b.Oracle.Clear(h, tier, all)
}

func (b *broken) Knows(h core.Holder, e uint64) bool {
	if b.knows != nil {
		return b.knows(b.Oracle, h, e)
	}
	return b.Oracle.Knows(h, e)
}

func (b *broken) Find(local []uint64, m *core.Matches) {
	if b.find != nil {
		b.find(b.Oracle, local, m)
		return
	}
	b.Oracle.Find(local, m)
}

func (b *broken) Dump(h core.Holder, f func(*event.Event, []uint32) bool) {
	if b.dump != nil {
		b.dump(b.Oracle, h, f)
		return
	}
	b.Oracle.Dump(h, f)
}

var faults = map[string]broken{
	"unknown parent becomes root": {store: func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome {
		ev.HasParent = ev.HasParent && o.Knows(h, ev.Parent)
		return o.Store(h, &ev, count)
	}},
	"copies never counted": {store: func(o *core.Oracle, h core.Holder, ev event.Event, _ bool) core.Outcome {
		return o.Store(h, &ev, false)
	}},
	"content replaced without letting go of the old": {store: func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome {
		for _, e := range ev.Engine {
			if len(ev.Local) > 0 && o.Chain(h, e) != nil {
				ev.Local = nil
				break
			}
		}
		return o.Store(h, &ev, count)
	}},
	"removal from another tier": {remove: func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome {
		if ev.Tier == event.External {
			ev.Tier = event.Disk
		}
		return o.Remove(h, &ev, count)
	}},
	"last removal of a long event lost": {remove: func(o *core.Oracle, h core.Holder, ev event.Event, count bool) core.Outcome {
		if len(ev.Engine) > 5 {
			ev.Engine = ev.Engine[:len(ev.Engine)-1]
		}
		return o.Remove(h, &ev, count)
	}},
	"clear of all tiers clears one": {clear: func(o *core.Oracle, h core.Holder, tier event.Tier, _ bool) core.Outcome {
		return o.Clear(h, tier, false)
	}},
	"links unknown": {knows: func(o *core.Oracle, h core.Holder, e uint64) bool {
		for _, n := range o.KnownHashes(h) {
			if n.Engine == e {
				return n.Copies != [event.NumTiers]uint32{}
			}
		}
		return false
	}},
	"matches end at block 40": {find: func(o *core.Oracle, local []uint64, m *core.Matches) {
		o.Find(local[:min(40, len(local))], m)
	}},
	"dump without its end": {dump: func(o *core.Oracle, h core.Holder, f func(*event.Event, []uint32) bool) {
		if names := o.KnownHashes(h); len(names) > 0 {
			last := names[len(names)-1].Engine
			o.Dump(h, func(ev *event.Event, copies []uint32) bool {
				return ev.Engine[len(ev.Engine)-1] == last || f(ev, copies)
			})
		}
	}},
	"panics": {find: func(o *core.Oracle, local []uint64, m *core.Matches) {
		if len(o.Holders()) > 2 {
			panic("too many holders")
		}
		o.Find(local, m)
	}},
}

// TestFindsFaults checks the judge: every fault must be found by some
// generator within its default seeds, and shrink to a short history.
func TestFindsFaults(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			newIndex := func() core.Index {
				b := fault
				b.Oracle = core.NewOracle()
				return &b
			}
			for _, g := range coretest.Generators() {
				for seed := range uint64(min(g.Seeds, 40)) {
					ops := g.History(seed)
					at, err := coretest.Check(newIndex, ops, g.Interval)
					if err == nil {
						continue
					}
					short, err := coretest.Minimise(newIndex, ops[:at+1], err, 2*time.Second)
					if err == nil || len(short) > 8 {
						t.Fatalf("%s, seed %d: minimised to %d operations, %v", g.Name, seed, len(short), err)
					}
					t.Logf("%s, seed %d: %s\n%v", g.Name, seed, coretest.Print(short), strings.SplitN(err.Error(), "\n", 4))
					return
				}
			}
			t.Fatal("no generator finds it")
		})
	}
}

// TestGeneratorsCover checks that the histories reach every kind of outcome
// and every tier, and have matches deeper than one run of blocks.
func TestGeneratorsCover(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for _, g := range coretest.Generators() {
		t.Run(g.Name, func(t *testing.T) {
			var sum core.Outcome
			o := core.NewOracle()
			held, links, deepest := 0, 0, 0
			for seed := range uint64(4) {
				for i, op := range g.History(seed) {
					sum.Add(op.Apply(o))
					if i%200 != 0 {
						continue
					}
					for _, n := range o.KnownHashes(op.Holder) {
						held++
						if n.Copies == [event.NumTiers]uint32{} {
							links++
						}
						deepest = max(deepest, n.Depth)
					}
				}
				if g.Name == "tiny" || g.Name == "small" {
					continue
				}
				o = core.NewOracle()
			}
			t.Logf("%+v; %d names, %d links, depth %d", sum, held, links, deepest)
			if sum.Stored == 0 || sum.Removed == 0 || sum.Unknown == 0 || sum.Duplicate == 0 || held == 0 {
				t.Errorf("poor history: %+v, %d held", sum, held)
			}
			if g.Name == "fleet" && (sum.UnknownParent == 0 || sum.Decremented == 0 || links == 0) {
				t.Errorf("poor history: %+v, %d links", sum, links)
			}
			if g.Name == "chaos" && (sum.UnknownBlock == 0 || sum.Replaced == 0 || links == 0) {
				t.Errorf("poor history: %+v, %d links", sum, links)
			}
			if g.Name == "deep" && deepest < 1000 {
				t.Errorf("deepest block is %d", deepest)
			}
		})
	}
}

// TestStepsAreTheOperation checks that an operation and its steps end alike,
// which the concurrent checker relies on.
func TestStepsAreTheOperation(t *testing.T) {
	for _, g := range coretest.Generators()[:3] {
		for seed := range uint64(20) {
			whole, stepped := core.NewOracle(), core.NewOracle()
			for i, op := range g.History(seed) {
				want := op.Apply(whole)
				var have core.Outcome
				for _, s := range coretest.AppliedSteps(stepped, &op) {
					have.Add(s.Apply(stepped))
				}
				if have.Stored != want.Stored || have.Removed != want.Removed || have.Replaced != want.Replaced {
					t.Fatalf("%s, seed %d, operation %d: %v: steps %+v, whole %+v", g.Name, seed, i, op, have, want)
				}
			}
		}
	}
}
