package mock

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

func hybrids() []Config {
	return []Config{
		{BlockSize: 4, Blocks: 80, MaxBatched: 64, Groups: []Group{{Kind: "sliding_window", Span: 10, Blocks: 30}}},
		{BlockSize: 4, Blocks: 80, MaxBatched: 40, Groups: []Group{{Kind: "mamba", BlockSize: 8, Blocks: 12}, {Kind: "sliding_window", Span: 3}}},
		{BlockSize: 4, Blocks: 60, HostBlocks: 50, MaxBatched: 64, Groups: []Group{{Kind: "chunked_local_attention", Span: 24, Blocks: 40}, {Kind: "mamba"}}},
		{BlockSize: 4, Blocks: 80, MaxBatched: 64, Groups: []Group{{Kind: "full_attention", BlockSize: 12, Blocks: 15}, {Kind: "sliding_window", Span: 7, BlockSize: 8}}},
	}
}

// What a hybrid model's engine reuses of each prompt is what the literal reference says of
// its events, and what its events imply is what it holds.
func TestHybridsAreTheReference(t *testing.T) {
	racetest.Without(t, "one goroutine does it")
	for i, cfg := range hybrids() {
		oracle, reused, cut := groups.NewOracle(), 0, 0
		held := map[uint8]map[uint64]bool{}
		e, err := New(cfg, func(ev *event.Event) {
			c := *ev
			c.Engine, c.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
			oracle.Apply(&c, false)
			if ev.Kind == event.Cleared {
				clear(held)
				return
			}
			if ev.Tier != event.Device {
				return
			}
			set := held[ev.Group]
			if set == nil {
				set = map[uint64]bool{}
				held[ev.Group] = set
			}
			for _, name := range ev.Engine {
				if set[name] == (ev.Kind == event.Stored) {
					t.Fatalf("config %d: group %d: %x is there: %v, and the event is %+v", i, ev.Group, name, set[name], ev)
				}
				set[name] = ev.Kind == event.Stored
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		list := cfg.CacheGroups()
		rng := rand.New(rand.NewPCG(20, uint64(i)))
		hasher := trace.NewHasher(4, cfg.BlockSize)
		for id := range uint64(400) {
			r := randomRequest(rng, hasher, id, cfg.Blocks*cfg.BlockSize)
			if err := e.Admit(r); errors.Is(err, ErrTooLarge) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			prompt := r.Local[:r.Input/cfg.BlockSize]
			want := int(oracle.Reusable(list, cfg.BlockSize, prompt, r.Input)[event.External]) * cfg.BlockSize
			if full := int(oracle.Depth(prompt)[event.External]) * cfg.BlockSize; full > want+cfg.BlockSize {
				cut++
			}
			begun := e.Step().Began
			if len(begun) != 1 || begun[0].Reused != want {
				t.Fatalf("config %d, request %d: it began with %+v, the reference has %d of %d tokens", i, id, begun, want, r.Input)
			}
			if reused += want; id%7 == 3 { // the next one comes while this one runs
				for range rng.IntN(4) {
					e.Step()
				}
				if !e.Idle() {
					e.Abort(id)
				}
			}
			for !e.Idle() {
				e.Step()
			}
			for _, g := range list {
				if have := e.AppendHeldBy(nil, g.Number); len(have) != count(held[g.Number]) || slices.ContainsFunc(have, func(n uint64) bool { return !held[g.Number][n] }) {
					t.Fatalf("config %d: group %d holds %d blocks, its events say %d", i, g.Number, len(have), count(held[g.Number]))
				}
			}
			if id%150 == 149 {
				if err := e.Clear(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if reused < 400 || cut < 20 {
			t.Errorf("config %d: %d tokens were reused, %d prompts cut", i, reused, cut)
		}
	}
}

func count(set map[uint64]bool) (n int) {
	for _, in := range set {
		if in {
			n++
		}
	}
	return n
}

func TestCacheGroupsThatCannotBe(t *testing.T) {
	for name, g := range map[string]Group{
		"no kind":           {},
		"no span":           {Kind: "sliding_window"},
		"an odd block":      {Kind: "mamba", BlockSize: 17},
		"a negative pool":   {Kind: "mamba", Blocks: -1},
		"cross attention":   {Kind: "cross_attention"},
		"a negative window": {Kind: "chunked_local_attention", Span: -1},
	} {
		if _, err := New(Config{Groups: []Group{g}}, func(*event.Event) {}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(Config{Groups: slices.Repeat([]Group{{Kind: "mamba"}}, 15)}, func(*event.Event) {}); err == nil {
		t.Error("16 groups: no error")
	}
}

func TestCacheGroupsSetting(t *testing.T) {
	list, err := ParseGroups([]string{"sliding_window:128", "mamba:0:32:100"})
	if want := []Group{{Kind: "sliding_window", Span: 128}, {Kind: "mamba", BlockSize: 32, Blocks: 100}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%+v, %v", list, err)
	}
	for _, text := range []string{"", "sliding_window", "mamba:x", "mamba:0:1:2:3", "cross_attention", "sliding_window:-1"} {
		if _, err := ParseGroups([]string{text}); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
