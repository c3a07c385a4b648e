package core_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// restored returns what the events of a dump restore, of which each says another hash's position.
func restored(d *core.Dump) (known []core.KnownHash, err error) {
	o := core.NewOracle()
	r := core.Restorer{Index: o}
	placed := make(map[uint64]bool)
	d.Events(func(ev *event.Event, copies []uint32) bool {
		for i, e := range ev.Engine[:len(ev.Local)] {
			if i > 0 && ev.Engine[i-1] == e {
				continue // the one before is passed over
			}
			if placed[e] {
				err = fmt.Errorf("the position of %x is given twice", e)
			}
			placed[e] = true
		}
		r.Add(ev, copies)
		return true
	})
	r.Finish()
	return o.KnownHashes(0), err
}

// dumps lets dumps of holders go on while the operations are applied, a cut and what is cleared in steps among them, and
// requires of each that it gives what the oracle's holder had when the dump began.
func dumps(v *temper, ops []coretest.Op, seed uint64) (given int, err error) {
	rng := rand.New(rand.NewPCG(seed, 41))
	x, o := v.newRenumbering().(*renumbering), core.NewOracle()
	x.check = false
	type under struct {
		*core.Dump
		begun int
		h     core.Holder
		want  []core.KnownHash
	}
	var now []under
	var cut *core.Cut
	next := func(i, amount int) (done bool, err error) {
		d := &now[i]
		if !d.Next(amount) {
			return false, nil
		}
		have, err := restored(d.Dump)
		if err == nil && !reflect.DeepEqual(have, d.want) {
			err = fmt.Errorf("it restores\n  have %v\n  want %v", have, d.want)
		}
		if err != nil {
			return true, fmt.Errorf("a dump of holder %d that began after operation %d: %w", d.h, d.begun, err)
		}
		given += len(d.want)
		now = slices.Delete(now, i, i+1)
		return true, nil
	}
	for n := range ops {
		op := &ops[n]
		op.Apply(x)
		op.Apply(o)
		if len(now) < 4 && rng.IntN(3) == 0 {
			h := ops[rng.IntN(n+1)].Holder
			now = append(now, under{x.BeginDump(x.of(h)), n, h, o.KnownHashes(h)})
		}
		if cut == nil || cut.Next(rng.IntN(20)) {
			cut = x.BeginCut(func(*core.Piece) {})
		}
		for i := len(now) - 1; i >= 0; i-- {
			switch rng.IntN(24) {
			case 0:
				now[i].End()
				now = slices.Delete(now, i, i+1)
			case 1, 2, 3, 4, 5, 6:
				if _, err := next(i, 1+rng.IntN(100)); err != nil {
					return 0, fmt.Errorf("operation %d: %w", n, err)
				}
			}
		}
	}
	for len(now) > 0 {
		if _, err := next(0, 1+rng.IntN(200)); err != nil {
			return 0, err
		}
	}
	return given, x.Check()
}

// TestDumpsAreOfTheirBeginning: however the writer's changes lie between its steps, a dump is of the moment at which it
// began.
func TestDumpsAreOfTheirBeginning(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			given := 0
			for _, seed := range coretest.Seeds(max(2, g.Seeds/4)) {
				ops := clearing(g.History(seed), seed)
				n, err := dumps(&tempers[seed%uint64(len(tempers))], ops[:min(len(ops), 400)], seed)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				given += n
			}
			if given == 0 {
				t.Error("nothing was dumped")
			}
		})
	}
}

// TestDumpWhileItsListIsSwept: of a holder with thousands of runs, which come and go so that its list of them is swept again
// and again, several dumps are of their beginning.
func TestDumpWhileItsListIsSwept(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const many = 6000
	f := newFiller(43)
	rng := rand.New(rand.NewPCG(43, 43))
	held := make(map[uint64]bool)
	var names []uint64
	store := func() {
		e := f.hashes(1)
		f.store(1, e, e)
		names, held[e[0]] = append(names, e[0]), true
	}
	remove := func() {
		i := rng.IntN(len(names))
		f.remove(1, names[i:i+1])
		delete(held, names[i])
		names[i] = names[len(names)-1]
		names = names[:len(names)-1]
	}
	for range many {
		store()
	}
	for round := range 8 {
		d, want := f.BeginDump(1), maps.Clone(held)
		for !d.Next(1000) {
			for range 10 + rng.IntN(60) { // the list is swept when it is twice as long as it need be
				remove()
			}
			for range 10 + rng.IntN(60) {
				store()
			}
		}
		have := make(map[uint64]bool)
		d.Events(func(ev *event.Event, _ []uint32) bool {
			have[ev.Engine[0]] = true
			return true
		})
		if !maps.Equal(have, want) {
			t.Fatalf("round %d: %d of %d are dumped, or others", round, len(have), len(want))
		}
	}
}

// TestNoStepCopiesMore: of one-block chains and of long ones a step copies about as much as it is told to.
func TestNoStepCopiesMore(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const many, long, amount = 1000, 256, 640
	f := newFiller(44)
	for range many {
		one, hashes := f.hashes(1), f.hashes(long)
		f.store(1, one, one)
		f.store(1, hashes, hashes)
	}
	copied := func(d *core.Dump) (chains, blocks int) {
		d.Events(func(ev *event.Event, _ []uint32) bool {
			chains, blocks = chains+1, blocks+len(ev.Engine)
			return true
		})
		return chains, blocks
	}
	d, chains, blocks, steps := f.BeginDump(1), 0, 0, 0
	for done := false; !done; steps++ {
		done = d.Next(amount)
		c, b := copied(d)
		if c-chains > amount/32+1 || b-blocks > amount+long {
			t.Fatalf("step %d copied %d blocks of %d chains", steps, b-blocks, c-chains)
		}
		chains, blocks = c, b
	}
	if chains != 2*many || blocks != many*(long+1) || steps > (2*many*40+blocks)/amount {
		t.Errorf("%d steps copied %d blocks of %d chains", steps, blocks, chains)
	}
}

func FuzzDumpedInSteps(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := coretest.Decode(data)
		if _, err := dumps(&tempers[0], ops, uint64(len(data))); err != nil {
			t.Fatalf("%s\n%v", coretest.Print(ops), err)
		}
	})
}
