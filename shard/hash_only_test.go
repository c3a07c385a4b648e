package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// A hash-only store means what another worker of the hash scheme knows by the
// name, whichever shard has it and however events are batched; so for no other
// worker.
func TestHashOnlyStoresAreTheOracles(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			adopted, unknown := 0, 0
			for _, seed := range coretest.Seeds(20) {
				rng := rand.New(rand.NewPCG(seed, 41))
				sp := openSpace(t, Config{Shards: shards,
					EngineScheme: func(_ event.Space, worker uint64) string { return incompleteScheme(worker) }})
				l := &lossy{rng: rng}
				o, plain := core.NewOracle(), core.NewOracle()
				prompts := coretest.NewPrompts(rng)
				var ops []coretest.Op
				for range 300 {
					op, heard := l.next()
					if rng.IntN(3) == 0 {
						op, heard = l.names(), true
					}
					if op.Count = seed%2 == 0; heard {
						ops = append(ops, op)
					}
				}
				longest := 1 + rng.IntN(12)
				for len(ops) > 0 {
					n := 1
					for n < len(ops) && n < longest && rankOf(ops[n].Holder).Worker == rankOf(ops[0].Holder).Worker {
						n++
					}
					var want core.Outcome
					for i := range ops[:n] {
						prompts.Note(&ops[i])
						want.Add(applyIncomplete(o, &ops[i]))
						ops[i].Apply(plain)
					}
					if have := apply(t, sp, batchOf(ops[:n])); have != want {
						t.Fatalf("seed %d, %v:\n  have %+v\n  want %+v", seed, ops[:n], have, want)
					}
					unknown += want.UnknownBlock
					ops = ops[n:]
				}
				if err := compare(sp, o, prompts, 20); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				for _, h := range o.Holders() {
					for tier := event.HostPinned; tier < event.NumTiers; tier++ {
						adopted += o.Held(h, tier) - plain.Held(h, tier)
					}
				}
			}
			t.Logf("%d blocks held by what others know, %d not known", adopted, unknown)
			if adopted <= 0 || unknown == 0 {
				t.Error("the histories do not reach everything")
			}
		})
	}
}

// Where a scheme does not hold what it promises, so that one hash has positions in
// several shards, the right holder's counts all the same, and a name of a rank
// is never in two shards.
func TestHashOnlyStoresUnderAFalseScheme(t *testing.T) {
	all := func(uint64) string { return "sha" }
	for _, shards := range []int{1, 2, 3, 8} {
		for _, g := range short() {
			for _, seed := range coretest.Seeds(2) {
				sp := openSpace(t, Config{Shards: shards, EngineScheme: func(event.Space, uint64) string { return "sha" }, clears: clears{from: math.MaxInt}})
				o := core.NewOracle()
				for _, h := range []core.Holder{0, 1, 2, 63, 64, 65, 127, 300} { // they get numbers in the oracle's order, and keep them
					apply(t, sp, batchOf([]coretest.Op{{Holder: h, Event: event.Event{Kind: event.Stored, Engine: []uint64{1 << 60}}}}))
				}
				prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 42)))
				for i, op := range history(g, seed) {
					if i%3 == 0 && op.Event.Kind == event.Stored {
						op.Event.Local = nil
					}
					prompts.Note(&op)
					have := apply(t, sp, batchOf([]coretest.Op{op}))
					if want := applyScheme(o, &op, all); have != want {
						t.Fatalf("%d shards, %s, seed %d, operation %d %v:\n  have %+v\n  want %+v", shards, g.Name, seed, i, op, have, want)
					}
				}
				if err := compare(sp, o, prompts, 20); err != nil {
					t.Fatalf("%d shards, %s, seed %d: %v", shards, g.Name, seed, err)
				}
			}
		}
	}
}

// offloaded returns a space in which worker 1000 has chains and others of their
// blocks by name, on lower tiers, and the oracle of it.
func offloaded(t *testing.T, rng *rand.Rand, shards int) (*Space, *core.Oracle) {
	sp := openSpace(t, Config{Shards: shards, Queue: 4, EngineScheme: func(event.Space, uint64) string { return "sha" }})
	o := core.NewOracle()
	streams := make([][]coretest.Op, 6)
	for i := range 60 {
		var c []uint64
		for range 1 + rng.IntN(6) {
			c = append(c, rng.Uint64N(4))
		}
		q := blockhash.SequenceHashes(nil, c)
		op := coretest.Op{Event: event.Event{Kind: event.Stored, Engine: q, Local: c}}
		apply(t, sp, batchOf([]coretest.Op{op}))
		op.Apply(o)
		op = coretest.Op{Holder: core.Holder(2 + 2*(i%len(streams))),
			Event: event.Event{Kind: event.Stored, Tier: event.Tier(rng.IntN(event.NumTiers)), Engine: slices.Clone(q[rng.IntN(len(q)):])}}
		if rng.IntN(3) == 0 {
			slices.Reverse(op.Event.Engine)
		}
		streams[i%len(streams)] = append(streams[i%len(streams)], op)
	}
	done := make(chan error, len(streams))
	for _, ops := range streams {
		for i := range ops {
			applyScheme(o, &ops[i], func(uint64) string { return "sha" })
		}
		go func() {
			for len(ops) > 0 {
				n := min(2, len(ops))
				if _, err := sp.ApplyWait(t.Context(), batchOf(ops[:n])); err != nil {
					done <- err
					return
				}
				ops = ops[n:]
			}
			done <- nil
		}()
	}
	for range streams {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return sp, o
}

// Hash-only stores of many publishers beside each other come to an end, and to
// the oracle's state.
func TestHashOnlyStoresInParallel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 43))
		sp, o := offloaded(t, rng, 1+int(seed%5))
		if err := compare(sp, o, coretest.NewPrompts(rng), 0); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// What was bound by others' knowledge is the rank's own in a dump and in a
// snapshot: it comes back without them.
func TestBlocksStoredByHashOutliveTheirSource(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 44))
		sp, o := offloaded(t, rng, 1+int(seed%3))
		if err := sp.RemoveWorker(t.Context(), rankOf(0).Worker); err != nil {
			t.Fatal(err)
		}
		o.Clear(0, 0, true)
		loaded := openSpace(t, Config{Shards: 1 + int(seed%4)})
		if err := take(t, sp, 1+rng.IntN(30), nil).load(t, loaded).Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := compare(loaded, o, coretest.NewPrompts(rng), 0); err != nil {
			t.Fatalf("seed %d, from a snapshot: %v", seed, err)
		}
		restored := openSpace(t, Config{Shards: 1 + int(seed%4)})
		for _, st := range sp.Ranks() {
			dump, err := sp.DumpRank(t.Context(), st.RankID)
			if err != nil {
				t.Fatal(err)
			}
			p, err := restored.Replace(t.Context(), st.RankID)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range dump {
				if _, err := p.Add(t.Context(), []event.Event{d.Event}, [][]uint32{d.Copies}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			committed := make(chan struct{})
			if err := p.Commit(t.Context(), func() { close(committed) }); err != nil {
				t.Fatal(err)
			}
			<-committed
		}
		if err := compare(restored, o, coretest.NewPrompts(rng), 0); err != nil {
			t.Fatalf("seed %d, from dumps: %v", seed, err)
		}
	}
}

// Hashes that a publisher's dump has beside its index are stored where another
// worker knows them, with their copies, and else counted as unknown.
func TestAttachStoresByHash(t *testing.T) {
	for _, shards := range []int{1, 3} {
		sp := openSpace(t, Config{Shards: shards, EngineScheme: func(event.Space, uint64) string { return "sha" }})
		c := []uint64{5, 6, 7, 8}
		q := blockhash.SequenceHashes(nil, c)
		known := coretest.Op{Event: event.Event{Kind: event.Stored, Engine: q, Local: c}}
		apply(t, sp, batchOf([]coretest.Op{known}))
		id := rankOf(2)
		p, err := sp.Replace(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, err := p.Attach(t.Context(), []event.Event{
			{Kind: event.Stored, Tier: event.HostPinned, Incomplete: true, Engine: []uint64{q[2], 99, q[1]}},
			{Kind: event.Stored, Tier: event.Disk, Incomplete: true, Engine: []uint64{q[1]}},
		}, [][]uint32{{3, 2, 1}, {1}})
		if want := (core.Outcome{Stored: 3, Duplicate: 1, UnknownBlock: 1}); err != nil || out != want {
			t.Errorf("%d shards: %+v, %v, want %+v", shards, out, err, want)
		}
		committed := make(chan struct{})
		if err := p.Commit(t.Context(), func() { close(committed) }); err != nil {
			t.Fatal(err)
		}
		<-committed
		o := core.NewOracle()
		known.Apply(o)
		for _, tier := range []event.Tier{event.HostPinned, event.HostPinned, event.HostPinned, event.Disk} {
			ev := event.Event{Kind: event.Stored, Tier: tier, Engine: []uint64{q[2]}}
			if tier == event.Disk {
				ev.Engine[0] = q[1]
			}
			core.StoreHashOnly(o, 2, &ev, true, func(int) (core.Holder, bool) { return 0, true })
		}
		one := event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: []uint64{q[1]}}
		o.Store(2, &one, true)
		if err := compare(sp, o, coretest.NewPrompts(rand.New(rand.NewPCG(1, 1))), 0); err != nil {
			t.Errorf("%d shards: %v", shards, err)
		}
	}
}
