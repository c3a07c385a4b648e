package fuzz

import (
	"context"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

func newIndex() core.Index { return core.NewRadix(core.Options{}) }

// FuzzIndex checks the index after any operations.
func FuzzIndex(f *testing.F) { coretest.Fuzz(f, newIndex) }

// FuzzReaders checks lookups beside the index's writer: each answer is one
// that the presence of each block allowed at some moment during the call.
func FuzzReaders(f *testing.F) { coretest.FuzzConcurrent(f, newIndex) }

var space = event.Space{Model: "fuzz", BlockSize: 16}

func holderOf(id shard.RankID) core.Holder { return core.Holder(id.Worker) }

// openShards returns a space whose number of shards the input chooses. All
// workers are said to name equal content alike, true or not.
func openShards(t *testing.T, data []byte) *shard.Space {
	n := 1
	if len(data) > 0 {
		n += int(data[len(data)-1] % 5)
	}
	set := shard.New(shard.Config{Shards: n, EngineScheme: func(event.Space, uint64) string { return "fuzz" }})
	t.Cleanup(set.Close)
	sp, err := set.Open(space)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// operations returns those of the input that arrive as events.
func operations(data []byte) []coretest.Op {
	var ops []coretest.Op
	for _, op := range coretest.Decode(data) {
		if op.Event.Kind != 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

func apply(sp *shard.Space, ops []coretest.Op) (core.Outcome, error) {
	b := event.Batch{Space: space, Worker: uint64(ops[0].Holder), CountCopies: ops[0].Count}
	for _, op := range ops {
		b.Events = append(b.Events, op.Event)
	}
	return sp.ApplyWait(context.Background(), &b)
}

func find(sp *shard.Space, query []uint64, r *shard.Result) coretest.Answer {
	a := coretest.Answer{}
	sp.Find(query, r)
	r.Each(func(id shard.RankID, depth [event.NumTiers]uint32) { a[holderOf(id)] = depth })
	return a
}

// learn applies the operation where all holders have one hash scheme: of what a
// hash-only store names, others may know the content.
func learn(o *core.Oracle, op *coretest.Op) core.Outcome {
	ev := &op.Event
	if ev.Kind != event.Stored || len(ev.Local) > 0 {
		return op.Apply(o)
	}
	return core.StoreHashOnly(o, op.Holder, ev, op.Count, func(i int) (core.Holder, bool) {
		from, _, ok := core.Knower(o, ev.Engine[i], func(core.Holder) bool { return true })
		return from, ok
	})
}

// FuzzShards checks that events do over several shards, in batches, what they
// do to the oracle.
func FuzzShards(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		sp := openShards(t, data)
		o := core.NewOracle()
		for _, h := range coretest.FuzzHolders() { // ranks get their numbers in the oracle's order
			if _, err := apply(sp, []coretest.Op{{Holder: h, Event: event.Event{Kind: event.Stored, Engine: []uint64{1 << 40}}}}); err != nil {
				t.Fatal(err)
			}
		}
		prompts := coretest.NewPrompts(rand.New(rand.NewPCG(uint64(len(data)), 1)))
		all := operations(data)
		for ops := all; len(ops) > 0; {
			n := 1
			for n < len(ops) && n < 5 && ops[n].Holder == ops[0].Holder && ops[n].Count == ops[0].Count {
				n++
			}
			var want core.Outcome
			for i := range ops[:n] {
				want.Add(learn(o, &ops[i]))
				prompts.Note(&ops[i])
			}
			have, err := apply(sp, ops[:n])
			if err != nil {
				t.Fatal(err)
			}
			if have != want {
				t.Fatalf("%s\nthe last %d:\nhave %+v\nwant %+v", coretest.Print(all[:len(all)-len(ops)+n]), n, have, want)
			}
			ops = ops[n:]
		}
		var res shard.Result
		for range 20 {
			q := prompts.Next(o)
			if have, want := find(sp, q, &res), coretest.OracleAnswer(o, q); !maps.Equal(have, want) {
				t.Fatalf("%s\nFind(%v):\nhave %v\nwant %v", coretest.Print(all), q, have, want)
			}
		}
		have, err := sp.Digest(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		want := o.Digest(shard.SpaceHash(space), func(h core.Holder) (uint64, uint32) { return uint64(h), 0 })
		if have != want {
			t.Fatalf("%s\ndigest %#x, want %#x", coretest.Print(all), have, want)
		}
	})
}
