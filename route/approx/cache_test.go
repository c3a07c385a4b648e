package approx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

var (
	_ route.Index   = (*Cache)(nil)
	_ route.Learner = (*Cache)(nil)
)

func open(t *testing.T, cfg Config) *Cache {
	t.Helper()
	set := shard.New(shard.Config{})
	t.Cleanup(set.Close)
	space, err := set.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Space = space
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func depths(c *Cache, local []uint64) map[shard.RankID]int {
	if makesRoom(c) { // without, it is the look-up that is to give what it shares something with
		c.giveAll()
	}
	// What was pruned is out of the space once what came after it is done, by all its owners.
	if err := c.cfg.Space.RemoveWorker(context.Background(), math.MaxUint64); err != nil {
		panic(err)
	}
	var r shard.Result
	c.Find(local, &r)
	found := map[shard.RankID]int{}
	r.Each(func(id shard.RankID, d [event.NumTiers]uint32) { found[id] = int(d[0]) })
	return found
}

// makesRoom reports whether the space is yet to be told of blocks that are to go.
func makesRoom(c *Cache) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.open != nil && slices.ContainsFunc(c.mu.open.batches, func(b *event.Batch) bool {
		return slices.ContainsFunc(b.Events, func(ev event.Event) bool { return ev.Kind == event.Removed })
	})
}

// modelBlock is a block of a rank as one would write it on paper: its prefix,
// when it was last used, and its place in the order of uses.
type modelBlock struct {
	rank   shard.RankID
	prefix string
	used   time.Time
	order  int
}

// TestAgainstModel runs random placements over ranks and time, with a bound
// that is often reached, and compares every depth with the model's.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			now := time.Unix(1000, 0)
			const bound = 60
			c := open(t, Config{TTL: time.Minute, MaxBlocks: bound, PruneTarget: 0.5, Now: func() time.Time { return now }})
			var blocks []modelBlock
			order := 0
			prefix := func(local []uint64) string { return fmt.Sprint(local) }
			chain := func() []uint64 {
				local := make([]uint64, 1+rng.IntN(9))
				for i := range local {
					local[i] = rng.Uint64N(2)
				}
				return local
			}
			for step := range 400 {
				now = now.Add(time.Duration(rng.IntN(6)) * time.Second)
				if rng.IntN(30) == 0 {
					now = now.Add(50 * time.Second)
				}
				blocks = slices.DeleteFunc(blocks, func(b modelBlock) bool { return now.Sub(b.used) > time.Minute })
				if rng.IntN(40) == 0 {
					if err := c.RemoveWorker(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
					blocks = slices.DeleteFunc(blocks, func(b modelBlock) bool { return b.rank.Worker == 1 })
				}
				id, local := shard.RankID{Worker: rng.Uint64N(3), DPRank: rng.Uint32N(2)}, chain()
				expired := c.Stats().Expired
				if c.Expire(); c.Stats().Expired > expired && makesRoom(c) {
					t.Fatalf("step %d: what has expired is still in the space", step)
				}
				c.Placed(id, local)
				for i := len(local); i > 0; i-- {
					p := prefix(local[:i])
					blocks = slices.DeleteFunc(blocks, func(b modelBlock) bool { return b.rank == id && b.prefix == p })
					order++
					blocks = append(blocks, modelBlock{id, p, now, order})
				}
				if len(blocks) > bound {
					slices.SortFunc(blocks, func(a, b modelBlock) int { return cmp.Compare(a.order, b.order) })
					blocks = blocks[len(blocks)-bound/2:]
				}
				if got := c.Stats().Blocks; got != len(blocks) {
					t.Fatalf("step %d: %d blocks, want %d", step, got, len(blocks))
				}
				query := chain()
				want := map[shard.RankID]int{}
				for i := range query {
					for _, b := range blocks {
						if b.prefix == prefix(query[:i+1]) && want[b.rank] == i {
							want[b.rank] = i + 1
						}
					}
				}
				got := depths(c, query)
				for id, d := range want {
					if got[id] != d {
						t.Fatalf("step %d: %v gives %v, want %v", step, query, got, want)
					}
				}
				if len(got) != len(want) {
					t.Fatalf("step %d: %v gives %v, want %v", step, query, got, want)
				}
			}
			if s := c.Stats(); s.Pruned == 0 || s.Expired == 0 || s.Failed != 0 {
				t.Errorf("not all was tried: %+v", s)
			}
			now = now.Add(2 * time.Minute)
			if got := depths(c, []uint64{0}); len(got) != 0 || c.Stats().Blocks != 0 || len(c.mu.at) != 0 {
				t.Errorf("when all time is over: %v, %+v", got, c.Stats())
			}
		})
	}
}

// TestRouterLearns: without events, a router sends the same prompt to the same
// worker, until the guess is too old.
func TestRouterLearns(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	c := open(t, Config{Now: clock})
	r, err := route.New(route.Config{BlockSize: 16, Index: c, Settings: route.DefaultSettings(), Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	for w := range uint64(8) {
		if err := r.SetWorker(route.Worker{ID: w}); err != nil {
			t.Fatal(err)
		}
	}
	p := route.Prompt{Local: []uint64{1, 2, 3, 4}}
	choose := func(id string) route.Answer {
		a, err := r.BestWorker(t.Context(), p, route.Options{RequestID: id})
		if err != nil {
			t.Fatal(err)
		}
		r.Free(id)
		return a
	}
	first := choose("a")
	if first.CachedTokens != 0 {
		t.Errorf("nothing was placed, but %d tokens are cached", first.CachedTokens)
	}
	for i := range 5 {
		now = now.Add(100 * time.Second) // each use renews
		if a := choose(fmt.Sprint(i)); a.Worker != first.Worker || a.CachedTokens != 64 {
			t.Errorf("the prompt goes to %d with %d tokens cached, first to %d", a.Worker, a.CachedTokens, first.Worker)
		}
	}
	now = now.Add(121 * time.Second)
	if a := choose("late"); a.CachedTokens != 0 {
		t.Errorf("after the time to live %d tokens count as cached", a.CachedTokens)
	}
}

// No prompt waits until a large part of the index has made room.
func TestPruningIsInSteps(t *testing.T) {
	const bound, target, prompt = 4000, 2000, 20
	c := open(t, Config{MaxBlocks: bound, PruneTarget: 0.5})
	local := make([]uint64, prompt)
	least := bound
	for i, before := 0, 0; i < 1000; i++ {
		for j := range local {
			local[j] = uint64(i*prompt + j)
		}
		c.Placed(shard.RankID{Worker: uint64(i % 4)}, local)
		now := c.Stats().Blocks
		if now > bound || before-now > 100 {
			t.Fatalf("prompt %d: %d blocks after %d", i, now, before)
		}
		if before = now; i > bound/prompt {
			least = min(least, now)
		}
	}
	if least != target || depths(c, local)[shard.RankID{Worker: 3}] != prompt {
		t.Errorf("of %d blocks %d are left at least, want %d; and the last prompt", bound, least, target)
	}
}

// TestTheWallClockIsSet: a guess's age is what has elapsed, whatever the clock is
// set to.
func TestTheWallClockIsSet(t *testing.T) {
	begun := time.Now()
	now := begun
	c := open(t, Config{Now: func() time.Time { return now }})
	local := []uint64{1, 2, 3}
	held := func() int { return depths(c, local)[shard.RankID{}] }
	c.Placed(shard.RankID{}, local)
	for _, set := range []int64{3600, -3600, 1 << 31} {
		if now = clocktest.Set(t, begun.Add(time.Minute), set); held() != 3 {
			t.Fatalf("the clock was set by %d s: %d blocks are left after a minute", set, held())
		}
	}
	for _, set := range []int64{-3600, 0} { // back: it must not live longer either
		if now = clocktest.Set(t, begun.Add(121*time.Second), set); held() != 0 {
			t.Fatalf("the clock was set by %d s: %d blocks are left after the time to live", set, held())
		}
	}
}

func TestConfig(t *testing.T) {
	set := shard.New(shard.Config{})
	defer set.Close()
	space, err := set.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{}, {Space: space, TTL: -1}, {Space: space, MaxBlocks: -1}, {Space: space, PruneTarget: 1.5}} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	c, err := New(Config{Space: space})
	if err != nil || c.cfg.TTL != 2*time.Minute || c.cfg.MaxBlocks != 1048576 || c.cfg.PruneTarget != 0.8 {
		t.Errorf("defaults %+v, %v", c.cfg, err)
	}
}

// A look-up waits for what was noted before it, and not for what it has nothing of: then a
// prompt would wait for each other one that is on its way.
func TestLookUpsWaitForWhatTheyShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Config{})
		first, second := make(chan struct{}), make(chan struct{})
		given := func(applied <-chan struct{}) *bundle {
			b := &bundle{waits: []<-chan struct{}{applied}}
			b.given.Store(true)
			return b
		}
		c.last.Store(&noted{bundle: given(second), at: 2, first: 7, before: &noted{bundle: given(first), at: 0, first: 1}})
		for _, local := range [][]uint64{nil, {2}, {2, 1}, {2, 3, 8}, {2, 3, 8, 7}} {
			depths(c, local)
		}
		for _, x := range []struct {
			local []uint64
			end   chan struct{}
		}{{[]uint64{1, 3}, first}, {[]uint64{2, 3, 7, 9}, second}} {
			found := false
			go func() {
				depths(c, x.local)
				found = true
			}()
			if synctest.Wait(); found {
				t.Errorf("%v is not waited for", x.local)
			}
			close(x.end)
			if synctest.Wait(); !found {
				t.Errorf("%v waits on", x.local)
			}
		}
	})
}

// What is noted is given to the space by several prompts, soon, and before a look-up that shares
// something of it, or whoever reads the space.
func TestBundles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Config{})
		id := func(i int) shard.RankID { return shard.RankID{Worker: uint64(i % 3), DPRank: uint32(i % 2)} }
		next := uint64(100)
		place := func(i int) []uint64 {
			local := []uint64{1, next, next + 1}
			next += 2
			c.Placed(id(i), local)
			return local
		}
		there := func() (blocks int) {
			synctest.Wait()
			for _, r := range c.cfg.Space.Ranks() {
				blocks += r.Held[0]
			}
			return blocks
		}
		local := place(0)
		if n := there(); n != 0 {
			t.Errorf("%d blocks are given at once", n)
		}
		depths(c, []uint64{7, 8})
		if n := there(); n != 0 {
			t.Errorf("%d blocks are given for a look-up that shares nothing", n)
		}
		if d := depths(c, local)[id(0)]; d != 3 || there() != 3 {
			t.Errorf("%d blocks are found, %d given", d, there())
		}
		place(0)
		time.Sleep(bundleFor)
		if n := there(); n != 5 {
			t.Errorf("%d blocks are given in time, want 5", n)
		}
		place(1)
		if n := len(c.Ranks()); n != 2 {
			t.Errorf("%d ranks, want 2", n)
		}
		for range bundleMost { // of one whose first block is there
			place(0)
		}
		if n := there(); n != 8+2*bundleMost {
			t.Errorf("%d blocks are given at once by many, want %d", n, 8+2*bundleMost)
		}
		place(0)
		if err := c.RemoveWorker(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(bundleFor)
		if n := there(); n != 3 {
			t.Errorf("%d blocks are left of the other worker, want 3", n)
		}
	})
}

// What made room counts no longer than it would have without.
func TestWhatMadeRoomExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Unix(1000, 0)
		c := open(t, Config{TTL: time.Minute, MaxBlocks: 4, PruneTarget: 0.5, Now: func() time.Time { return now }})
		first, second := []uint64{1, 2, 3}, []uint64{4, 5}
		c.Placed(shard.RankID{}, first)
		c.giveAll()
		synctest.Wait() // for the space to have it
		now = now.Add(time.Second)
		c.Placed(shard.RankID{}, second)
		if !makesRoom(c) || c.Stats().Pruned != 3 {
			t.Fatalf("%+v, nothing waits to leave the space", c.Stats())
		}
		now = now.Add(time.Minute)
		var r shard.Result
		c.Find(first, &r)
		r.Each(func(shard.RankID, [event.NumTiers]uint32) { t.Error("found when its time is over") })
		if d := depths(c, second); d[shard.RankID{}] != 2 || c.Stats().Expired != 0 {
			t.Errorf("%v is found of the other prompt, %+v", d, c.Stats())
		}
	})
}

// What the space has is not remembered behind what it does not have, nor gone through by look-ups.
func TestWhatTheSpaceHasIsForgotten(t *testing.T) {
	c := open(t, Config{})
	given := func(applied chan struct{}) *bundle {
		b := &bundle{waits: []<-chan struct{}{applied}}
		b.given.Store(true)
		return b
	}
	done, before := make(chan struct{}), make(chan struct{})
	close(done)
	var n *noted
	for i := range 100 {
		if n = (&noted{bundle: given(done), before: n, first: 1}); i%10 == 0 {
			n.bundle = given(before) // shards do not wait for each other
		}
	}
	c.last.Store(&noted{bundle: given(before), before: n, first: 1})
	c.Placed(shard.RankID{}, []uint64{2})
	left := 0
	for n := c.last.Load().before; n != nil; n = n.before {
		if left++; n.bundle.in() || n.first != 1 {
			t.Fatalf("of those before, the %d-th is %+v", left, n)
		}
	}
	if left != 11 {
		t.Errorf("%d are left, want 11", left)
	}
}
