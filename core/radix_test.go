package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

func newRadix() core.Index { return core.NewRadix(core.Options{}) }

func TestRadixEqualsOracle(t *testing.T) { coretest.Run(t, newRadix) }

func TestRadixReadersBesideWriter(t *testing.T) { coretest.RunConcurrent(t, newRadix) }

func TestRadixScripts(t *testing.T) { coretest.RunScripts(t, "testdata/scripts/*.txt", newRadix) }

func FuzzRadix(f *testing.F) { coretest.Fuzz(f, newRadix) }

// TestRadixInvariants checks the writer's structures after every operation.
func TestRadixInvariants(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(1) {
				x := core.NewRadix(core.Options{})
				for i, op := range g.History(seed) {
					op.Apply(x)
					if i > 300 && i%97 != 0 {
						continue
					}
					if err := x.Check(); err != nil {
						t.Fatalf("seed %d, operation %d, %.300s: %v", seed, i, op.String(), err)
					}
				}
			}
		})
	}
}

// chain returns hashes from … from+n-1.
func chain(from uint64, n int) []uint64 {
	c := make([]uint64, n)
	for i := range c {
		c[i] = from + uint64(i)
	}
	return c
}

func TestRunsMergeWhenSiblingsGo(t *testing.T) {
	x := core.NewRadix(core.Options{})
	system, a, b := chain(100, 10), chain(200, 10), chain(300, 12)
	store := func(h core.Holder, blocks ...[]uint64) {
		var ev event.Event
		ev.Kind = event.Stored
		for _, c := range blocks {
			ev.Engine = append(ev.Engine, c...)
			ev.Local = append(ev.Local, c...)
		}
		x.Store(h, &ev, false)
	}
	store(0, system, a)
	store(1, system, a)
	store(2, system, a)
	store(3, system, a)
	store(4, system, a)
	store(0, system, b) // five holders reach a, so it stays where it is
	if got := x.Runs(); got != 2 {
		t.Fatalf("%d runs, want 2", got)
	}
	for h := range core.Holder(5) {
		x.Remove(h, &event.Event{Kind: event.Removed, Engine: a}, false)
	}
	if got := x.Runs(); got != 1 {
		t.Errorf("%d runs after the sibling is gone, want 1", got)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	var m core.Matches
	x.Find(append(append([]uint64(nil), system...), b...), &m)
	if holders, blocks := m.Sum(event.Device); holders != 5 || blocks != 22+4*10 {
		t.Errorf("%d holders, %d blocks", holders, blocks)
	}
}

// TestStoringInferredBlocksKeepsNewHashes: an event stores new blocks beside inferred ones, all by hashes of
// the holder's own.
func TestStoringInferredBlocksKeepsNewHashes(t *testing.T) {
	c := coretest.NewChecker(core.NewRadix(core.Options{}), 1)
	local := chain(1, 5)
	for _, op := range []coretest.Op{
		{Holder: 0, Event: event.Event{Kind: stored, Engine: chain(100, 5), Local: local}},
		{Holder: 1, Event: event.Event{Kind: stored, Engine: chain(200, 4), Local: local[:4]}},
		{Holder: 2, Event: event.Event{HasParent: true, Parent: 203, Engine: []uint64{1}}}, // Infer
		{Holder: 2, Event: event.Event{Kind: removed, Engine: []uint64{202}}},
		{Holder: 2, Event: event.Event{Kind: stored, Engine: chain(200, 5), Local: local}},
	} {
		if err := c.Apply(&op); err != nil {
			t.Fatal(err)
		}
		if err := c.State(4); err != nil {
			t.Fatalf("after %v: %v", op, err)
		}
	}
}
