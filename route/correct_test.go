package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
)

func always() bool { return true }

// serveFound chooses for a prompt, has the engine report what it found, and ends the request.
func serveFound(t *testing.T, r *Router, id string, local []uint64, found func(a *Answer) int) (Answer, Account) {
	t.Helper()
	a := best(t, r, Prompt{Local: local}, Options{RequestID: id})
	said, ok := r.Reported(id, Whole, Prompt{Local: local}, Usage{Prompt: len(local) * testBlock, Cached: found(&a)})
	if !ok {
		t.Fatal("it was not looked up")
	}
	r.Free(id)
	return a, said
}

// TestCorrection: engines of a model with caches that are not indexed find half of what the
// index has. Once some have said so half is expected, which decides choices, and those say that
// it is an estimate.
func TestCorrection(t *testing.T) {
	const blocks = 100
	r, space, _ := open(t, func(c *Config) { c.Estimated = always }, workers(2)...)
	chain := prompt(blocks)
	store(t, space, 1, 0, event.Device, chain...)
	busy := func(id string) Answer { // 1 has as much to compute as 60 blocks
		t.Helper()
		if err := r.Reserve(Reservation{RequestID: "load", Rank: a1(1), PromptTokens: 60 * testBlock, NewTokens: 60 * testBlock}); err != nil {
			t.Fatal(err)
		}
		defer r.Free("load")
		return best(t, r, Prompt{Local: chain}, Options{RequestID: id})
	}
	if a := busy("before"); a.Worker != 1 || a.Account.Selected != blocks*testBlock || !a.Account.Estimated {
		t.Errorf("before anything was reported: %+v", a.Account)
	}
	r.Free("before")
	var last Account
	for i := range 3 * correctAfter {
		_, last = serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int { return blocks / 2 * testBlock })
	}
	if last.Selected != blocks/2*testBlock || last.Reachable != last.Selected || last.Miss != account.NoMiss || !last.Estimated {
		t.Errorf("half was found each time, and now %+v", last)
	}
	if a := busy("after"); a.Worker != 2 {
		t.Errorf("the rest is cheaper at 2, which was not chosen: %+v", a.Candidate)
	}
	r.Free("after")
	for i := range 8 * correctOver { // other prompts, of which all is found
		_, last = serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int { return blocks * testBlock })
	}
	if last.Selected < (blocks-1)*testBlock {
		t.Errorf("all was found, and expected are %d", last.Selected)
	}
}

// TestCorrectionFromNothing: a bound of which nothing is reused teaches on, so that it
// comes back.
func TestCorrectionFromNothing(t *testing.T) {
	r, space, _ := open(t, func(c *Config) { c.Estimated = always }, workers(1)...)
	chain := prompt(10)
	store(t, space, 1, 0, event.Device, chain...)
	found := 0
	var a Answer
	for i := range 8 * correctOver {
		a, _ = serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int { return found })
		if i == correctAfter {
			if a.Account.Selected != 0 {
				t.Errorf("nothing is found, and expected are %d", a.Account.Selected)
			}
			found = 10 * testBlock
		}
	}
	if a.Account.Selected < 9*testBlock {
		t.Errorf("all is found, and expected are %d", a.Account.Selected)
	}
}

// TestCorrectionOfEvictions: that blocks went after the choice is no property of the model.
func TestCorrectionOfEvictions(t *testing.T) {
	r, space, c := open(t, func(c *Config) { c.Estimated = always }, workers(1)...)
	chain := prompt(20)
	for i := range 2 * correctAfter {
		store(t, space, 1, 0, event.Device, chain...)
		_, said := serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int {
			c.add(time.Second)
			lose(t, space, 1, c.Now(), chain...)
			return 0
		})
		if said.Miss != account.Evicted || said.Selected != 20*testBlock {
			t.Fatalf("%+v", said)
		}
	}
}

// TestCorrectionIsBounded: whatever is reported.
func TestCorrectionIsBounded(t *testing.T) {
	var c correction
	rnd := rand.New(rand.NewPCG(20, 1))
	for i := range 10_000 {
		if part := c.part(); part < 0 || part > 1 || i < correctAfter && part != 1 {
			t.Fatalf("after %d reports %v", i, part)
		}
		c.learn(1+rnd.IntN(1<<20), rnd.IntN(1<<22)-1<<20)
	}
}

// TestCorrectionOfOthers: where depths are no bounds choices are the same, whatever engines
// report; and nothing is called an estimate.
func TestCorrectionOfOthers(t *testing.T) {
	for _, mode := range []string{"auto", "kv"} {
		plain, s1, _ := open(t, func(c *Config) { c.Settings.Mode = mode; c.Settings.Seed = 7 }, workers(4)...)
		asked, s2, _ := open(t, func(c *Config) {
			c.Settings.Mode, c.Settings.Seed, c.Estimated = mode, 7, func() bool { return false }
		}, workers(4)...)
		rnd := rand.New(rand.NewPCG(20, 2))
		for i := range 300 {
			at, n := 1+rnd.Uint64N(4), 1+rnd.IntN(30)
			store(t, s1, at, 0, event.Device, prompt(n)...)
			store(t, s2, at, 0, event.Device, prompt(n)...)
			id, local := fmt.Sprint(i), prompt(30)
			half := func(a *Answer) int { return a.CachedTokens / 2 }
			a, first := serveFound(t, plain, id, local, half)
			b, second := serveFound(t, asked, id, local, half)
			if a.Worker != b.Worker || first != second || second.Estimated {
				t.Fatalf("%s, choice %d: %+v with %+v, %+v with %+v", mode, i, a.Candidate, first, b.Candidate, second)
			}
		}
	}
}

// TestPotentialLoadsAreEstimated: what each rank would have to compute is reckoned as for a choice, whatever prompt was chosen
// for before.
func TestPotentialLoadsAreEstimated(t *testing.T) {
	estimated := true
	r, space, _ := open(t, func(c *Config) { c.Estimated = func() bool { return estimated } }, workers(1)...)
	chain := prompt(100)
	store(t, space, 1, 0, event.Device, chain...)
	for i := range correctAfter {
		serveFound(t, r, fmt.Sprint(i), chain, func(*Answer) int { return 50 * testBlock })
	}
	for _, before := range []bool{true, false} {
		estimated = before
		best(t, r, Prompt{Local: chain}, Options{})
		estimated = true
		loads, err := r.PotentialLoads(t.Context(), Prompt{Local: chain}, Options{})
		if err != nil || loads[0].PrefillTokens != 50*testBlock {
			t.Errorf("after a choice that was estimated %v: %+v, %v", before, loads, err)
		}
	}
}
