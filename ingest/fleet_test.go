package ingest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

var testSpace = event.Space{Model: "org/model-7B", BlockSize: 16, Group: "g"}

// truth is the oracle fed with what engines did, in the order they did it.
type truth struct {
	mu      sync.Mutex
	oracle  *core.Oracle
	holders map[workerRank]core.Holder
	names   []workerRank
	answers groupAnswers
}

func newTruth() *truth {
	return &truth{oracle: core.NewOracle(), holders: make(map[workerRank]core.Holder), answers: groupAnswers{}}
}

func (t *truth) apply(worker uint64, ev event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := workerRank{worker, ev.DPRank}
	h, ok := t.holders[k]
	if !ok {
		h = core.Holder(len(t.names))
		t.holders[k] = h
		t.names = append(t.names, k)
	}
	t.answers.apply(worker, &ev)
	if ev.Group > 0 {
		return
	}
	switch ev.Kind {
	case event.Stored:
		if from, ok := t.oracle.WhoKnows(ev.Parent, func(core.Holder) bool { return ev.Incomplete && ev.HasParent }); ok {
			t.oracle.Infer(h, from, ev.Parent)
		}
		t.oracle.Store(h, &ev, false)
	case event.Removed:
		t.oracle.Remove(h, &ev, false)
	case event.Cleared:
		t.oracle.Clear(h, ev.Tier, ev.AllTiers)
	}
}

func (t *truth) digest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := shard.SpaceHash(testSpace)
	sum := t.oracle.Digest(id, func(h core.Holder) (uint64, uint32) {
		return t.names[h].worker, t.names[h].dpRank
	})
	for k, g := range t.answers {
		sum += g.Digest(id, k.Worker, k.DPRank)
	}
	return sum
}

// engine makes up what one worker's caches do. Hashes are of its rng.
type engine struct {
	worker uint64
	rng    *rand.Rand
	ranks  []*cache

	prompts *prompts // not nil: it caches these, and offloads blocks by name
	hybrid  bool     // it has simGroups
}

// cache is one rank's blocks, by engine hash; a block's local hash is a
// function of it, so that workers share content.
type cache struct {
	held    []uint64
	grouped []groupBlock
}

func newEngine(worker uint64, ranks int, seed uint64) *engine {
	e := &engine{worker: worker, rng: rand.New(rand.NewPCG(seed, worker))}
	for range ranks {
		e.ranks = append(e.ranks, &cache{})
	}
	return e
}

// step returns the next event, without an id.
func (e *engine) step() event.Event {
	n := uint32(e.rng.IntN(len(e.ranks)))
	if e.prompts != nil {
		return e.offload(n)
	}
	if e.hybrid && e.rng.IntN(3) == 0 {
		return e.groupStep(n)
	}
	c := e.ranks[n]
	switch p := e.rng.IntN(100); {
	case p < 2:
		*c = cache{}
		return event.Event{Kind: event.Cleared, AllTiers: true, DPRank: n}
	case p < 35 && len(c.held) > 0:
		ev := event.Event{Kind: event.Removed, DPRank: n}
		for range 1 + e.rng.IntN(3) {
			if len(c.held) == 0 {
				break
			}
			i := e.rng.IntN(len(c.held))
			ev.Engine = append(ev.Engine, c.held[i])
			c.held = slices.Delete(c.held, i, i+1)
		}
		return ev
	}
	ev := event.Event{Kind: event.Stored, DPRank: n}
	if len(c.held) > 0 && e.rng.IntN(3) > 0 {
		ev.HasParent, ev.Parent = true, c.held[e.rng.IntN(len(c.held))]
	}
	for range 1 + e.rng.IntN(6) {
		h := e.rng.Uint64()
		ev.Engine = append(ev.Engine, h)
		ev.Local = append(ev.Local, h%64)
		c.held = append(c.held, h)
	}
	return ev
}

// restart empties the caches, as a new process has them.
func (e *engine) restart() {
	for _, c := range e.ranks {
		*c = cache{}
	}
}

// newIndex is a real shard.Space to ingest into, and its digest.
func newIndex(t testing.TB, shards int) (*shard.Set, func(event.Space) (Applier, error)) {
	t.Helper()
	set := shard.New(shard.Config{Shards: shards, EngineScheme: func(event.Space, uint64) string { return "test" }})
	t.Cleanup(set.Close)
	return set, func(sp event.Space) (Applier, error) { return set.Open(sp) }
}

func digest(t testing.TB, set *shard.Set) uint64 {
	t.Helper()
	sp := set.Lookup(testSpace)
	if sp == nil {
		return 0
	}
	d, err := sp.Digest(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// asked records the ranks whose recovery was asked for.
type asked struct {
	mu     sync.Mutex
	counts map[RankID]map[Cause]int
}

func (a *asked) Recover(id RankID, cause Cause) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts = make(map[RankID]map[Cause]int)
	}
	if a.counts[id] == nil {
		a.counts[id] = make(map[Cause]int)
	}
	a.counts[id][cause]++
}

func (a *asked) count(cause Cause) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.counts {
		n += c[cause]
	}
	return n
}
