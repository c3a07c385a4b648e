package core_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/race"
)

// generating is a history of engines that generate: they append one block at a time to some
// chains, which others have too, and remove one at a time from the ends; among that
// is, seldom, everything that makes such a block no ordinary one.
func generating(seed uint64, n int) []coretest.Op {
	r := rand.New(rand.NewPCG(seed, 19))
	type chain struct{ engine, local []uint64 }
	holders := []core.Holder{0, 1, 2, 3, 64}
	chains := map[core.Holder][]*chain{}
	count := r.IntN(2) == 0
	next := uint64(1000)
	fresh := func() uint64 { next++; return next }
	var ops []coretest.Op
	add := func(h core.Holder, ev event.Event) {
		ops = append(ops, coretest.Op{Holder: h, Count: count, Event: ev})
	}
	h, k, w := core.Holder(0), 0, 0
	for len(ops) < n {
		again := r.IntN(8) > 0 // mostly more of the same
		if !again {
			h, w = holders[r.IntN(len(holders))], r.IntN(400)
		}
		of := chains[h]
		if len(of) == 0 || len(of) < 6 && r.IntN(20) == 0 {
			c := &chain{}
			if o := chains[holders[r.IntN(len(holders))]]; len(o) > 0 && r.IntN(2) == 0 { // another's prompt
				k := r.IntN(len(o[0].local) + 1)
				c.engine, c.local = append(c.engine, o[0].engine[:k]...), append(c.local, o[0].local[:k]...)
			}
			for range 1 + r.IntN(40) {
				e := fresh()
				c.engine, c.local = append(c.engine, e), append(c.local, e&^3) // siblings have the same content
			}
			add(h, event.Event{Kind: event.Stored, Engine: c.engine, Local: c.local})
			chains[h] = append(of, c)
			continue
		}
		if !again || k >= len(of) {
			k = r.IntN(len(of))
		}
		c := of[k]
		end := len(c.engine) - 1
		ev := event.Event{Kind: event.Stored, HasParent: true, Parent: c.engine[end]}
		switch {
		case w < 220:
			e := fresh()
			l := e
			switch r.IntN(60) {
			case 0: // a hash that means something already
				e = c.engine[r.IntN(len(c.engine))]
			case 1: // a hash that means something to somebody
				if o := chains[holders[r.IntN(len(holders))]]; len(o) > 0 {
					e = o[0].engine[r.IntN(len(o[0].engine))]
				}
			case 2: // what all go on with
				l = 7
			case 3:
				ev.Parent = c.engine[r.IntN(len(c.engine))]
			}
			ev.Engine, ev.Local = []uint64{e}, []uint64{l}
			add(h, ev)
			c.engine, c.local = append(c.engine, e), append(c.local, l)
		case w < 388:
			add(h, event.Event{Kind: event.Removed, Engine: []uint64{c.engine[end]}})
			if c.engine, c.local = c.engine[:end], c.local[:end]; end == 0 {
				chains[h] = append(of[:k:k], of[k+1:]...)
			}
		case r.IntN(6) > 0: // the rest is seldom
			w = r.IntN(388)
		case w < 391:
			add(h, event.Event{Kind: event.Removed, Engine: []uint64{c.engine[r.IntN(len(c.engine))]}})
		case w < 393: // by hash alone, on a lower tier
			add(h, event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: []uint64{c.engine[r.IntN(len(c.engine))]}})
		case w < 395:
			add(h, event.Event{Kind: event.Removed, Tier: event.HostPinned, Engine: []uint64{c.engine[end]}})
		case w < 398: // again
			ev.Parent = c.engine[max(end-1, 0)]
			ev.Engine, ev.Local = c.engine[end:], c.local[end:]
			add(h, ev)
		default:
			add(h, event.Event{Kind: event.Cleared, AllTiers: true})
			chains[h] = nil
		}
	}
	return ops
}

func TestOneBlockAtATime(t *testing.T) {
	seeds := uint64(8)
	if race.Enabled { // one goroutine does all
		seeds = 1
	}
	for seed := range seeds {
		ops := generating(seed, 300)
		if at, err := coretest.Check(newRadix, ops, 50); err != nil {
			t.Fatalf("seed %d, operation %d, %s: %v", seed, at, ops[at].String(), err)
		}
		if at, err := coretest.Check(func() core.Index { return newReborn(&tempers[0], seed) }, ops, len(ops)); err != nil {
			t.Fatalf("cut, seed %d, operation %d, %s: %v", seed, at, ops[at].String(), err)
		}
		x, atOnce := core.NewRadix(core.Options{}), 0
		for i := range ops {
			if x.AtOnce(ops[i].Holder, &ops[i].Event) {
				atOnce++
			} else {
				ops[i].Apply(x)
			}
			if err := x.Check(); i%50 == 0 && err != nil {
				t.Fatalf("seed %d, operation %d, %s: %v", seed, i, ops[i].String(), err)
			}
		}
		if atOnce < len(ops)/5 {
			t.Fatalf("seed %d: %d of %d blocks were stored or removed at once: it tests nothing", seed, atOnce, len(ops))
		}
	}
}

// TestOrdinaryEndsAreDoneAtOnce: one block at the end of a run takes the short way in the
// ordinary case, and in that alone.
func TestOrdinaryEndsAreDoneAtOnce(t *testing.T) {
	prompt := chain(100, 40)
	stored := func(engine, local []uint64) event.Event {
		return event.Event{Kind: event.Stored, Engine: engine, Local: local}
	}
	after := func(parent, engine, local uint64) event.Event {
		return event.Event{Kind: event.Stored, HasParent: true, Parent: parent, Engine: []uint64{engine}, Local: []uint64{local}}
	}
	removed := func(engine ...uint64) event.Event { return event.Event{Kind: event.Removed, Engine: engine} }
	host := func(engine ...uint64) event.Event {
		return event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: engine}
	}
	branch := func(e uint64) event.Event { return stored(append(chain(100, 41), e), append(chain(100, 41), e)) }
	long, back, more := after(140, 1000, 1000), removed(), chain(100, 41)
	long.Engine, long.Local = chain(1000, 400), chain(1000, 400)
	for i := range uint64(400) {
		back.Engine = append(back.Engine, 1399-i)
	}
	type op struct {
		h  core.Holder
		ev event.Event
	}
	many := func(n core.Holder, blocks []uint64) (ops []op) {
		for h := range n {
			ops = append(ops, op{1 + h, stored(blocks, blocks)})
		}
		return ops
	}
	for _, c := range []struct {
		name   string
		before []op
		ev     event.Event
		want   bool
	}{
		{"appended", []op{{0, after(139, 140, 140)}}, after(140, 141, 141), true},
		{"removed", []op{{0, removed(139)}}, removed(138), true},
		{"beside one who has less", []op{{1, stored(prompt[:9], prompt[:9])}, {0, after(139, 140, 140)}}, after(140, 141, 141), true},
		{"removed beside one who has less", []op{{1, stored(prompt[:9], prompt[:9])}, {0, removed(139)}}, removed(138), true},
		{"appended beside several who have less", []op{{1, stored(prompt[:9], prompt[:9])}, {2, stored(prompt[:9], prompt[:9])}, {0, after(139, 140, 140)}},
			after(140, 141, 141), true},
		{"removed beside several who have less", []op{{1, stored(prompt[:9], prompt[:9])}, {2, stored(prompt[:9], prompt[:9])}, {0, removed(139)}},
			removed(138), true},
		{"beside so many that they are a wide table", append(many(20, prompt[:9]), op{0, after(139, 140, 140)}), after(140, 141, 141), false},
		{"where there is no room", nil, after(139, 140, 140), true},
		{"removed where others have more", []op{{1, stored(more, more)}, {2, stored(more, more)}, {0, removed(139)}}, removed(138), true},
		{"removed where a branch is behind", []op{{1, stored(more, more)}, {1, branch(150)}, {0, removed(139)}}, removed(138), true},
		{"removed where its own branch is behind", []op{{0, after(130, 300, 300)}, {0, removed(139, 138, 137, 136, 135, 134, 133, 132, 131, 130)}}, removed(129), true},
		{"removed among several ends", []op{{1, stored(prompt[:39], prompt[:39])}, {2, stored(prompt[:9], prompt[:9])}, {0, removed(139)}}, removed(138), false},
		{"known elsewhere", []op{{0, after(139, 140, 140)}, {0, stored(chain(900, 1), chain(900, 1))}}, after(140, 900, 141), false},
		{"content that is there", []op{{0, after(139, 140, 140)}, {0, long}, {1, branch(150)}, {1, branch(160)}, {0, back}, {0, after(139, 140, 140)}},
			after(140, 500, 150), false},
		{"its end another's by now", []op{{0, after(139, 140, 140)}, {0, removed(140)}, {0, after(139, 141, 141)}}, after(140, 142, 142), false},
		{"the end of many", []op{{0, after(139, 140, 140)}, {1, stored(more, more)}, {2, stored(more, more)}, {0, after(139, 140, 140)}, {0, removed(140)}},
			after(140, 141, 141), false},
		{"where readers may look", []op{{0, after(139, 140, 140)}, {0, after(139, 140, 140)}, {0, after(140, 141, 141)}, {0, removed(141)}}, after(140, 142, 142), false},
		{"where readers looked before", []op{{0, after(139, 140, 140)}, {0, after(140, 141, 141)}, {0, removed(141)}, {0, stored(chain(140, 1), chain(140, 1))},
			{0, after(139, 142, 142)}, {0, after(138, 139, 139)}, {0, removed(142)}}, after(139, 143, 143), false},
		{"inferred", []op{{1, stored(more, more)}, {0, after(139, 140, 140)}, {1, after(140, 141, 141)}, {1, after(141, 142, 142)}, {0, event.Event{Parent: 142}},
			{1, event.Event{Kind: event.Cleared, AllTiers: true}}, {0, removed(142)}}, removed(141), false},
		{"not the end", []op{{0, after(139, 140, 140)}, {0, after(140, 141, 141)}, {0, after(120, 200, 200)}}, after(140, 201, 201), false},
		{"with a hole", []op{{0, after(139, 140, 140)}, {0, removed(110)}}, after(140, 141, 141), false},
		{"on a lower tier", []op{{0, after(139, 140, 140)}, {0, host(110)}}, after(140, 141, 141), false},
		{"removed below a hole", []op{{0, removed(110)}, {0, removed(139)}}, removed(138), false},
		{"another has it", []op{{1, stored(prompt[:39], prompt[:39])}, {0, removed(139)}}, removed(138), false},
		{"something hangs on it", []op{{0, after(138, 300, 300)}, {0, removed(139)}}, removed(138), false},
		{"another's hash", []op{{0, removed(139)}}, removed(999), false},
		{"held elsewhere", []op{{0, removed(139)}}, removed(137), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, o := core.NewRadix(core.Options{}), core.NewOracle()
			for _, op := range append([]op{{0, stored(prompt, prompt)}}, c.before...) {
				for _, index := range []core.Index{x, o} {
					switch op.ev.Kind {
					case event.Stored:
						index.Store(op.h, &op.ev, false)
					case event.Removed:
						index.Remove(op.h, &op.ev, false)
					case event.Cleared:
						index.Clear(op.h, op.ev.Tier, op.ev.AllTiers)
					default:
						index.Infer(op.h, 1, op.ev.Parent)
					}
				}
			}
			got := x.AtOnce(0, &c.ev)
			if got != c.want {
				t.Fatalf("done at once: %v", got)
			}
			if c.ev.Kind == event.Stored {
				o.Store(0, &c.ev, false)
				if !got {
					x.Store(0, &c.ev, false)
				}
			} else {
				o.Remove(0, &c.ev, false)
				if !got {
					x.Remove(0, &c.ev, false)
				}
			}
			id := func(h core.Holder) (uint64, uint32) { return uint64(h), 0 }
			if x.Digest(1, id) != o.Digest(1, id) {
				t.Error("not what the reference holds")
			}
			if x.Inferred(0) != o.Inferred(0) {
				t.Errorf("%d inferred, want %d", x.Inferred(0), o.Inferred(0))
			}
			if err := x.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLooseRunsAreLookedAt: a removal from a run that may have more than is of need is not done at once, as it
// is to give that back.
func TestLooseRunsAreLookedAt(t *testing.T) {
	x := core.NewRadix(core.Options{})
	c := chain(1, 40)
	for h, n := range []int{40, 30} {
		x.Store(core.Holder(h), &event.Event{Kind: event.Stored, Engine: c[:n], Local: c[:n]}, false)
	}
	removed := func(i int) *event.Event { return &event.Event{Kind: event.Removed, Engine: c[i : i+1]} }
	for i, loose := range []bool{true, false} {
		x.Remove(1, removed(29-3*i), false)
		if loose {
			x.Loosen(c[0])
		}
		if x.AtOnce(1, removed(28-3*i)) == loose {
			t.Errorf("loose: %v, done at once: %v", loose, loose)
		}
		if loose {
			x.Remove(1, removed(28), false)
		}
		x.Remove(1, removed(27-3*i), false)
		if x.Loose() != 0 || x.Held(1, event.Device) != 27-3*i {
			t.Errorf("%d loose runs, %d blocks held", x.Loose(), x.Held(1, event.Device))
		}
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestEndsGiveBack: what is removed one at a time gives content and segments back.
func TestEndsGiveBack(t *testing.T) {
	x := core.NewRadix(core.Options{})
	c := chain(1, 1000)
	x.Store(0, &event.Event{Kind: event.Stored, Engine: c, Local: c}, false)
	all := x.Memory().Content
	for i := 999; i >= 10; i-- {
		x.Remove(0, &event.Event{Kind: event.Removed, Engine: c[i : i+1]}, false)
	}
	if now := x.Memory().Content; now > all/30 || x.Segments() != 1 {
		t.Errorf("10 of 1,000 blocks have %d bytes of content, of %d, and %d segments", now, all, x.Segments())
	}
}

// TestNoEndBeyondTheBudget: what the budget does not grant is refused, one block as well.
func TestNoEndBeyondTheBudget(t *testing.T) {
	granted := true
	x := core.NewRadix(core.Options{Budget: 1 << 40, Share: func(have, _, _ int64) (int64, bool) { return have, granted }})
	x.Store(0, &event.Event{Kind: event.Stored, Engine: chain(1, 41), Local: chain(1, 41)}, false)
	next := func(e uint64) *event.Event {
		return &event.Event{Kind: event.Stored, HasParent: true, Parent: e - 1, Engine: []uint64{e}, Local: []uint64{e}}
	}
	if out := x.Store(0, next(42), false); out.Stored != 1 {
		t.Fatalf("%+v", out)
	}
	granted = false
	if x.AtOnce(0, next(43)) {
		t.Fatal("stored at once")
	}
	if out := x.Store(0, next(43), false); out.Refused != 1 {
		t.Fatalf("%+v", out)
	}
}

// TestALateJoinIsLessThanASegmentLate: a run that removals of one block make short enough to be joined to its
// parent is joined before it has lost another segment, so that nobody keeps many runs that were to be one.
func TestALateJoinIsLessThanASegmentLate(t *testing.T) {
	const segment = 16
	for _, n := range []int{1024, 1025, 1030, 1039, 1040, 1041} {
		x := core.NewRadix(core.Options{})
		prompt, a, b := chain(10_000, n), chain(20_000, n+40), chain(30_000, n+40)
		const holders = 5 // too many to swap a and b
		for h := range core.Holder(holders) {
			blocks := append(append([]uint64(nil), prompt...), a...)
			x.Store(h, &event.Event{Kind: event.Stored, Engine: blocks, Local: blocks}, false)
		}
		blocks := append(append([]uint64(nil), prompt...), b...)
		x.Store(0, &event.Event{Kind: event.Stored, Engine: blocks, Local: blocks}, false)
		for h := range core.Holder(holders) {
			x.Remove(h, &event.Event{Kind: event.Removed, Engine: a}, false)
		}
		if got := x.Runs(); got != 2 {
			t.Fatalf("prompt of %d: %d runs before, want 2", n, got)
		}
		joined := 0
		for left := len(b) - 1; left > 900; left-- {
			x.Remove(0, &event.Event{Kind: event.Removed, Engine: b[left : left+1]}, false)
			if joined == 0 && x.Runs() == 1 {
				joined = left
			}
		}
		if joined > n || joined <= n-segment {
			t.Errorf("prompt of %d: joined when %d blocks were left", n, joined)
		}
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
}
