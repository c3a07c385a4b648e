package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/race"
)

var testSpace = event.Space{Model: "m", BlockSize: 16}

// openSpace returns a space of a Set that the test closes.
func openSpace(t testing.TB, cfg Config) *Space {
	t.Helper()
	if cfg.clears == (clears{}) { // what is cleared is there for long, under a number that is nobody's
		cfg.clears = clears{from: 3, step: 40, paid: 40, busy: true}
	}
	set := New(cfg)
	t.Cleanup(set.Close)
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// The tests' holder numbers as ranks, and back.
func rankOf(h core.Holder) RankID { return RankID{Worker: 1000 + uint64(h)/2, DPRank: h % 2} }

func holderOf(id RankID) core.Holder { return core.Holder(id.Worker-1000)*2 + id.DPRank }

func identity(h core.Holder) (worker uint64, dpRank uint32) {
	id := rankOf(h)
	return id.Worker, id.DPRank
}

// batchOf wraps operations of one worker that count copies alike.
func batchOf(ops []coretest.Op) *event.Batch {
	b := &event.Batch{Space: testSpace, Worker: rankOf(ops[0].Holder).Worker, CountCopies: ops[0].Count}
	for _, op := range ops {
		op.Event.DPRank = rankOf(op.Holder).DPRank
		b.Events = append(b.Events, op.Event)
	}
	return b
}

// generators returns those whose histories are short enough to be repeated for
// every number of shards.
func generators() []coretest.Generator {
	return slices.DeleteFunc(coretest.Generators(), func(g coretest.Generator) bool { return g.Name == "deep" })
}

// dealt returns the generators: under the race detector, which takes ten times as long, those of one of so many tests
// among which they are dealt out. make test runs each with all of them without it.
func dealt(test, tests int) (mine []coretest.Generator) {
	all := generators()
	if !race.Enabled {
		return all
	}
	for i := test % tests; i < len(all); i += tests {
		mine = append(mine, all[i])
	}
	return mine
}

// short returns the generators of shorter histories.
func short() []coretest.Generator {
	gs := coretest.Solo()
	return gs[:min(3, len(gs))]
}

// history returns a generator's operations without Forget, which belongs to
// the shards themselves.
func history(g coretest.Generator, seed uint64) []coretest.Op {
	var ops []coretest.Op
	for _, op := range g.History(seed) {
		if op.Event.Kind != 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

func answer(sp *Space, query []uint64, r *Result) coretest.Answer {
	a := coretest.Answer{}
	sp.Find(query, r)
	r.Each(func(id RankID, depth [event.NumTiers]uint32) { a[holderOf(id)] = depth })
	return a
}

// compare asks the space and the oracle the same. The space must be idle.
func compare(sp *Space, o *core.Oracle, prompts *coretest.Prompts, queries int) error {
	var r Result
	for range queries {
		q := prompts.Next(o)
		if have, want := answer(sp, q, &r), coretest.OracleAnswer(o, q); !maps.Equal(have, want) {
			return fmt.Errorf("Find(%v):\n  have %v\n  want %v", q, have, want)
		}
	}
	have, err := sp.Digest(context.Background())
	if err != nil {
		return err
	}
	if want := o.Digest(SpaceHash(testSpace), identity); have != want {
		return fmt.Errorf("digest %#x, want %#x", have, want)
	}
	held := map[core.Holder][event.NumTiers]int{}
	for _, st := range sp.Ranks() {
		held[holderOf(st.RankID)] = st.Held
		sum := 0
		for _, n := range st.Held {
			sum += n
		}
		if all := (Member{sp.table.find(st.RankID)}).Held(); all != sum {
			return fmt.Errorf("rank %v holds %d blocks in all, and %v", st.RankID, all, st.Held)
		}
	}
	for _, h := range o.Holders() {
		for t := range event.Tier(event.NumTiers) {
			if have, want := held[h][t], o.Held(h, t); have != want {
				return fmt.Errorf("holder %d holds %d blocks on tier %d, want %d", h, have, t, want)
			}
		}
		for _, n := range o.KnownHashes(h) {
			if in := shardsThatKnow(sp, h, n.Engine); in != 1 {
				return fmt.Errorf("name %d of holder %d is known in %d shards", n.Engine, h, in)
			}
		}
	}
	return nil
}

func shardsThatKnow(sp *Space, h core.Holder, engine uint64) int {
	m := sp.table.find(rankOf(h))
	if m == nil {
		return 0
	}
	var in atomic.Int64
	if err := sp.submitWait(context.Background(), func(k *task) {
		k.inspect = func(o *owner) {
			if o.index.Knows(o.holder(m), engine) {
				in.Add(1)
			}
		}
	}); err != nil {
		return -1
	}
	return int(in.Load())
}

// TestEveryOutcomeIsTheOracles applies one operation at a time and compares
// what each did: to any number of shards, and without goroutines (0), an operation does the same.
func TestEveryOutcomeIsTheOracles(t *testing.T) {
	for _, shards := range []int{0, 1, 2, 3, 8} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			for _, g := range short() {
				for _, seed := range coretest.Seeds(max(3, g.Seeds/10)) {
					sp := openSpace(t, Config{Shards: shards, Inline: shards == 0})
					o := core.NewOracle()
					prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 4)))
					for i, op := range history(g, seed) {
						have, err := sp.ApplyWait(t.Context(), batchOf([]coretest.Op{op}))
						if err != nil {
							t.Fatal(err)
						}
						prompts.Note(&op)
						if want := op.Apply(o); have != want {
							t.Fatalf("%s, seed %d, operation %d %v:\n  have %+v\n  want %+v", g.Name, seed, i, op, have, want)
						}
						if (i+1)%g.Interval != 0 {
							continue
						}
						if err := compare(sp, o, prompts, 8); err != nil {
							t.Fatalf("%s, seed %d, operation %d %v: %v", g.Name, seed, i, op, err)
						}
					}
				}
			}
		})
	}
}

// TestInline: what is applied in the caller's goroutine is applied when the call returns, and
// a closed space refuses it.
func TestInline(t *testing.T) {
	set := New(Config{Shards: 8, Inline: true})
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	op := []coretest.Op{{Event: event.Event{Kind: event.Stored, Engine: []uint64{5, 6}, Local: []uint64{1, 2}}}}
	applied := core.Outcome{}
	for range 200 { // more than the queue has room for
		if err := sp.Apply(t.Context(), batchOf(op), func(out core.Outcome) { applied.Add(out) }); err != nil {
			t.Fatal(err)
		}
	}
	if held := sp.Ranks()[0].Held[event.Device]; applied.Stored != 2 || applied.Duplicate != 398 || held != 2 || sp.Shards() != 1 {
		t.Errorf("%+v in %d shards, %d blocks are held", applied, sp.Shards(), held)
	}
	set.Close()
	if err := sp.Apply(t.Context(), batchOf(op), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestPublishersInParallel lets every worker publish its part of a history in
// batches of any size beside the others. Whatever the interleaving, the end is
// the oracle's, and so is the sum of what was done.
func TestPublishersInParallel(t *testing.T) {
	for i, shards := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			for _, g := range dealt(i, 4) {
				for _, seed := range coretest.Seeds(min(2, g.Seeds)) {
					publishInParallel(t, g, seed, shards)
				}
			}
		})
	}
}

func publishInParallel(t *testing.T, g coretest.Generator, seed uint64, shards int) {
	r := rand.New(rand.NewPCG(seed, uint64(shards)))
	sp := openSpace(t, Config{Shards: shards, Queue: 1 + r.IntN(20)})
	o := core.NewOracle()
	prompts := coretest.NewPrompts(r)
	streams := map[uint64][]coretest.Op{}
	var want core.Outcome
	for _, op := range history(g, seed) {
		want.Add(op.Apply(o))
		prompts.Note(&op)
		w := rankOf(op.Holder).Worker
		streams[w] = append(streams[w], op)
	}
	longest := 1 + r.IntN(100)
	var mu sync.Mutex
	var have core.Outcome
	var publishers, applied sync.WaitGroup
	for w, ops := range streams {
		publishers.Go(func() {
			r := rand.New(rand.NewPCG(seed, w))
			for len(ops) > 0 {
				n := 1
				for limit := 1 + r.IntN(longest); n < len(ops) && n < limit && ops[n].Count == ops[0].Count; n++ {
				}
				applied.Add(1)
				if err := sp.Apply(t.Context(), batchOf(ops[:n]), func(out core.Outcome) {
					mu.Lock()
					defer mu.Unlock()
					have.Add(out)
					applied.Done()
				}); err != nil {
					t.Error(err)
					applied.Done()
				}
				ops = ops[n:]
			}
		})
	}
	publishers.Wait()
	applied.Wait()
	if have != want {
		t.Fatalf("%s, seed %d, %d shards: outcomes\n  have %+v\n  want %+v", g.Name, seed, shards, have, want)
	}
	if err := compare(sp, o, prompts, 50); err != nil {
		t.Fatalf("%s, seed %d, %d shards: %v", g.Name, seed, shards, err)
	}
	st := sp.Stats()
	if st.Outcome != want || st.Queued != 0 || len(st.BlockOps) != shards {
		t.Fatalf("Stats() = %+v", st)
	}
	ops := uint64(0)
	for _, n := range st.BlockOps {
		ops += n
	}
	if ops != uint64(want.Stored+want.Duplicate+want.Removed+want.Decremented) {
		t.Fatalf("shards carried out %d block operations, the oracle %+v", ops, want)
	}
}
