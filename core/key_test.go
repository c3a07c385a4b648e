package core_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// TestKeysChangeNothing applies the same histories under several keys: each
// operation does the same, and answers, dumps, pieces of cuts and digests are
// the same.
func TestKeysChangeNothing(t *testing.T) {
	keys := []core.Key{{}, {1, 2}, {0xDEADBEEF << 32, 1 << 63}}
	identity := func(h core.Holder) (uint64, uint32) { return uint64(h), 0 }
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(max(1, g.Seeds/30)) {
				var xs []*core.Radix
				for _, k := range keys {
					xs = append(xs, core.NewRadix(core.Options{Key: k}))
				}
				prompts, o := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 8))), core.NewOracle()
				for i, op := range g.History(seed) {
					want := op.Apply(xs[0])
					for _, x := range xs[1:] {
						if have := op.Apply(x); have != want {
							t.Fatalf("seed %d, operation %d %v: %+v under one key, %+v under another", seed, i, op, want, have)
						}
					}
					if prompts.Note(&op); i%g.Interval > 0 {
						continue
					}
					var m core.Matches
					query := prompts.Next(o)
					xs[0].Find(query, &m)
					answer, _ := coretest.ReadAnswer(&m)
					for _, x := range xs[1:] {
						x.Find(query, &m)
						if have, err := coretest.ReadAnswer(&m); err != nil || !reflect.DeepEqual(have, answer) {
							t.Fatalf("seed %d, operation %d: %v under one key, %v under another", seed, i, answer, have)
						}
					}
				}
				digest, pieces, dumps := xs[0].Digest(1, identity), cutOf(xs[0]), dumpOf(xs[0])
				for _, x := range xs[1:] {
					if x.Digest(1, identity) != digest {
						t.Fatalf("seed %d: digests differ", seed)
					}
					if !reflect.DeepEqual(cutOf(x), pieces) {
						t.Fatalf("seed %d: pieces differ", seed)
					}
					if !reflect.DeepEqual(dumpOf(x), dumps) {
						t.Fatalf("seed %d: dumps differ", seed)
					}
				}
			}
		})
	}
}

// dumped is one event of a dump.
type dumped struct {
	ev     event.Event
	copies []uint32
}

// dumpOf returns the dumps of holders 0 … 511.
func dumpOf(x *core.Radix) (all []dumped) {
	for h := range core.Holder(512) {
		x.Dump(h, func(ev *event.Event, copies []uint32) bool {
			d := dumped{*ev, slices.Clone(copies)}
			d.ev.Engine, d.ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
			all = append(all, d)
			return true
		})
	}
	return all
}
