package core_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// clearedLoad is a load in the midst of which holders are cleared, at once or in steps. It goes on with the others, while those
// store again what no other has.
type clearedLoad struct {
	*coretest.Checker
	*temper
	x       *core.Radix
	r       *rand.Rand
	gone    map[core.Holder]bool // cleared: no piece has them any more
	leaving []core.Holder
	ops     []coretest.Op
	apart   bool
}

func (l *clearedLoad) step() error {
	l.before(l.x, l.r)
	if k := len(l.leaving); k > 0 && l.r.IntN(2) == 0 {
		if h := l.leaving[k-1]; !l.x.ClearSome(h, 1+l.r.IntN(30)) {
			l.leaving = l.leaving[:k-1]
		}
		return l.x.Check()
	}
	if len(l.gone) == 0 || l.r.IntN(6) == 0 { // one more
		h := l.ops[l.r.IntN(len(l.ops))].Holder
		if slices.Contains(l.leaving, h) {
			return nil
		}
		l.gone[h] = true
		l.Oracle.Clear(h, 0, true)
		if l.r.IntN(2) == 0 {
			l.x.Clear(h, 0, true)
		} else if l.x.ClearSome(h, l.r.IntN(30)) {
			l.leaving = append(l.leaving, h)
		}
		return l.x.Check()
	}
	op := l.ops[l.r.IntN(len(l.ops))]
	if !l.gone[op.Holder] || slices.Contains(l.leaving, op.Holder) || op.Event.Kind == 0 && op.Event.HasParent {
		return nil
	}
	if l.apart {
		op.Event.Local = slices.Clone(op.Event.Local)
		for i := range op.Event.Local {
			op.Event.Local[i] |= 1 << 40
		}
	}
	return errors.Join(l.Apply(&op), l.x.Check())
}

// add adds a piece without those who are cleared, as far as others have something of it.
func (l *clearedLoad) add(to *core.Loader, p core.Piece) error {
	p.Held = slices.DeleteFunc(slices.Clone(p.Held), func(h core.PieceHeld) bool { return l.gone[h.Holder] })
	p.Exceptions = slices.DeleteFunc(slices.Clone(p.Exceptions), func(e core.PieceException) bool { return l.gone[e.Holder] })
	if len(p.Held)+len(p.Exceptions)+len(p.Children) == 0 {
		return nil
	}
	end := uint32(0)
	for _, h := range p.Held {
		end = max(end, h.Blocks)
	}
	for _, ex := range p.Exceptions {
		for _, e := range ex.Hashes {
			end = max(end, e.Pos+e.More+1)
		}
	}
	if k := len(p.Children); k > 0 {
		end = max(end, p.Children[k-1])
	}
	p.Local, p.Engine = p.Local[:end], p.Engine[:end]
	return to.Add(&p)
}

// loadCleared loads a cut of the history's index so, and compares the index with the oracle.
func loadCleared(v *temper, ops []coretest.Op, seed uint64, apart bool) (broken bool, err error) {
	from := v.newRadix()
	l := &clearedLoad{temper: v, x: v.newRadix(), r: rand.New(rand.NewPCG(seed, 67)), gone: map[core.Holder]bool{}, ops: ops, apart: apart}
	l.Checker = coretest.NewChecker(from, seed)
	for i := range ops {
		if err := l.Apply(&ops[i]); err != nil {
			return false, err
		}
	}
	pieces := cutOf(from)
	var inferred map[core.Holder][]uint64
	if c := from.BeginCut(func(*core.Piece) {}); c != nil {
		inferred = c.Inferred()
	}
	l.Index = l.x
	to := l.x.NewLoader(0)
	for i := range pieces {
		for l.r.IntN(2) == 0 {
			if err := l.step(); err != nil {
				return false, fmt.Errorf("before piece %d: %w", i, err)
			}
		}
		if err := l.add(to, pieces[i]); err != nil {
			broken = true
			break
		}
		if err := l.x.Check(); err != nil {
			return false, fmt.Errorf("after piece %d: %w", i, err)
		}
	}
	if broken {
		for i := range ops {
			if h := ops[i].Holder; !l.gone[h] {
				l.gone[h] = true
				l.Oracle.Clear(h, 0, true)
				l.x.Clear(h, 0, true)
			}
		}
	}
	for h, hashes := range inferred {
		if !l.gone[h] {
			to.Infer(h, hashes)
		}
	}
	to.Finish()
	for len(l.leaving) > 0 {
		if err := l.step(); err != nil {
			return broken, fmt.Errorf("at the end: %w", err)
		}
	}
	if err := errors.Join(l.x.Check(), l.State(40)); err != nil {
		return broken, fmt.Errorf("after the load: %w", err)
	}
	for i := range ops[:min(len(ops), 60)] {
		l.before(l.x, l.r)
		op := ops[l.r.IntN(len(ops))]
		if err := errors.Join(l.Apply(&op), l.x.Check()); err != nil {
			return broken, fmt.Errorf("%d operations after the load: %w", i, err)
		}
	}
	if err := l.State(40); err != nil {
		return broken, err
	}
	for i := range ops {
		l.x.Clear(ops[i].Holder, 0, true)
	}
	if m := l.x.Memory(); l.x.Runs() != 0 || l.x.Segments() != 0 || m.Holders+m.Coverage+m.Exceptions+m.Descendants+m.Runs+m.Content > 0 {
		return broken, fmt.Errorf("nobody has anything: %d runs, %+v", l.x.Runs(), m)
	}
	return broken, l.x.Check()
}

// TestHoldersAreClearedWhileOthersAreLoaded: holders that a Loader has added are cleared before it is finished, and store
// again what others have or not, while it goes on adding others.
func TestHoldersAreClearedWhileOthersAreLoaded(t *testing.T) {
	for _, apart := range []bool{true, false} {
		for _, g := range coretest.Solo() {
			t.Run(fmt.Sprintf("%s, apart: %v", g.Name, apart), func(t *testing.T) {
				t.Parallel()
				broken, whole := 0, 0
				n := 100
				if some := map[string]int{"deep": 40, "fleet": 80}[g.Name]; some > 0 {
					n = some // of long chains, which take their time
				}
				for _, seed := range coretest.Seeds(max(4, g.Seeds/4)) {
					ops := g.History(seed)
					ops = ops[:min(len(ops), n)]
					v := &tempers[seed%uint64(len(tempers))]
					b, err := loadCleared(v, ops, seed, apart)
					if err != nil {
						t.Errorf("%s, seed %d: %v", v.name, seed, err)
						return
					}
					if b {
						broken++
					} else {
						whole++
					}
				}
				t.Logf("%d loads broke off, %d did not", broken, whole)
			})
		}
	}
}

// TestWhatIsStillToLeaveARunFindsIt: a run that others are still to leave stays as it was added, whoever is cleared meanwhile and
// stores again.
func TestWhatIsStillToLeaveARunFindsIt(t *testing.T) {
	held := func(holders ...core.PieceHeld) []core.PieceHeld { return holders }
	pieces := []core.Piece{
		{Number: 1, Local: chain(1, 2), Engine: chain(1, 2), Held: held(core.PieceHeld{Holder: 1, Blocks: 2}, core.PieceHeld{Holder: 2, Blocks: 2}), Children: []uint32{2, 2}},
		{Number: 2, Parent: 1, Offset: 2, Local: chain(30, 1), Engine: chain(30, 1), Held: held(core.PieceHeld{Holder: 1, Blocks: 1})},
		{Number: 3, Parent: 1, Offset: 2, Local: chain(3, 3), Engine: chain(3, 3), Held: held(core.PieceHeld{Holder: 2, Blocks: 3}), Children: []uint32{3}},
		{Number: 4, Parent: 3, Offset: 3, Local: chain(6, 1), Engine: chain(6, 1), Held: held(core.PieceHeld{Holder: 2, Blocks: 1})},
	}
	for name, meanwhile := range map[string]func(x *core.Radix){
		"what else leaves goes": func(x *core.Radix) { x.Clear(1, 0, true) },
		"others leave before it": func(x *core.Radix) {
			x.Clear(1, 0, true)
			prompt := append(chain(1, 3), chain(40, 8)...)
			x.Store(1, &event.Event{Kind: stored, Engine: prompt, Local: prompt}, false)
		},
	} {
		x := core.NewRadix(core.Options{})
		l := x.NewLoader(0)
		for i := range pieces {
			if i == 3 {
				meanwhile(x)
			}
			if err := l.Add(&pieces[i]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		l.Finish()
		var m core.Matches
		x.Find(chain(1, 6), &m)
		depth := map[core.Holder]uint32{}
		m.Each(device, func(h core.Holder, d uint32) { depth[h] = d })
		if depth[2] != 6 || !x.Knows(2, 6) {
			t.Errorf("%s: %d of 6 blocks", name, depth[2])
		}
		for h := range core.Holder(3) {
			x.Clear(h, 0, true)
		}
		if err := x.Check(); err != nil || x.Runs() != 0 {
			t.Errorf("%s: %d runs are left, %v", name, x.Runs(), err)
		}
	}
}

// TestWhatNobodyHasYetIsReleased: a run that was added for those that leave it alone goes where these do not come.
func TestWhatNobodyHasYetIsReleased(t *testing.T) {
	x := core.NewRadix(core.Options{})
	l := x.NewLoader(0)
	for _, p := range []core.Piece{
		{Number: 1, Local: chain(1, 1), Engine: chain(1, 1), Held: []core.PieceHeld{{Holder: 1, Blocks: 1}}, Children: []uint32{1}},
		{Number: 2, Parent: 1, Offset: 1, Local: chain(2, 2), Engine: chain(2, 2), Children: []uint32{2}},
	} {
		if err := l.Add(&p); err != nil {
			t.Fatal(err)
		}
	}
	x.Clear(1, 0, true)
	l.Finish()
	if err := x.Check(); err != nil || x.Runs() != 0 {
		t.Errorf("%d runs are left, %v", x.Runs(), err)
	}
}

// TestWhoForgotAllIsClearedWhereItGoesOn: a holder that knows nothing of a run but was to have something below is cleared
// there, too, and if it comes again is told from one that is there.
func TestWhoForgotAllIsClearedWhereItGoesOn(t *testing.T) {
	x := core.NewRadix(core.Options{})
	l := x.NewLoader(0)
	nothing := []core.PieceException{{Holder: 1}}
	if err := l.Add(&core.Piece{Number: 1, Local: chain(1, 2), Engine: chain(1, 2), Held: []core.PieceHeld{{Holder: 2, Blocks: 2}}, Exceptions: nothing, Children: []uint32{2}}); err != nil {
		t.Fatal(err)
	}
	if x.Clear(1, 0, true); !x.Empty(1) {
		t.Error("it is not empty")
	}
	x.Store(1, &event.Event{Kind: stored, Engine: chain(1, 2), Local: chain(1, 2)}, false)
	l.Finish()
	dumped := 0
	x.Dump(1, func(ev *event.Event, _ []uint32) bool { dumped += len(ev.Engine); return true })
	if dumped != 2 {
		t.Errorf("%d of 2 blocks are dumped", dumped)
	}
	if x.Clear(1, 0, true); !x.Empty(1) || x.Knows(1, 1) {
		t.Error("it is not cleared")
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// TestWhatIsAwaitedIsNotCutOff: the blocks that a Loader's next run hangs on stay when who has them removes them, at once or
// one after the other.
func TestWhatIsAwaitedIsNotCutOff(t *testing.T) {
	f := newFiller(65)
	c, end, other := f.hashes(40), f.hashes(5), f.hashes(3)
	f.store(0, c, c)
	f.storeAfter(0, c[39], end, end)
	f.store(1, c, c)
	f.storeAfter(1, c[39], other, other)
	f.remove(1, c) // which it knows still, and does not hold
	all := slices.Concat(c, end)
	slices.Reverse(all)
	for _, each := range []int{1, 7, len(all)} {
		y := core.NewRadix(core.Options{})
		l := y.NewLoader(0)
		pieces := cutOf(f.Radix)
		if len(pieces) != 2 {
			t.Fatalf("%d pieces", len(pieces))
		}
		if err := l.Add(&pieces[0]); err != nil {
			t.Fatal(err)
		}
		for some := range slices.Chunk(all, each) {
			if n := y.Remove(0, &event.Event{Kind: event.Removed, Engine: some}, false).Removed; n != len(some) {
				t.Fatalf("%d of %d blocks removed", n, len(some))
			}
		}
		if err := l.Add(&pieces[1]); err != nil {
			t.Fatalf("%d at a time: %v", each, err)
		}
		l.Finish()
		if !y.Knows(1, c[39]) || !y.Knows(1, other[0]) || y.Held(1, device) != len(other) || y.Held(0, device) > 0 {
			t.Errorf("%d at a time: held are %d and %d", each, y.Held(0, device), y.Held(1, device))
		}
		if err := y.Check(); err != nil {
			t.Errorf("%d at a time: %v", each, err)
		}
	}
}
