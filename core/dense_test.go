package core_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// How holders become dense, some hashes at a time.

// TestHoldersBecomeDenseInSteps: who comes to know too many, or cannot pay for a search, has them entered some at a time,
// and so has no write wait for all of them; it is dense before its filter is full again.
func TestHoldersBecomeDenseInSteps(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const bound, each = 1 << 14, 64
	f := newFiller(58)
	f.SetSparse(bound)
	f.SetEntered(500)
	var all []uint64
	most := 0
	for len(all) < 3*bound && (len(all) == 0 || f.IsSparse(0)) {
		c, steps := f.hashes(each), f.Steps()
		before := f.Entered()
		f.store(0, c, c)
		if n := f.Entered() - before; len(all) > 0 {
			most = max(most, n)
		}
		if took := f.Steps() - steps; took > 5*bound {
			t.Fatalf("%d steps for one of %d blocks", took, each)
		}
		all = append(all, c...)
	}
	if f.IsSparse(0) || len(all) < bound*3/4 || len(all) > bound || most > 500+448+32+each {
		t.Errorf("sparse: %v, with %d hashes; up to %d entered for one event", f.IsSparse(0), len(all), most)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}

	own := f.hashes(bound)
	f.store(1, own, own)
	f.remove(1, own[1000:1001])
	f.SetSaved(0)
	most = 0
	for searches := range 16 {
		before := f.Entered()
		if !f.Knows(1, own[bound-100-searches*30]) {
			t.Fatalf("search %d: not its own", searches)
		}
		most = max(most, f.Entered()-before)
	}
	if all := f.Entered(); most > 4*500+32+16 || all < bound-500 {
		t.Errorf("%d are entered, up to %d for one search", all, most)
	}
	for range 20 {
		f.store(0, f.hashes(1), f.hashes(1))
	}
	if n := f.Entering(); n > 0 || f.IsSparse(1) {
		t.Errorf("%d become dense still", n)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}

// goOn stores so many blocks after the last of a chain, and returns them.
func (f *filler) goOn(h int, chain []uint64, blocks int) []uint64 {
	next := f.hashes(blocks)
	f.storeAfter(h, chain[len(chain)-1], next, next)
	return next
}

// TestALongChainBecomesDenseBeforeItsFilterIsFull, so that this is not made anew for what has no need of it soon.
func TestALongChainBecomesDenseBeforeItsFilterIsFull(t *testing.T) {
	const bound, each = 1 << 14, 64
	f := newFiller(61)
	f.SetSparse(bound)
	c := f.hashes(bound * 9 / 10)
	f.store(0, c, c)
	for n := len(c); f.IsSparse(0); n += each {
		steps := f.Steps()
		if c = f.goOn(0, c, each); f.Steps()-steps > bound/2 {
			t.Fatalf("%d steps to store more than %d hashes", f.Steps()-steps, n)
		}
	}
}

// TestToBecomeDenseEndsWithAFewSteps, where hashes of others have many blocks, too.
func TestToBecomeDenseEndsWithAFewSteps(t *testing.T) {
	const bound, each, ranks = 1 << 13, 64, 8
	f := newFiller(60)
	again := f.hashes(200)
	for h := 1; h <= ranks; h++ { // their own by the same hashes, of which some are in closed blocks
		f.store(h, again, f.hashes(len(again)))
		f.Turn(core.Holder(h))
	}
	f.store(0, again, f.hashes(len(again)))
	for range bound / each {
		c := f.hashes(each)
		f.store(0, c, c)
	}
	f.Enter(0)
	for i := 0; f.IsSparse(0); i++ {
		c, steps := f.hashes(1), f.Steps()
		if f.store(1, c, c); f.Steps()-steps > bound/8 {
			t.Fatalf("%d steps for store %d", f.Steps()-steps, i)
		}
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	for i, e := range again {
		n := 0
		f.WhoKnows(e, func(core.Holder) bool { n++; return false })
		if n != ranks+1 || !f.Knows(0, e) {
			t.Fatalf("hash %d: %d holders", i, n)
		}
	}
}

// TestWhoComesAgainIsSparse though it was about to become dense when it was cleared.
func TestWhoComesAgainIsSparse(t *testing.T) {
	f := newFiller(62)
	for _, h := range []int{1, 0} {
		c := f.hashes(2000)
		f.store(h, c, c)
	}
	f.Enter(1)
	f.Enter(0)
	f.Clear(0, 0, true)
	for range 60 {
		f.store(0, f.hashes(2), f.hashes(2))
	}
	if !f.IsSparse(0) || f.IsSparse(1) || f.Entering() > 0 {
		t.Errorf("sparse: %v, becoming dense: %d", f.IsSparse(0), f.Entering())
	}
}

// TestManyBecomeDenseWithinTheBudget: where all come to know too many at once, by chains or by one that grows, no more is
// granted to others than leaves them what they take for it.
func TestManyBecomeDenseWithinTheBudget(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const holders, bound, each = 200, 1 << 13, 128
	for _, first := range []int{each, bound * 9 / 10} { // with room in the filter beyond the bound
		fill := func(budget int64, blocks int) (most int64, dense int) {
			f := &filler{core.NewRadix(core.Options{Budget: budget}), rand.New(rand.NewPCG(59, 3)), 1}
			f.SetSparse(bound)
			var last [holders][]uint64
			for n, k := 0, first; n < blocks; n, k = n+k, each {
				for h := range holders {
					if n == 0 || first == each {
						last[h] = f.hashes(k)
						f.store(h, last[h], last[h])
					} else {
						last[h] = f.goOn(h, last[h], k)
					}
					most = max(most, f.Memory().Total())
				}
			}
			for h := range core.Holder(holders) {
				if !f.IsSparse(h) {
					dense++
				}
			}
			return most, dense
		}
		before, _ := fill(0, bound)
		after, _ := fill(0, bound*5/4)
		dense := 0
		for granted := before; granted < after+8<<20; granted += (after - before) / 5 {
			budget := min(granted*16/17, granted-4<<20)
			most, n := fill(budget, bound*5/4)
			if over := most - budget - max(budget/16, 4<<20); over > 0 {
				t.Errorf("%d blocks first, with %d bytes granted: %d KiB more are taken", first, granted, over>>10)
			}
			dense += n
		}
		if dense == 0 {
			t.Errorf("%d blocks first: nobody is dense", first)
		}
	}
}

// TestNoMoreBecomeDenseThanThereIsRoomFor: who is noted is counted before it is entered.
func TestNoMoreBecomeDenseThanThereIsRoomFor(t *testing.T) {
	const holders, each = 12, 30_000
	fill := func(budget int64) *filler {
		f := &filler{core.NewRadix(core.Options{Budget: budget}), rand.New(rand.NewPCG(63, 3)), 1}
		for h := range holders {
			c := f.hashes(each)
			f.store(h, c, c)
		}
		return f
	}
	f := fill(fill(0).Memory().Total() + 2<<20)
	for h := range core.Holder(holders) {
		f.Enter(h)
	}
	if n := f.Entering(); n < 2 || n > 6 {
		t.Errorf("%d holders of %d hashes are to become dense in 2 MiB", n, each)
	}
}

// TestWhoJoinsManyBecomesDenseInSteps: a holder of many hashes that comes to store little but what others have.
func TestWhoJoinsManyBecomesDenseInSteps(t *testing.T) {
	f := newFiller(64)
	own, others := f.hashes(600), f.hashes(20_000)
	f.store(0, others, others)
	f.store(1, own, own)
	f.store(1, others, others)
	if !f.IsSparse(1) || f.Entering() != 1 {
		t.Errorf("sparse: %v, becoming dense: %d", f.IsSparse(1), f.Entering())
	}
	for range 400 {
		f.store(0, f.hashes(1), f.hashes(1))
	}
	if f.IsSparse(1) || !f.IsSparse(0) {
		t.Errorf("who joins is sparse: %v, who does not: %v", f.IsSparse(1), f.IsSparse(0))
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}

// TestLargeFiltersOfOthersMakeNone: that others know more than a sparse one does gives nobody's filter room for as many.
func TestLargeFiltersOfOthersMakeNone(t *testing.T) {
	const bound, each = 1 << 12, 64
	f := newFiller(63)
	f.SetSparse(bound)
	large := f.hashes(bound * 7 / 4)
	f.store(0, large, large)
	c := f.hashes(bound * 3 / 16)
	f.store(1, c, c)
	n := len(c)
	for ; n < 3*bound && f.IsSparse(1); n += each {
		c = f.goOn(1, c, each)
	}
	if n < bound || n > bound*3/2 {
		t.Errorf("dense with %d hashes, where %d are many", n, bound)
	}
}

// TestEvictedAncestorsAreEnteredInSteps, too, of which the list of runs says nothing.
func TestEvictedAncestorsAreEnteredInSteps(t *testing.T) {
	const length, levels = 3000, 4
	f := newFiller(64)
	f.SetEntered(200)
	trunk := f.hashes(length)
	f.store(0, trunk, trunk)
	var gone []uint64
	for range levels {
		gone = append(gone, f.goOn(0, trunk, length+1)...) // longer, so that what follows is a run of its own
		trunk = append(trunk, f.goOn(0, trunk, length)...)
	}
	f.remove(0, trunk[:length*levels])
	f.remove(0, gone)
	for range 200 { // so that the list is swept
		one := f.hashes(1)
		f.store(0, one, one)
		f.remove(0, one)
	}
	f.Enter(0)
	before, most, stores := f.Entered(), 0, 0
	for ; f.IsSparse(0) && stores < 2*levels*length; stores++ {
		n := f.Entered()
		f.store(1, f.hashes(1), f.hashes(1))
		most = max(most, f.Entered()-n)
	}
	if f.IsSparse(0) || most > 200+70+32 || f.Entered()-before < length*levels {
		t.Errorf("sparse: %v after %d stores; up to %d were entered for one, %d in all", f.IsSparse(0), stores, most, f.Entered()-before)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestOthersOfTheBudgetLeaveNoRoomToBecomeDense: who shares a budget with others that use it becomes dense neither for being
// asked about nor for searches.
func TestOthersOfTheBudgetLeaveNoRoomToBecomeDense(t *testing.T) {
	const budget = 1 << 40
	room := false
	f := &filler{core.NewRadix(core.Options{Budget: budget, Share: func(have, _, most int64) (int64, bool) {
		return have, room || most > budget // what stores of ranks below their share may go beyond
	}}), rand.New(rand.NewPCG(62, 3)), 1}
	var all [][]uint64
	for h := range 10 {
		all = append(all, f.hashes(500))
		f.store(h, all[h], all[h])
	}
	ask := func() (dense int) {
		for i := range 200 {
			f.SetSaved(0)
			f.SetAsked(0)
			h := i % len(all)
			if e := all[h][100+i]; i%2 == 0 && !f.Knows(core.Holder(h), e) {
				t.Fatalf("holder %d does not know its hash %d", h, 100+i)
			} else if got, ok := f.WhoKnows(e, func(core.Holder) bool { return true }); !ok || got != core.Holder(h) {
				t.Fatalf("hash %d of holder %d is known to %d, %v", 100+i, h, got, ok)
			}
		}
		for h := range core.Holder(len(all)) {
			if !f.IsSparse(h) {
				dense++
			}
		}
		return dense
	}
	if n := ask(); n > 0 || f.Entering() > 0 {
		t.Errorf("%d are dense, %d become so", n, f.Entering())
	}
	if room = true; ask() == 0 {
		t.Error("with room nobody becomes dense either")
	}
}
