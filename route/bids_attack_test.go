package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// waiting is another router's word of a request that waits for rank 1, and came so long ago.
func waiting(owner uint64, id string, since time.Duration, tokens int) load.Change {
	return load.Change{
		Kind: load.Sought, Key: load.Key{Owner: owner, ID: id}, Held: true, Waited: since,
		Request: load.Request{PromptTokens: tokens}, Ranks: []load.Want{{Rank: shard.RankID{Worker: 1}, NewTokens: tokens}},
	}
}

// TestALongQueueElsewhereHearsOthers: however many requests wait at a second router, and however large it says that they are,
// what waits at a third one is heard of. Of each as much is kept as there is room for, and of those with most the last.
func TestALongQueueElsewhereHearsOthers(t *testing.T) {
	m := meet(t, 3, 1)
	r := m.routers[0]
	m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
	for i := range 2 * maxBids {
		r.Apply(waiting(2, fmt.Sprint(i), 0, 1<<20+i))
	}
	r.Apply(waiting(3, "first", time.Minute, 200))
	own := Prompt{Local: numbers(20_000, 500)}
	if _, later := m.at(t, 0, "own", own); !later {
		t.Fatal("it does not wait behind a long prompt")
	}
	r.Free("ahead")
	if _, later := m.at(t, 0, "own", own); !later {
		t.Error("it does not wait for one of a third router that has waited longer, as a second one has many")
	}
	counts := map[uint64]int{}
	for i := range r.bids.open {
		o := &r.bids.open[i]
		counts[o.Key.Owner]++
		if o.Key.Owner == 2 && o.shortest >= 1<<20+maxBids {
			t.Fatalf("of one router's the last are kept, such as %d of %d", o.shortest-1<<20, maxBids)
		}
	}
	if counts[3] != 1 || counts[2] != maxBids-1 {
		t.Errorf("bids kept of each router: %v", counts)
	}
	for i := range 2 * maxBids { // the third one comes to have as many
		r.Apply(waiting(3, fmt.Sprint(i), 0, 1<<20+i))
	}
	clear(counts)
	for i := range r.bids.open {
		counts[r.bids.open[i].Key.Owner]++
	}
	if counts[2] != maxBids/2 || counts[3] != maxBids/2 {
		t.Errorf("bids kept of each router: %v", counts)
	}
}

// TestBidsOfWhoIsGone: nobody waits for the requests of a router that is gone, nor a second time for one whose booking
// came with all others of its router.
func TestBidsOfWhoIsGone(t *testing.T) {
	for name, end := range map[string]func(r *Router){
		"gone": func(r *Router) { r.DropOwner(2) },
		"booked and told of with all others": func(r *Router) {
			r.Replace(2, func(yield func(load.Change) bool) {
				yield(load.Change{Kind: load.Added, Key: load.Key{Owner: 2, ID: "other"}, Rank: shard.RankID{Worker: 1}, Request: load.Request{Prefilled: true}})
			})
		},
	} {
		m := meet(t, 3, 1)
		r := m.routers[0]
		r.Apply(waiting(3, "third", 0, 100))
		r.Apply(waiting(2, "other", time.Minute, 1<<20))
		if end(r); len(r.bids.open) != 1 || r.bids.open[0].Key.Owner != 3 {
			t.Errorf("%s: %d bids are kept", name, len(r.bids.open))
		}
	}
}

// TestNarrowChoices: another router's request is expected where it goes, not where one that may go to few ranks only does.
func TestNarrowChoices(t *testing.T) {
	m := meet(t, 2, 2)
	m.routers[0].Apply(load.Change{
		Kind: load.Sought, Key: load.Key{Owner: 2, ID: "other"}, Request: load.Request{PromptTokens: 4000},
		Ranks: []load.Want{{Rank: shard.RankID{Worker: 1}, NewTokens: 100}, {Rank: shard.RankID{Worker: 2}, NewTokens: 4000}},
	})
	o := Options{RequestID: "own", Allowed: []uint64{2}, Patient: true, Settled: true}
	if _, err := m.routers[0].BestWorker(t.Context(), Prompt{Local: numbers(20_000, 300)}, o); err != nil {
		t.Errorf("it waits for another router's request, which goes to another rank: %v", err)
	}
}

// TestOneClaimIsNoCrowd: however large another router says that one request is, requests here are put off for no longer than for the
// largest that is plausible; what is below 0 makes no room for others'.
func TestOneClaimIsNoCrowd(t *testing.T) {
	for name, say := range map[string]func(tokens int) load.Change{
		"placed": func(tokens int) load.Change {
			return load.Change{Kind: load.Added, Request: load.Request{NewTokens: tokens, Prefilled: true}}
		},
		"a bid": func(tokens int) load.Change {
			c := waiting(0, "", 0, tokens)
			c.Held = false
			return c
		},
	} {
		// putOff has others claim so much at one moment with an own choice, and returns how many of the next would be put off.
		putOff := func(tokens ...int) (n int) {
			m := meet(t, 2, 2)
			one := 0 // of whom rank 1, which has the beginning of the prompts, is not
			for i, r := range m.routers {
				m.at(t, i, "own", Prompt{Local: numbers(5000, 10)})
				r.Free("own")
				if r.member(a1(1)).others {
					one = i
				}
			}
			r, other := m.routers[one], m.routers[1-one].cfg.ID
			for i, claim := range tokens {
				c := say(claim)
				c.Key.Owner, c.Key.ID = other, fmt.Sprint("claim", i)
				r.Apply(c)
				r.Apply(load.Change{Kind: load.Freed, Key: c.Key})
			}
			for i := range 2000 {
				m.now = m.now.Add(time.Second) // nothing comes at one moment
				before := r.Stats().Settled
				id := fmt.Sprint(i)
				_, later := m.at(t, one, id, Prompt{Local: append(numbers(1, 100), numbers(10_000+100*i, 10)...)})
				n += int(r.Stats().Settled - before)
				if !later {
					r.Free(id)
				}
			}
			return n
		}
		usual := int(newSpeeds().prompt)
		most, claimed := putOff(crowdPrompts*usual), putOff(load.MaxCount)
		if most == 0 || claimed != most {
			t.Errorf("%s: %d requests are put off for one claim of all tokens that can be claimed, %d for the largest prompt that is plausible", name, claimed, most)
		}
		if less := putOff(-load.MaxCount, crowdPrompts*usual); less != most {
			t.Errorf("%s: %d requests are put off after a claim of less than none, not %d", name, less, most)
		}
	}
}

// TestNoneWaitsForTheOther: of requests that wait at their routers for one rank, whenever they came and however long each word
// takes of the times that it may, one at least goes there when it is idle. Those that came so long after another that no word's
// time hides it wait for that one.
func TestNoneWaitsForTheOther(t *testing.T) {
	const least, most = time.Millisecond, 10 * time.Millisecond
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := meet(t, 2+int(seed%2), 1)
		for _, r := range m.routers {
			r.SetDelay(most, least)
		}
		m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
		m.told()
		apart := time.Duration(rng.Int64N(int64(2 * most)))
		came := make([]time.Time, len(m.routers))
		prompt := func(i int) Prompt { return Prompt{Local: numbers(20_000*(i+1), 300)} }
		try := func(i int) bool {
			o := Options{RequestID: "waits", Patient: true, Waited: m.now.Sub(came[i])}
			_, err := m.routers[i].BestWorker(t.Context(), prompt(i), o)
			return err == nil
		}
		for i := range m.routers {
			if came[i] = m.now; try(i) {
				t.Fatal("it does not wait behind a long prompt")
			}
			words, told := m.words, m.now
			m.words = nil
			for j, r := range m.routers {
				for _, w := range words {
					if m.now = told.Add(least + time.Duration(rng.Int64N(int64(most-least+1)))); i != j {
						r.Apply(w.Change)
					}
				}
			}
			m.now = told.Add(apart)
		}
		m.now = m.now.Add(2 * most)
		m.routers[0].Free("ahead")
		for _, w := range m.words {
			for _, r := range m.routers[1:] {
				r.Apply(w.Change)
			}
		}
		goes := 0
		for i := range m.routers {
			if try(i) {
				goes++
			}
		}
		if goes == 0 {
			t.Fatalf("seed %d: %d requests, each come %v after the last, wait for each other beside an idle rank", seed, len(m.routers), apart)
		}
		if goes > 1 && apart >= most {
			t.Fatalf("seed %d: %d of requests that came %v apart go to one rank at one moment", seed, goes, apart)
		}
	}
}

// TestBidsHaveOneOrder: of three that were put off so shortly after each other that each two count as of one moment, but not
// all three, and the later the shorter, one goes where all have most cached.
func TestBidsHaveOneOrder(t *testing.T) {
	m := meet(t, 4, 4)
	prompts := []Prompt{1: {Local: append(numbers(1, 100), numbers(5000, 90)...)}, 2: {Local: append(numbers(1, 100), numbers(6000, 80)...)}, 3: {Local: append(numbers(1, 100), numbers(7000, 70)...)}}
	begun, due := m.now, make([]time.Time, 4)
	for i := 1; i <= 3; i++ {
		m.routers[i].bids.crowd = 1e6
		m.now = begun.Add(time.Duration(i) * wordTime / 10)
		if a, later := m.at(t, i, "x", prompts[i]); !later || a.Settle == 0 {
			t.Fatalf("router %d has %+v at once", i, a.RankID)
		}
		due[i] = m.now.Add(wordTime)
	}
	for _, w := range m.words {
		for i, r := range m.routers {
			if m.now = due[w.from]; i != w.from {
				r.Apply(w.Change)
			}
		}
	}
	first := 0
	for i := 1; i <= 3; i++ {
		if a, later := m.at(t, i, "x", prompts[i]); !later && a.Worker == 1 {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d of them go where all have most cached", first)
	}
}

// TestOneClaimIsPlausible: however large another router says that one request is which goes first, a rank counts as no busier by it
// than by the largest that is plausible; what is below 0 makes it no idler.
func TestOneClaimIsPlausible(t *testing.T) {
	first := func(tokens int) time.Duration {
		m := meet(t, 2, 1)
		r := m.routers[0]
		if err := r.SetWorker(Worker{ID: 1, Ranks: 1, Role: Prefill}); err != nil {
			t.Fatal(err)
		}
		c := waiting(2, "claim", 24*time.Hour, tokens)
		r.Apply(c)
		a, err := r.BestWorker(t.Context(), Prompt{Local: numbers(1, 100)}, Options{RequestID: "own", Stage: PrefillStage, Patient: true, Settled: true})
		if err != nil {
			t.Fatal(err)
		}
		if a.Prefilling != 1 {
			t.Fatalf("%d requests are expected before it", a.Prefilling)
		}
		return a.First
	}
	usual := int(newSpeeds().prompt)
	if most, claimed := first(crowdPrompts*usual), first(load.MaxCount); claimed != most || most < time.Second {
		t.Errorf("a first token is expected after %v beside a claim of all tokens that can be claimed, %v beside the largest prompt that is plausible", claimed, most)
	}
	if none, claimed := first(0), first(-load.MaxCount); claimed != none {
		t.Errorf("a first token is expected after %v beside a claim of less than none, %v beside none", claimed, none)
	}
}
