package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// TestContradictions: an engine finds a quarter of what the index has, and nothing explains it. Then
// a quarter is counted on, and somebody is asked once to read the rank anew; once that is done all
// counts again. A rank whose engine finds what the index has is never doubted.
func TestContradictions(t *testing.T) {
	const blocks = 40
	var asked []shard.RankID
	r, space, _ := open(t, func(c *Config) {
		c.Doubted = func(id shard.RankID) { asked = append(asked, id) }
	}, workers(2)...)
	chain, other := prompt(blocks), otherPrompt(blocks)
	store(t, space, 1, 0, event.Device, chain...)
	store(t, space, 2, 0, event.Device, other...)
	var last Account
	for i := range 2 * correctAfter {
		if _, said := serveFound(t, r, fmt.Sprint("b", i), other, func(*Answer) int { return blocks * testBlock }); said.Selected != blocks*testBlock {
			t.Fatalf("of a rank that nobody doubts %d tokens are counted on", said.Selected)
		}
		_, last = serveFound(t, r, fmt.Sprint("a", i), chain, func(*Answer) int { return blocks / 4 * testBlock })
	}
	if want := blocks / 4 * testBlock; last.Selected != want || last.Miss != account.Unknown {
		t.Errorf("%d tokens are counted on, want %d: %+v", last.Selected, want, last)
	}
	if !slices.Equal(asked, []shard.RankID{a1(1)}) {
		t.Errorf("asked to read anew: %v", asked)
	}
	if s := r.Stats(); s.Doubted != 1 || s.Contradicted != 2*correctAfter {
		t.Errorf("%+v", s)
	}
	if err := space.RemoveWorker(t.Context(), 1); err != nil { // and what it has is read anew
		t.Fatal(err)
	}
	store(t, space, 1, 0, event.Device, chain...)
	if a := best(t, r, Prompt{Local: chain}, Options{}); a.Worker != 1 || a.CachedTokens != blocks*testBlock {
		t.Errorf("after it was read anew: %+v", a.Candidate)
	}
}

// TestContradictionsGoOn: a rank that is contradicted still is read anew again, later and later; and
// one whose engine finds what the index has again is believed, with nothing read.
func TestContradictionsGoOn(t *testing.T) {
	const blocks = 40
	asked := 0
	r, space, c := open(t, func(c *Config) { c.Doubted = func(shard.RankID) { asked++ } }, workers(1)...)
	chain := prompt(blocks)
	store(t, space, 1, 0, event.Device, chain...)
	serve := func(n, found int) (last Account) {
		for range n {
			c.add(time.Second)
			_, last = serveFound(t, r, "x", chain, func(*Answer) int { return found })
		}
		return last
	}
	serve(1, testBlock) // it counts
	serve(3600, 0)
	if asked < 5 || asked > 12 {
		t.Errorf("asked %d times in an hour", asked)
	}
	before := asked
	if last := serve(20*correctOver, blocks*testBlock); last.Selected != blocks*testBlock || asked > before+1 {
		t.Errorf("%d tokens are counted on, and it was asked %d times more", last.Selected, asked-before)
	}
}

// TestMoreThanTheIndexHas: that an engine finds what the index lacks is a contradiction, too, and
// nothing is counted on for it.
func TestMoreThanTheIndexHas(t *testing.T) {
	asked := 0
	r, _, _ := open(t, func(c *Config) { c.Doubted = func(shard.RankID) { asked++ } }, workers(1)...)
	for i := range 2 * correctAfter {
		if a, _ := serveFound(t, r, fmt.Sprint(i), prompt(20), func(*Answer) int { return 20 * testBlock }); a.CachedTokens != 0 {
			t.Fatalf("%d tokens are counted on", a.CachedTokens)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestExplainedIsNoContradiction: blocks that went after the choice, with the setting on; and with it
// off nothing is.
func TestExplainedIsNoContradiction(t *testing.T) {
	for _, on := range []bool{true, false} {
		asked := 0
		r, space, c := open(t, func(c *Config) { c.Settings.Doubt, c.Doubted = on, func(shard.RankID) { asked++ } }, workers(1)...)
		chain := prompt(20)
		for i := range 3 * correctAfter {
			store(t, space, 1, 0, event.Device, chain...)
			serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int {
				if on {
					c.add(time.Second)
					lose(t, space, 1, c.Now(), chain...)
				}
				return 0
			})
		}
		if n := r.Stats().Contradicted; asked != 0 || n != 0 {
			t.Errorf("doubt %v: asked %d times, %d reports", on, asked, n)
		}
	}
}

// TestBeliefIsBounded: whatever is reported.
func TestBeliefIsBounded(t *testing.T) {
	var b belief
	rnd := rand.New(rand.NewPCG(18, 1))
	for range 10_000 {
		b.learn(rnd.IntN(1<<20), rnd.IntN(1<<20), 16)
		if part := b.part(); !(part >= 0 && part <= 1) || !(b.off <= b.all) {
			t.Fatalf("%+v", b)
		}
	}
}

// contradicted is one worker of which the index has a prompt, and whose publisher answers whoever
// asks: all is read anew, in vain, and believed anew with that.
type contradicted struct {
	*Router
	t     *testing.T
	clock *clock
	chain []uint64
	asked int
}

func newContradicted(t *testing.T, tier event.Tier, change func(*Config)) *contradicted {
	x := &contradicted{t: t, chain: prompt(40)}
	var space *shard.Space
	x.Router, space, x.clock = open(t, func(c *Config) {
		c.Doubted = func(shard.RankID) {
			x.asked++
			if err := space.RemoveWorker(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			store(t, space, 1, 0, tier, x.chain...)
		}
		if change != nil {
			change(c)
		}
	}, workers(1)...)
	store(t, space, 1, 0, tier, x.chain...)
	return x
}

// serve has so many requests, one a second, of each of which the engine finds so many tokens.
func (x *contradicted) serve(n int, found func(i int) int) (last Account) {
	for i := range n {
		x.clock.add(time.Second)
		_, last = serveFound(x.t, x.Router, fmt.Sprint(i), x.chain, func(*Answer) int { return found(i) })
	}
	return last
}

// TestToReadAnewInVain: what is read anew is believed anew, but is not asked for more often for that.
func TestToReadAnewInVain(t *testing.T) {
	const all = 40 * testBlock
	for name, found := range map[string]func(i int) int{
		"next to nothing": func(i int) int { return all / 8 },
		"in turns":        func(i int) int { return i / 20 % 2 * all },
	} {
		x := newContradicted(t, event.Device, nil)
		x.serve(3600, found)
		if x.asked < 5 || x.asked > 30 {
			t.Errorf("%s: asked %d times in an hour", name, x.asked)
		}
	}
}

// TestFoundInStorageWithoutCredit: what the index has of a tier that counts nothing in a choice is no
// contradiction where the engine finds it, on whichever rank the index has it.
func TestFoundInStorageWithoutCredit(t *testing.T) {
	x := newContradicted(t, event.External, nil)
	last := x.serve(100, func(int) int { return 40 * testBlock })
	if n := x.Stats().Contradicted; n != 0 || x.asked != 0 || last.Selected != 0 || last.Miss != account.Stored {
		t.Errorf("%d reports, asked %d times: %+v", n, x.asked, last)
	}
	r, space, _ := open(t, nil, workers(2)...)
	store(t, space, 2, 0, event.External, x.chain...)
	for i := range 2 * correctAfter {
		a, said := serveFound(t, r, fmt.Sprint(i), x.chain, func(*Answer) int { return 40 * testBlock })
		if a.Worker == 1 && said.Miss != account.Stored {
			t.Errorf("%+v", said)
		}
	}
}

// TestALieIsBounded: an engine finds no more than the prompt, whatever it says; so one report that
// nobody can believe does not outweigh all others.
func TestALieIsBounded(t *testing.T) {
	const all = 40 * testBlock
	x := newContradicted(t, event.Device, nil)
	x.serve(100, func(i int) int {
		if i == 20 {
			return 1 << 30
		}
		return all
	})
	if x.asked != 0 || x.Stats().Contradicted != 0 {
		t.Errorf("asked %d times, %+v", x.asked, x.Stats())
	}
}

// TestAnEngineThatCountsNothing: one that always says 0 may not count, and is not believed more than
// the index.
func TestAnEngineThatCountsNothing(t *testing.T) {
	x := newContradicted(t, event.Device, nil)
	if last := x.serve(100, func(i int) int { return 0 }); x.asked != 0 || last.Selected != 40*testBlock {
		t.Errorf("asked %d times, %+v", x.asked, last)
	}
}

// TestDoubtGrowsOld: a rank that counts for little, and so gets no requests that could tell whether it
// still should, counts whole after a while, until the next report.
func TestDoubtGrowsOld(t *testing.T) {
	const all = 40 * testBlock
	x := newContradicted(t, event.Device, nil)
	x.cfg.Doubted = nil
	if last := x.serve(100, func(i int) int { return all / 8 }); last.Selected > all/8 {
		t.Fatalf("%+v", last)
	}
	x.clock.add(time.Hour)
	if last := x.serve(1, func(i int) int { return all / 8 }); last.Selected != all {
		t.Errorf("%+v", last)
	}
	if last := x.serve(1, func(i int) int { return all / 8 }); last.Selected > all/8 {
		t.Errorf("%+v", last)
	}
}

// TestDoubtOfAnEstimate: of a model whose caches turn out to be more than are indexed, what is left of
// depths is learnt in another way, and not taken off twice.
func TestDoubtOfAnEstimate(t *testing.T) {
	const all = 40 * testBlock
	hybrid := false
	x := newContradicted(t, event.Device, func(c *Config) { c.Estimated = func() bool { return hybrid } })
	x.cfg.Doubted = nil
	x.serve(100, func(i int) int { return all / 2 })
	hybrid = true
	if last := x.serve(10*correctOver, func(i int) int { return all / 2 }); last.Selected < all/2-testBlock {
		t.Errorf("%+v", last)
	}
}

func otherPrompt(n int) []uint64 {
	p := prompt(n)
	for i := range p {
		p[i] += 1 << 40
	}
	return p
}
