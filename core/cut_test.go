package core_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// reborn is an index that is cut now and then while it is written, and then
// replaced by one that is loaded from the pieces and given what was written
// since the cut began. So whatever judges it judges cuts and loads.
type reborn struct {
	*core.Radix
	*temper
	rng    *rand.Rand
	cut    *core.Cut
	pieces []core.Piece
	since  []coretest.Op
	wants  []core.Outcome
	loads  int
}

func newReborn(v *temper, seed uint64) *reborn {
	return &reborn{Radix: v.newRadix(), temper: v, rng: rand.New(rand.NewPCG(seed, 11))}
}

func clonePiece(p *core.Piece) core.Piece {
	c := *p
	c.Local, c.Engine, c.Held, c.Children = slices.Clone(p.Local), slices.Clone(p.Engine), slices.Clone(p.Held), slices.Clone(p.Children)
	c.Exceptions = slices.Clone(p.Exceptions)
	for i := range c.Exceptions {
		c.Exceptions[i].Hashes = slices.Clone(c.Exceptions[i].Hashes)
	}
	return c
}

// write carries the operation out.
func (r *reborn) write(op coretest.Op) core.Outcome {
	if r.cut == nil && r.rng.IntN(8) == 0 {
		r.pieces = nil
		r.cut = r.BeginCut(func(p *core.Piece) { r.pieces = append(r.pieces, clonePiece(p)) })
	}
	r.before(r.Radix, r.rng)
	out := op.Apply(r.Radix)
	if r.cut == nil {
		return out
	}
	op.Event.Engine, op.Event.Local = slices.Clone(op.Event.Engine), slices.Clone(op.Event.Local)
	r.since, r.wants = append(r.since, op), append(r.wants, out)
	if r.rng.IntN(3) == 0 && r.cut.Next(1+r.rng.IntN(20)) {
		r.bear()
	}
	return out
}

func (r *reborn) bear() {
	next := r.newRadix()
	l := next.NewLoader(0)
	for i := range r.pieces {
		r.before(next, r.rng)
		if err := l.Add(&r.pieces[i]); err != nil {
			panic(fmt.Sprintf("piece %+v: %v", r.pieces[i], err))
		}
	}
	for h, hashes := range r.cut.Inferred() {
		l.Infer(h, hashes)
	}
	if err := next.Check(); err != nil {
		panic(fmt.Sprintf("after a load: %v", err))
	}
	for i := range r.since {
		r.before(next, r.rng)
		if got := r.since[i].Apply(next); got != r.wants[i] {
			panic(fmt.Sprintf("after a load, %v: %+v, the original %+v", r.since[i], got, r.wants[i]))
		}
	}
	r.Radix, r.cut, r.since, r.wants = next, nil, nil, nil
	r.loads++
}

func (r *reborn) Store(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	return r.write(coretest.Op{Holder: h, Count: countCopies, Event: *ev})
}

func (r *reborn) StoreCopies(h core.Holder, tier event.Tier, hash uint64, n uint32) core.Outcome {
	return r.write(coretest.Op{Holder: h, Event: event.Event{AllTiers: true, Tier: tier, DPRank: n, Engine: []uint64{hash}}})
}

func (r *reborn) Remove(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	return r.write(coretest.Op{Holder: h, Count: countCopies, Event: *ev})
}

func (r *reborn) Clear(h core.Holder, tier event.Tier, all bool) core.Outcome {
	return r.write(coretest.Op{Holder: h, Event: event.Event{Kind: event.Cleared, Tier: tier, AllTiers: all}})
}

func (r *reborn) Forget(h core.Holder, hashes []uint64) int {
	return r.write(coretest.Op{Holder: h, Event: event.Event{Engine: hashes}}).Replaced
}

func (r *reborn) Infer(h, from core.Holder, hash uint64) int {
	return r.write(coretest.Op{Holder: h, Event: event.Event{HasParent: true, Parent: hash, Engine: []uint64{uint64(from)}}}).Stored
}

func (r *reborn) StoreFrom(h, from core.Holder, hash uint64, tier event.Tier) core.Outcome {
	return r.write(coretest.Op{Holder: h, Event: event.Event{
		AllTiers: true, Tier: tier, HasParent: true, Parent: hash, Engine: []uint64{uint64(from)}}})
}

// An index loaded from a cut, however the cut's slices lie between writes, goes
// on as the oracle does that was never interrupted.
func TestAnIndexLoadedFromACutEqualsTheOracle(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(max(1, g.Seeds/12)) {
				ops := g.History(seed)
				if n := map[string]int{"deep": 200, "fleet": 1000}[g.Name]; n > 0 {
					ops = ops[:n] // of long chains, which take their time
				}
				for i := range tempers {
					v, ops, interval := &tempers[i], ops, g.Interval
					if i > 0 { // the first is the ordinary one
						ops, interval = ops[:min(len(ops), 150)], 150
					}
					newIndex := func() core.Index { return newReborn(v, seed) }
					if at, err := coretest.Check(newIndex, ops, interval); err != nil {
						short, err := coretest.Minimise(newIndex, ops[:at+1], err, 5*time.Second)
						t.Fatalf("%s, seed %d, operation %d; these are enough:\n%s\n%v", v.name, seed, at, coretest.Print(short), err)
					}
				}
			}
		})
	}
}

// cutOf returns the pieces of an index as it is.
func cutOf(x *core.Radix) []core.Piece {
	var pieces []core.Piece
	c := x.BeginCut(func(p *core.Piece) { pieces = append(pieces, clonePiece(p)) })
	for !c.Next(100) {
	}
	return pieces
}

// A load that breaks off leaves nothing behind once its holders are cleared, and
// neither does one that was whole.
func TestALoadIsUndoneByClearingItsHolders(t *testing.T) {
	for _, g := range coretest.Solo() {
		x := core.NewRadix(core.Options{})
		for _, op := range g.History(5) {
			op.Apply(x)
		}
		pieces := cutOf(x)
		rng := rand.New(rand.NewPCG(5, 6))
		for range 4 {
			y := core.NewRadix(core.Options{})
			l := y.NewLoader(0)
			added := rng.IntN(len(pieces) + 1)
			for i := range pieces[:added] {
				if err := l.Add(&pieces[i]); err != nil {
					t.Fatal(err)
				}
			}
			for h := range core.Holder(301) {
				y.Clear(h, 0, true)
			}
			l.Finish()
			if err := y.Check(); err != nil {
				t.Fatal(err)
			}
			if n := y.Runs(); n != 0 {
				t.Fatalf("%s: %d runs are left of %d pieces, %d of them added", g.Name, n, len(pieces), added)
			}
			if m := y.Memory(); m.Content|m.Runs|m.Coverage|m.Exceptions|m.Descendants|m.Children != 0 {
				t.Fatalf("%s: memory %+v is left", g.Name, m)
			}
		}
	}
}

// Pieces that no cut gives are refused, and change nothing.
func TestPiecesOfNoCutAreRefused(t *testing.T) {
	good := core.Piece{Number: 1, Local: []uint64{1, 2}, Engine: []uint64{3, 4}, Held: []core.PieceHeld{{Holder: 1, Blocks: 2}}, Children: []uint32{1}}
	for name, spoil := range map[string]func(p *core.Piece){
		"no blocks":      func(p *core.Piece) { p.Local, p.Engine = nil, nil },
		"missing hashes": func(p *core.Piece) { p.Engine = p.Engine[:1] },
		"nobody":         func(p *core.Piece) { p.Held, p.Children = nil, nil },
		"held beyond":    func(p *core.Piece) { p.Held[0].Blocks = 3 },
		"held nothing":   func(p *core.Piece) { p.Held[0].Blocks = 0 },
		"holder twice":   func(p *core.Piece) { p.Held = append(p.Held, p.Held[0]) },
		"both kinds":     func(p *core.Piece) { p.Exceptions = []core.PieceException{{Holder: 1}} },
		"hash beyond": func(p *core.Piece) {
			p.Exceptions = []core.PieceException{{Holder: 2, Hashes: []core.PieceHash{{Pos: 2}}}}
		},
		"nothing": func(p *core.Piece) { p.Children, p.Exceptions = nil, []core.PieceException{{Holder: 2}} },
		"nothing, alone": func(p *core.Piece) {
			p.Held, p.Children, p.Exceptions = nil, nil, []core.PieceException{{Holder: 2}}
		},
		"unknown parent":   func(p *core.Piece) { p.Parent, p.Offset = 7, 1 },
		"beyond parent":    func(p *core.Piece) { p.Parent, p.Offset = 1, 3 },
		"before parent":    func(p *core.Piece) { p.Parent, p.Offset = 1, 0 },
		"root at offset":   func(p *core.Piece) { p.Offset = 1 },
		"taken number":     func(p *core.Piece) { p.Local[0] = 9; p.Number = 1 },
		"taken first hash": func(p *core.Piece) { p.Local[0] = 1 },
		"as its parent":    func(p *core.Piece) { p.Parent, p.Offset, p.Local[0] = 1, 1, 2 },
	} {
		x := core.NewRadix(core.Options{})
		l := x.NewLoader(0)
		if err := l.Add(&good); err != nil {
			t.Fatal(err)
		}
		p := clonePiece(&good)
		p.Number, p.Local[0] = 2, 5
		spoil(&p)
		if err := l.Add(&p); !errors.Is(err, core.ErrPiece) {
			t.Errorf("%s: %v", name, err)
		}
		for h := range core.Holder(3) {
			x.Clear(h, 0, true)
		}
		l.Finish()
		if err := x.Check(); err != nil || x.Runs() != 0 {
			t.Errorf("%s: %d runs are left, %v", name, x.Runs(), err)
		}
	}
}

// What a holder only knows, because of a last piece that is then refused, is gone with it.
func TestAboveARefusedPieceNothingIsLeft(t *testing.T) {
	x := core.NewRadix(core.Options{})
	l := x.NewLoader(0)
	known := []core.PieceException{{Holder: 1, Hashes: []core.PieceHash{{Shared: true}}}}
	if err := l.Add(&core.Piece{Number: 1, Local: []uint64{1, 2}, Engine: []uint64{3, 4}, Exceptions: known, Children: []uint32{2}}); err != nil {
		t.Fatal(err)
	}
	nothing := []core.PieceException{{Holder: 1}}
	if err := l.Add(&core.Piece{Number: 2, Parent: 1, Offset: 2, Local: []uint64{5}, Engine: []uint64{6}, Exceptions: nothing}); !errors.Is(err, core.ErrPiece) {
		t.Fatal(err)
	}
	x.Clear(1, 0, true)
	l.Finish()
	if err := x.Check(); err != nil || x.Runs() != 0 {
		t.Errorf("%d runs are left, %v", x.Runs(), err)
	}
}

// There is one cut at a time, and one that is ended gives nothing more.
func TestACutEnds(t *testing.T) {
	x := core.NewRadix(core.Options{})
	store := func(first uint64) {
		x.Store(0, &event.Event{Kind: event.Stored, Engine: []uint64{first, first + 1}, Local: []uint64{first, first + 1}}, false)
	}
	for i := range uint64(10) {
		store(10 * i)
	}
	given := 0
	c := x.BeginCut(func(*core.Piece) { given++ })
	if x.BeginCut(func(*core.Piece) {}) != nil {
		t.Error("two cuts at a time")
	}
	if c.Next(1) || given != 1 {
		t.Errorf("%d pieces after the first slice", given)
	}
	c.End()
	x.Clear(0, 0, true)
	if !c.Next(1) || given != 1 {
		t.Errorf("%d pieces of a cut that has ended", given)
	}
	store(5)
	if n := len(cutOf(x)); n != 1 {
		t.Errorf("%d pieces of the next cut", n)
	}
}
