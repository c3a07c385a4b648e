package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestLookupsAllocateAndChangeNothing asks indexes of every fill for chains
// that exist: with a reused Matches nothing is allocated, and what the index
// says of itself is the same afterwards.
func TestLookupsAllocateAndChangeNothing(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	identity := func(h core.Holder) (uint64, uint32) { return uint64(h), 0 }
	for name, fill := range fills {
		t.Run(name, func(t *testing.T) {
			f := newFiller(16)
			holders := fill(f)
			var asked [][]uint64
			for h := range min(holders, 50) {
				f.Dump(core.Holder(h), func(ev *event.Event, _ []uint32) bool {
					if !ev.HasParent && len(ev.Local) > 0 {
						asked = append(asked, append([]uint64(nil), ev.Local...))
					}
					return len(asked) < 500
				})
			}
			digest, memory := f.Digest(1, identity), f.Memory()
			var m core.Matches
			matched := uint64(0)
			all := func() {
				for _, local := range asked {
					f.Find(local, &m)
					_, n := m.Sum(event.External)
					matched += n
				}
			}
			all() // makes the scratch as large as it must be
			if matched == 0 && name != "evicted ancestors" {
				t.Fatal("nothing matched")
			}
			if n := testing.AllocsPerRun(3, all); n != 0 {
				t.Errorf("%v allocations in %d lookups", n, len(asked))
			}
			if f.Digest(1, identity) != digest || f.Memory() != memory {
				t.Error("lookups changed the index")
			}
		})
	}
}

// TestAKnownChainCostsLittle: a further holder of a chain costs what a filter of its hashes does, and from
// some thousands on nothing for each block.
func TestAKnownChainCostsLittle(t *testing.T) {
	cost := func(blocks int) int64 {
		f := newFiller(1)
		hashes, local := f.hashes(blocks), f.hashes(blocks)
		f.store(0, hashes, local)
		f.store(1, hashes, local)
		f.store(2, hashes[:1], local[:1]) // the holder's own state
		before := f.Memory().Total()
		f.storeAfter(2, hashes[0], hashes[1:], local[1:])
		return f.Memory().Total() - before
	}
	for _, n := range []int{16, 1000, 5000} {
		if got := cost(n); got > int64(64+8*n) {
			t.Errorf("a further holder of %d blocks costs %d bytes", n, got)
		}
	}
	for _, n := range []int{10_000, 100_000} {
		if got := cost(n); got > 0 {
			t.Errorf("a further holder of %d blocks costs %d bytes", n, got)
		}
	}
}

// interrupted lets the writer change the index after each level that a lookup
// has read, which a scheduler seldom does.
func interrupted() (core.Index, func([]uint64, *core.Matches, func())) {
	x := core.NewRadix(core.Options{})
	return x, x.FindInterrupted
}

func TestLevelsOfDifferentMoments(t *testing.T) {
	racetest.Without(t, "one goroutine does all, in turns")
	coretest.RunInterrupted(t, interrupted)
}

func FuzzLevelsOfDifferentMoments(f *testing.F) { coretest.FuzzInterrupted(f, interrupted) }
