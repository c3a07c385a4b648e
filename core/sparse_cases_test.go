package core_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// What holders are sparse for, and what they become dense by, one case after the other; histories at random are in
// sparse_test.go.

// TestHoldersBecomeDense: who knows too many hashes, mostly joins others, searches too often or is asked about too often is
// sparse no more, whatever it was about when that was found, and knows what it knew.
func TestHoldersBecomeDense(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const bound, many = 1 << 15, 1<<15 - 16
	f := newFiller(51)
	f.SetSparse(bound)
	f.SetEntered(1 << 20) // all at once
	hashes := f.hashes(2*bound + 16)
	check := func(h core.Holder, sparse bool, what string) {
		t.Helper()
		if f.IsSparse(h) != sparse {
			t.Errorf("%s: holder %d is sparse: %v", what, h, !sparse)
		}
		if err := f.Check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	f.store(0, hashes[:many], hashes[:many])
	check(0, true, "as many as a sparse one knows")
	f.Store(0, &event.Event{Kind: stored, HasParent: true, Parent: hashes[many-1], Engine: hashes[many:], Local: hashes[many:]}, false)
	check(0, false, "and more")

	f.store(1, hashes[:30], hashes[:30])
	check(1, true, "30 of another's")
	f.Store(1, &event.Event{Kind: stored, HasParent: true, Parent: hashes[29], Engine: hashes[30:8000], Local: hashes[30:8000]}, false)
	check(1, false, "8,000 of another's")
	for range 21 {
		few := f.hashes(100)
		f.store(1, few, few)
	}
	check(1, true, "2,100 of its own, too")

	own := f.hashes(30000)
	f.store(2, own, own)
	for i := range 40 {
		e := own[i*100]
		if !f.Knows(2, e) || f.Knows(2, e+1) {
			t.Fatalf("hash %d of its own", i)
		}
		if i == 2 {
			check(2, true, "a few searches")
		}
	}
	check(2, false, "more searches than stores pay for")

	small := f.hashes(20)
	for h := 3; h < 23; h++ {
		f.store(h, small[h-3:h-2], small[h-3:h-2])
	}
	f.SetAsked(1000)
	asked, dense := 0, 0
	for ; dense < 20 && asked < 1000; asked++ {
		if h, ok := f.WhoKnows(small[asked%20], func(core.Holder) bool { return true }); !ok || h != core.Holder(3+asked%20) {
			t.Fatalf("question %d: %d %v", asked, h, ok)
		}
		dense = 0
		for h := core.Holder(3); h < 23; h++ {
			if !f.IsSparse(h) {
				dense++
			}
		}
	}
	if asked < 20 || asked > 900 {
		t.Errorf("%d of 20 holders are dense after %d questions", dense, asked)
	}
	check(3, false, "asked about")
	for _, sparse := range []bool{false, true} { // who comes while too much is asked is dense from the beginning
		f.SetAsked(map[bool]int{false: -1}[sparse])
		f.Clear(1, 0, true)
		f.store(1, small, small)
		check(1, sparse, "come again")
	}
}

// TestEnteringLateCostsNoMoreBesideMany: where a prompt's hashes mean other things to some, it costs whoever is the first to have
// them entered no more, in steps and memory, that thousands know them already; and each of those is found.
func TestEnteringLateCostsNoMoreBesideMany(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const blocks = 100
	measure := func(holders int) (steps int, bytes int64) {
		f := newFiller(52)
		f.SetJoinedBound(1 << 20)
		prompt, tail := f.hashes(blocks), f.hashes(1)
		for h := range holders {
			f.store(h, prompt, prompt)
			f.storeAfter(h, prompt[blocks-1], tail, tail)
		}
		for h := holders; h < holders+7; h++ {
			f.store(h, tail, f.hashes(1))
			f.Turn(core.Holder(h))
			if h > holders {
				f.store(h, prompt, f.hashes(blocks))
			}
		}
		steps, bytes = f.Steps(), f.Memory().Total()
		f.store(holders, prompt, prompt)
		steps, bytes = f.Steps()-steps, f.Memory().Total()-bytes
		for range 2000 { // what was found once is not searched for again
			if !f.Knows(5, prompt[10]) || !f.IsSparse(5) {
				t.Fatalf("holder 5 is sparse: %v", f.IsSparse(5))
			}
		}
		want := core.Holder(0)
		f.WhoKnows(prompt[blocks/2], func(h core.Holder) bool {
			if h != want {
				t.Errorf("holder %d comes before %d", h, want)
			}
			want++
			return false
		})
		if want != core.Holder(holders+7) {
			t.Errorf("%d of %d holders", want, holders+7)
		}
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		return steps, bytes
	}
	fewSteps, fewBytes := measure(20)
	manySteps, manyBytes := measure(2000)
	t.Logf("%d steps, %d bytes beside 20, %d, %d beside 2,000", fewSteps, fewBytes, manySteps, manyBytes)
	if manySteps > 2*fewSteps+10 || manyBytes > 2*fewBytes+64<<10 {
		t.Errorf("%d steps, %d bytes beside 20, %d, %d beside 2,000", fewSteps, fewBytes, manySteps, manyBytes)
	}
}

// TestFiltersLoseWhatIsRemoved: where engines grow and evict their chains at the ends, with others' blocks below or not, one
// by one or many at once, filters have what is held and no entry more, so that they are never made anew for that.
func TestFiltersLoseWhatIsRemoved(t *testing.T) {
	for _, seed := range coretest.Seeds(4) {
		f := newFiller(53)
		f.SetJoinedBound(1 << 20)
		r := rand.New(rand.NewPCG(seed, 43))
		all := f.hashes(3000)
		var long [4]int
		for step := range 600 {
			h := r.IntN(len(long))
			n, k := long[h], 1
			if r.IntN(2) == 0 {
				k = 1 + r.IntN(90)
			}
			if k = min(k, len(all)-n); r.IntN(5) < 3 && k > 0 {
				ev := &event.Event{Kind: stored, Engine: all[n : n+k], Local: all[n : n+k]}
				if n > 0 {
					ev.HasParent, ev.Parent = true, all[n-1]
				}
				f.Store(core.Holder(h), ev, false)
				long[h] += k
			} else if k = min(k, n); k > 0 {
				gone := slices.Clone(all[n-k : n])
				slices.Reverse(gone)
				f.remove(h, gone)
				long[h] -= k
			}
			if held, entries := f.Held(core.Holder(h), device), f.Entries(core.Holder(h)); held != long[h] || entries != held {
				t.Fatalf("seed %d, step %d, %d blocks: holder %d of %d has %d entries", seed, step, k, h, held, entries)
			}
		}
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOneIsDenseOneSparse: two holders of the same content, of which one is always dense and one always sparse, do
// everything to it, each three things in every order, and longer histories at random.
func TestOneIsDenseOneSparse(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	all := chain(1, 20)
	down := slices.Clone(all)
	slices.Reverse(down)
	acts := []event.Event{
		{Kind: stored, Engine: all, Local: all},
		{Kind: stored, Engine: append(chain(1, 9), 50, 51, 52), Local: append(chain(1, 9), 50, 51, 52)},
		{Kind: stored, Engine: append(chain(1, 9), 60, 61), Local: append(chain(1, 9), 10, 11)}, // calls two otherwise
		{Kind: stored, HasParent: true, Parent: 9, Engine: []uint64{70}, Local: []uint64{70}},
		{Kind: stored, Engine: []uint64{80, 5, 81}, Local: []uint64{80, 81, 82}}, // 5 is another block
		{Kind: removed, Engine: down[:11]},
		{Kind: removed, Engine: []uint64{5, 9, 52, 70}},
		{Kind: removed, Engine: down},
		{Kind: event.Cleared, AllTiers: true},
	}
	run := func(steps ...int) {
		c := coretest.NewChecker(core.NewRadix(core.Options{}), 1)
		x := c.Index.(*core.Radix)
		for i, k := range steps {
			op := coretest.Op{Holder: core.Holder(k % 2), Event: acts[k/2]}
			err := c.Apply(&op)
			for h := core.Holder(0); h < x.Holders() && err == nil; h++ {
				if !x.Empty(h) && x.IsSparse(h) == (h == 0) {
					x.Turn(h)
				}
			}
			if err == nil {
				err = x.Check()
			}
			if err == nil && i == len(steps)-1 {
				err = c.State(4)
			}
			if err != nil {
				t.Fatalf("%v, step %d: %v", steps[:i+1], i, err)
			}
		}
	}
	n := 2 * len(acts)
	for i := range n * n * n {
		if i/n%n%2 != i%2 || i%7 == 0 { // one does what the other did is what matters most
			run(i/n/n, i/n%n, i%n)
		}
	}
	r := rand.New(rand.NewPCG(1, 47))
	for range 40 * len(coretest.Seeds(10)) {
		steps := make([]int, 8)
		for i := range steps {
			steps[i] = r.IntN(n)
		}
		run(steps...)
	}
}

// TestConversationsGoOnNearTheirEnds: an engine whose events go on from a block near the end of the one before, or one by one from
// several ends in turns, stays sparse, however often: it is led there by the directory.
func TestConversationsGoOnNearTheirEnds(t *testing.T) {
	f := newFiller(54)
	ends := make([]uint64, 12)
	for i := range ends {
		c := f.hashes(1500)
		f.store(0, c, c)
		ends[i] = c[1499]
	}
	for i := range 800 {
		at := &ends[i*5%len(ends)]
		n, left := 1, 0 // out
		if i%4 == 0 {
			n, left = 50, 12
		}
		c := f.hashes(n)
		f.storeAfter(0, *at, c, c)
		*at = c[n-1-left]
	}
	if !f.IsSparse(0) || f.Held(0, device) != 12*1500+200*53 {
		t.Errorf("sparse: %v, of %d blocks", f.IsSparse(0), f.Held(0, device))
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}

// TestTheLastBlockNeedNotBeEntered: what is removed at the end of a run takes nothing out of the directory that is there of
// others by the same hash.
func TestTheLastBlockNeedNotBeEntered(t *testing.T) {
	c := coretest.NewChecker(core.NewRadix(core.Options{}), 1)
	x := c.Index.(*core.Radix)
	hashes := chain(1, 20)
	apply := func(h core.Holder, ev event.Event) {
		t.Helper()
		if err := errors.Join(c.Apply(&coretest.Op{Holder: h, Event: ev}), x.Check()); err != nil {
			t.Fatal(err)
		}
	}
	for h := core.Holder(1); h < 8; h++ {
		apply(h, event.Event{Kind: stored, Engine: hashes, Local: chain(uint64(h)*1000, 20)})
		x.Turn(h)
	}
	apply(0, event.Event{Kind: stored, Engine: chain(100, 6), Local: chain(100, 6)})
	for i, e := range []uint64{20, 10, 106} {
		apply(0, event.Event{Kind: stored, HasParent: true, Parent: append(chain(105, 1), 20, 10)[i], Engine: []uint64{e}, Local: []uint64{e}})
	}
	for _, e := range []uint64{106, 10, 20, 105} {
		apply(0, event.Event{Kind: removed, Engine: []uint64{e}})
	}
	if err := c.State(16); err != nil {
		t.Error(err)
	}
}

// TestWhoIsLoadedWithManyIsDense before anybody asks: to find out then would be a long step.
func TestWhoIsLoadedWithManyIsDense(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	f := newFiller(55)
	for range 5 {
		c := f.hashes(40_000)
		f.store(0, c, c)
	}
	some := f.hashes(1000)
	f.store(1, some, some)
	y := core.NewRadix(core.Options{})
	l := y.NewLoader(0)
	for _, p := range cutOf(f.Radix) {
		if err := l.Add(&p); err != nil {
			t.Fatal(err)
		}
	}
	if y.IsSparse(0) || !y.IsSparse(1) {
		t.Errorf("of 200,000 hashes: sparse is %v; of 1,000: %v", y.IsSparse(0), y.IsSparse(1))
	}
	if err := y.Check(); err != nil {
		t.Error(err)
	}
}

// TestWhoKnowsByWhatIsBelow: among many ranks whoever knows a hash only for what it has in another run, below, is found.
func TestWhoKnowsByWhatIsBelow(t *testing.T) {
	f := newFiller(56)
	for h := range 100 {
		c := f.hashes(3)
		f.store(h, c, c)
	}
	trunk, one, other := f.hashes(10), f.hashes(4), f.hashes(4)
	for h, end := range [][]uint64{one, other} {
		f.store(40+h, trunk, trunk)
		f.storeAfter(40+h, trunk[9], end, end)
	}
	for has := range core.Holder(2) { // the one that goes on in the same run, and the one that does in a child
		f.remove(41-int(has), trunk)
		if h, ok := f.WhoKnows(trunk[4], func(h core.Holder) bool { return h != 40+has }); !ok || h != 41-has {
			t.Errorf("%d, %v; want %d", h, ok, 41-has)
		}
	}
}

// TestWhatNobodyKnowsAnyMoreIsNotLookedFor: a prompt that went before what followed it is in no filter when that is gone,
// too, whether the first to have it still has some, or it is gone for all.
func TestWhatNobodyKnowsAnyMoreIsNotLookedFor(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	f := newFiller(57)
	trunk := f.hashes(40)
	const holders = 100
	for h := range holders {
		f.store(h, trunk, trunk)
		end := f.hashes(3)
		f.storeAfter(h, trunk[39], end, end)
		for range 30 {
			c := f.hashes(3)
			f.store(h, c, c)
		}
		switch h % 3 {
		case 0: // a hole remains for as long as the end does
			f.remove(h, trunk[:20])
			f.remove(h, trunk[20:])
			f.remove(h, end)
		case 1:
			slices.Reverse(trunk)
			f.remove(h, trunk)
			slices.Reverse(trunk)
			f.remove(h, end)
		default: // hashes at the trunk's end are known no more, those before are held
			f.remove(h, trunk[10:])
			f.remove(h, end)
		}
	}
	steps := f.Steps()
	for i, e := range trunk {
		if _, ok := f.WhoKnows(e, func(core.Holder) bool { return true }); ok != (i < 10) {
			t.Fatalf("of the trunk's hash %d: %v", i, ok)
		}
	}
	if took := f.Steps() - steps; took > 40*holders {
		t.Errorf("%d steps", took)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestAskingKeepsTheBudget: who is asked about too often does not become dense where there is no room for that, and is found
// all the same.
func TestAskingKeepsTheBudget(t *testing.T) {
	const holders, blocks = 60, 2000
	fill := func(budget int64) (*filler, [holders]uint64) {
		f := &filler{core.NewRadix(core.Options{Budget: budget}), rand.New(rand.NewPCG(54, 3)), 1}
		var one [holders]uint64
		for h := range holders {
			hashes := f.hashes(blocks)
			f.store(h, hashes, hashes)
			one[h] = hashes[blocks/2]
		}
		return f, one
	}
	f, _ := fill(0)
	budget := f.Memory().Total() + 100<<10
	f, one := fill(budget)
	f.SetAsked(0)
	dense := 0
	for range 5 {
		for h, e := range one {
			if got, ok := f.WhoKnows(e, func(core.Holder) bool { return true }); !ok || got != core.Holder(h) {
				t.Fatalf("holder %d knows it, found %d %v", h, got, ok)
			}
			if got := f.Memory().Total(); got > budget {
				t.Fatalf("%d bytes, budget %d", got, budget)
			}
		}
	}
	for h := range core.Holder(holders) {
		if !f.IsSparse(h) {
			dense++
		}
	}
	if dense == 0 || dense == holders {
		t.Errorf("%d of %d holders are dense", dense, holders)
	}
}
