package shard

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// lossy makes operations of engines whose hashes are those of the content, and
// loses some: then the rank is incomplete from there on. Every fourth worker
// has hashes of its own.
type lossy struct {
	rng    *rand.Rand
	lost   [8]bool // by holder
	chains [][]uint64
}

// incompleteScheme is a worker's.
func incompleteScheme(worker uint64) string {
	if worker%4 == 3 {
		return ""
	}
	return "sha"
}

// name is what holder h calls the last block of the content.
func (l *lossy) name(h core.Holder, content []uint64) uint64 {
	q := blockhash.SequenceHashes(nil, content)
	id, _ := identity(h)
	if incompleteScheme(id) == "" {
		return q[len(q)-1] + uint64(h)
	}
	return q[len(q)-1]
}

// names returns a hash-only store: of blocks that the rank, others or nobody
// knows, in any order, some of them twice.
func (l *lossy) names() coretest.Op {
	h := core.Holder(l.rng.IntN(len(l.lost)))
	ev := event.Event{Kind: event.Stored, Tier: event.Tier(l.rng.IntN(event.NumTiers)), Incomplete: l.lost[h]}
	for range 1 + l.rng.IntN(6) {
		if len(l.chains) == 0 || l.rng.IntN(5) == 0 {
			ev.Engine = append(ev.Engine, l.rng.Uint64N(4))
			continue
		}
		c := l.chains[l.rng.IntN(len(l.chains))]
		ev.Engine = append(ev.Engine, l.name(h, c[:1+l.rng.IntN(len(c))]))
	}
	return coretest.Op{Holder: h, Event: ev}
}

// next returns an operation, and false if its events are lost.
func (l *lossy) next() (op coretest.Op, heard bool) {
	h := core.Holder(l.rng.IntN(len(l.lost)))
	op = coretest.Op{Holder: h}
	ev := &op.Event
	ev.Tier = event.Tier(max(0, l.rng.IntN(8)-5))
	switch k := l.rng.IntN(20); {
	case k == 0:
		ev.Kind, ev.AllTiers = event.Cleared, true
		l.lost[h] = false
	case k < 5 && len(l.chains) > 0:
		ev.Kind = event.Removed
		c := l.chains[l.rng.IntN(len(l.chains))]
		ev.Engine = []uint64{l.name(h, c[:1+l.rng.IntN(len(c))])}
	default:
		ev.Kind = event.Stored
		var c []uint64
		if len(l.chains) > 0 && l.rng.IntN(3) > 0 { // goes on from what somebody has
			c = l.chains[l.rng.IntN(len(l.chains))]
			c = c[:1+l.rng.IntN(len(c))]
			ev.HasParent, ev.Parent = true, l.name(h, c)
		}
		for range 1 + l.rng.IntN(4) {
			c = append(c[:len(c):len(c)], l.rng.Uint64N(5))
			ev.Engine = append(ev.Engine, l.name(h, c))
			ev.Local = append(ev.Local, c[len(c)-1])
		}
		l.chains = append(l.chains, c)
		if len(l.chains) > 40 {
			l.chains = l.chains[1:]
		}
	}
	if l.rng.IntN(6) == 0 && ev.Kind != event.Cleared {
		l.lost[h] = true
		return op, false
	}
	ev.Incomplete = l.lost[h]
	return op, true
}

// applyScheme is what the semantics say of incomplete streams and of hash-only
// stores, where workers have that scheme.
func applyScheme(o *core.Oracle, op *coretest.Op, schemeOf func(worker uint64) string) (out core.Outcome) {
	ev := &op.Event
	worker, _ := identity(op.Holder)
	scheme := schemeOf(worker)
	knower := func(hash uint64) (core.Holder, bool) {
		from, _, ok := core.Knower(o, hash, func(h core.Holder) bool {
			w, _ := identity(h)
			return schemeOf(w) == scheme
		})
		return from, ok
	}
	switch {
	case scheme == "" || ev.Kind != event.Stored:
	case len(ev.Local) == 0:
		return core.StoreHashOnly(o, op.Holder, ev, op.Count, func(i int) (core.Holder, bool) { return knower(ev.Engine[i]) })
	case ev.Incomplete && ev.HasParent:
		if from, ok := knower(ev.Parent); ok {
			out.Inferred = o.Infer(op.Holder, from, ev.Parent)
		}
	}
	out.Add(op.Apply(o))
	return out
}

func applyIncomplete(o *core.Oracle, op *coretest.Op) core.Outcome {
	return applyScheme(o, op, incompleteScheme)
}

// What an incomplete stream lacks is inferred from other workers of its hash
// scheme, whichever shard has it, as the oracle does it; so for no other stream.
func TestIncompleteStreamsAreTheOracles(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			inferred, unknown := 0, 0
			for _, seed := range coretest.Seeds(150) {
				rng := rand.New(rand.NewPCG(seed, 8))
				sp := openSpace(t, Config{Shards: shards,
					EngineScheme: func(_ event.Space, worker uint64) string { return incompleteScheme(worker) }})
				l := &lossy{rng: rng}
				o := core.NewOracle()
				prompts := coretest.NewPrompts(rng)
				for i := range 300 {
					op, heard := l.next()
					if !heard {
						continue
					}
					op.Count = seed%2 == 0
					have, err := sp.ApplyWait(t.Context(), batchOf([]coretest.Op{op}))
					if err != nil {
						t.Fatal(err)
					}
					prompts.Note(&op)
					want := applyIncomplete(o, &op)
					if have != want {
						t.Fatalf("seed %d, operation %d %v:\n  have %+v\n  want %+v", seed, i, op, have, want)
					}
					inferred += have.Inferred
					unknown += have.UnknownParent
				}
				if err := compare(sp, o, prompts, 20); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				for _, st := range sp.Ranks() {
					if want := o.Inferred(holderOf(st.RankID)); st.Inferred != want {
						t.Fatalf("seed %d: %d blocks of %v are inferred, want %d", seed, st.Inferred, st.RankID, want)
					}
				}
			}
			t.Logf("%d blocks inferred, %d not stored", inferred, unknown)
			if inferred == 0 || unknown == 0 {
				t.Error("the histories do not reach everything")
			}
		})
	}
}

// Inference beside other writers comes to an end, and to the oracle's state
// where the order of the streams does not matter: one rank knows everything.
func TestInferenceInParallel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		sp := openSpace(t, Config{Shards: 4, Queue: 8, EngineScheme: func(event.Space, uint64) string { return "sha" }})
		var chains [][]uint64
		for range 40 {
			var c []uint64
			for range 2 + rng.IntN(6) {
				c = append(c, rng.Uint64N(4))
			}
			chains = append(chains, c)
		}
		o := core.NewOracle()
		whole := func(c []uint64) event.Event {
			return event.Event{Kind: event.Stored, Engine: blockhash.SequenceHashes(nil, c), Local: c}
		}
		for _, c := range chains {
			op := coretest.Op{Event: whole(c)}
			apply(t, sp, batchOf([]coretest.Op{op}))
			op.Apply(o)
		}
		// Each of the others stores last blocks only, as incomplete streams do.
		streams := make([][]coretest.Op, 7)
		for i, c := range chains {
			h := 1 + i%len(streams)
			q := blockhash.SequenceHashes(nil, c)
			n := len(c) - 1
			op := coretest.Op{Holder: core.Holder(2 * h), Event: event.Event{Kind: event.Stored, Incomplete: true,
				HasParent: true, Parent: q[n-1], Engine: q[n:], Local: c[n:]}}
			streams[h-1] = append(streams[h-1], op)
			if from, ok := o.WhoKnows(op.Event.Parent, func(core.Holder) bool { return true }); ok {
				o.Infer(op.Holder, from, op.Event.Parent)
			}
			op.Apply(o)
		}
		done := make(chan error, len(streams))
		for _, ops := range streams {
			go func() {
				for i := range ops {
					if _, err := sp.ApplyWait(t.Context(), batchOf(ops[i:i+1])); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range streams {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := compare(sp, o, coretest.NewPrompts(rng), 0); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
