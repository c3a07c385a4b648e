package approx

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

var _ route.Guesses = (*Cache)(nil)

func open(t *testing.T, cfg Config) *Cache {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func depths(c *Cache, local []uint64) map[shard.RankID]int {
	found := map[shard.RankID]int{}
	c.Find(local, func(id shard.RankID, blocks uint32) { found[id] = int(blocks) })
	return found
}

// check goes through all that a Cache holds.
func check(t *testing.T, c *Cache, blocks []modelBlock) {
	t.Helper()
	h := &c.mu.held
	live := 0
	for i := range h.tree.Nodes.Len() {
		node := h.tree.At(uint32(i))
		if live += len(node.Is); i == 0 || len(node.Blocks) == 0 {
			continue
		}
		most := uint32(0)
		for _, x := range node.Is {
			r := h.runs.At(x.run)
			most = max(most, r.blocks)
			if int(r.node) != i || r.slot != x.slot || r.blocks == 0 || h.slots[h.ranks.At(r.slot).id] != r.slot {
				t.Fatalf("a run of node %d is %+v", i, r)
			}
		}
		if int(most) != len(node.Blocks) {
			t.Fatalf("node %d has %d blocks, of which %d are held", i, len(node.Blocks), most)
		}
	}
	for id, slot := range h.slots {
		own := h.ends(slot).own.next
		for at := h.oldest(); at != none; at = h.runs.At(at).all.next {
			if h.runs.At(at).slot != slot {
				continue
			}
			if at != own {
				t.Fatalf("%v: run %d is in another place of its rank's", id, at)
			}
			own = h.runs.At(own).own.next
		}
		if own != h.ranks.At(slot).ends {
			t.Fatalf("%v has run %d, which is not of all", id, own)
		}
	}
	if n := h.runs.Live() - 1 - len(h.slots); n != live {
		t.Fatalf("%d runs, %d in the tree", n, live)
	}
	want := map[shard.RankID]map[string]bool{}
	for _, b := range blocks {
		if want[b.rank] == nil {
			want[b.rank] = map[string]bool{}
		}
		want[b.rank][b.prefix] = true
	}
	ranks := c.Ranks()
	if len(ranks) != len(want) {
		t.Fatalf("%d ranks, want %d", len(ranks), len(want))
	}
	for _, k := range ranks {
		events, err := c.DumpRank(t.Context(), k.RankID)
		if err != nil {
			t.Fatal(err)
		}
		above, n := map[uint64][]uint64{}, 0 // the prompt until a block, by its hash
		for _, d := range events {
			var local []uint64
			if d.Event.HasParent {
				if local = above[d.Event.Parent]; local == nil {
					t.Fatalf("%v: a child comes before its parent", k)
				}
			}
			for i, hash := range d.Event.Engine {
				local = append(slices.Clone(local), d.Event.Local[i])
				if n++; !want[k.RankID][fmt.Sprint(local)] || d.Copies[i] != 1 {
					t.Fatalf("%v is dumped for %v", local, k)
				}
				above[hash] = local
			}
		}
		if n != len(want[k.RankID]) || len(above) != n || k.Held[0] != n {
			t.Fatalf("%v: %d blocks are dumped, %d distinct, want %d", k, n, len(above), len(want[k.RankID]))
		}
	}
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
					c.RemoveWorker(1)
					blocks = slices.DeleteFunc(blocks, func(b modelBlock) bool { return b.rank.Worker == 1 })
				}
				id, local := shard.RankID{Worker: rng.Uint64N(3), DPRank: rng.Uint32N(2)}, chain()
				c.Expire()
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
				if step%50 == 49 {
					check(t, c, blocks)
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
			if s := c.Stats(); s.Pruned == 0 || s.Expired == 0 {
				t.Errorf("not all was tried: %+v", s)
			}
			now = now.Add(2 * time.Minute)
			if got := depths(c, []uint64{0}); len(got) != 0 || c.Stats().Blocks != 0 || c.mu.tree.Live() != 0 || len(c.mu.slots) != 0 {
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
	r, err := route.New(route.Config{BlockSize: 16, Guesses: c, Settings: route.DefaultSettings(), Now: clock})
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
	r.RemoveWorker(first.Worker)
	if err := r.SetWorker(route.Worker{ID: first.Worker}); err != nil {
		t.Fatal(err)
	}
	if a := choose("back"); a.CachedTokens != 0 {
		t.Errorf("of a worker that was gone %d tokens count as cached", a.CachedTokens)
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
	for _, cfg := range []Config{{TTL: -1}, {MaxBlocks: -1}, {PruneTarget: 1.5}} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	c := open(t, Config{})
	if c.cfg.TTL != 2*time.Minute || c.cfg.MaxBlocks != 1048576 || c.cfg.PruneTarget != 0.8 {
		t.Errorf("defaults %+v", c.cfg)
	}
}

// A prompt that is noted and found again allocates nothing, whatever its length.
func TestKnownPromptsAllocateNothing(t *testing.T) {
	c := open(t, Config{})
	local := make([]uint64, 1000)
	for i := range local {
		local[i] = uint64(i)
	}
	found := func(shard.RankID, uint32) {}
	c.Placed(shard.RankID{}, local)
	if n := testing.AllocsPerRun(100, func() {
		c.Find(local, found)
		c.Placed(shard.RankID{}, local)
	}); n != 0 && !race.Enabled {
		t.Errorf("%v allocations", n)
	}
}

// A dump is as long as what is held, not as all that is above each part of it.
func TestDumpsOfPartedPrompts(t *testing.T) {
	const blocks = 2000
	c := open(t, Config{})
	local := make([]uint64, blocks)
	for i := range local {
		local[i] = uint64(i)
	}
	for n := blocks; n > 0; n-- {
		c.Placed(shard.RankID{}, local[:n])
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	events, err := c.DumpRank(t.Context(), shard.RankID{})
	if runtime.ReadMemStats(&after); err != nil || len(events) != blocks {
		t.Fatalf("%d events, %v", len(events), err)
	}
	want := blockhash.SequenceHashes(nil, local)
	for i, d := range events {
		if ev := d.Event; ev.Engine[0] != want[i] || ev.HasParent != (i > 0) || i > 0 && ev.Parent != want[i-1] {
			t.Fatalf("block %d is dumped as %+v", i, ev)
		}
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("a dump of %d blocks allocates %d bytes", blocks, n)
	}
}
