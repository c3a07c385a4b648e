package core_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// TestABatchIsOneChangeForReaders: a store, and a batch of consecutive
// removals, show as one change of coverage: a reader beside the writer sees all
// of it or nothing.
func TestABatchIsOneChangeForReaders(t *testing.T) {
	const blocks, kept, rounds = 700, 10, 300
	for _, holders := range []int{1, 5, 200} { // inline, list, wide
		f := newFiller(30)
		hashes, local := f.hashes(blocks), f.hashes(blocks)
		for h := range holders {
			f.store(h, hashes, local)
		}
		evicted := slices.Clone(hashes[kept:])
		slices.Reverse(evicted)
		var stop atomic.Bool
		var reader sync.WaitGroup
		var seen [blocks + 1]int
		reader.Go(func() {
			var m core.Matches
			for !stop.Load() {
				f.Find(local, &m)
				m.Each(event.Device, func(h core.Holder, depth uint32) {
					if h == 0 {
						seen[depth]++
					}
				})
			}
		})
		for range rounds {
			f.Remove(0, &event.Event{Kind: event.Removed, Engine: evicted}, true)
			f.storeAfter(0, hashes[kept-1], hashes[kept:], local[kept:])
		}
		stop.Store(true)
		reader.Wait()
		for depth, n := range seen {
			if n > 0 && depth != kept && depth != blocks {
				t.Errorf("%d holders: %d lookups found %d blocks, between %d and %d", holders, n, depth, kept, blocks)
			}
		}
	}
}

// TestEarlyExitStopsAtOneHolder: the walk ends at the run in which the second
// last holder is left behind.
func TestEarlyExitStopsAtOneHolder(t *testing.T) {
	f := newFiller(31)
	hashes, local := f.hashes(64), f.hashes(64)
	for h := range 3 {
		f.store(h, hashes, local)
	}
	// Forks, so that the path has a run for each further piece.
	for i := range 20 {
		parent := hashes[len(hashes)-1]
		f.storeAfter(0, parent, f.hashes(100), f.hashes(100))
		more, moreLocal := f.hashes(40), f.hashes(40)
		f.storeAfter(0, parent, more, moreLocal)
		if i == 0 {
			f.storeAfter(1, parent, more, moreLocal)
		}
		hashes, local = append(hashes, more...), append(local, moreLocal...)
	}
	var whole, early core.Matches
	f.Find(local, &whole)
	early.EarlyExit = true
	f.Find(local, &early)
	all, some := whole.Steps(), early.Steps()
	if some >= all || some > 4 || all < 10 {
		t.Errorf("%d runs walked with early exit, %d without", some, all)
	}
	if n, _ := early.Sum(event.Device); n != 3 {
		t.Errorf("%d holders", n)
	}
	early.Each(event.Device, func(h core.Holder, depth uint32) {
		if want := map[core.Holder]uint32{1: 104, 2: 64}[h]; want > 0 && depth != want || h == 0 && depth < 104 {
			t.Errorf("holder %d: %d blocks", h, depth)
		}
	})
}

// TestALongStoreAllocatesLittle: the list of a run's segments is made once for all that an
// event brings.
func TestALongStoreAllocatesLittle(t *testing.T) {
	const blocks = 512
	f := newFiller(32)
	f.store(0, f.hashes(blocks), f.hashes(blocks))
	hashes, local := f.hashes(101*blocks), f.hashes(101*blocks)
	if n := testing.AllocsPerRun(100, func() {
		f.store(0, hashes[:blocks], local[:blocks])
		hashes, local = hashes[blocks:], local[blocks:]
	}); n > 8 { // its content and the run
		t.Errorf("a store of %d blocks allocates %v times", blocks, n)
	}
}
