package shard

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// mappedIndex is an index that says how much it has mapped.
type mappedIndex struct {
	*core.Oracle
	bytes int64
}

func (m mappedIndex) MappedBytes() int64 { return m.bytes }

func TestMappedBytesAddUp(t *testing.T) {
	made := int64(0)
	s := New(Config{Shards: 3, NewIndex: func() core.Index {
		made++
		if made == 2 {
			return core.NewOracle() // one that maps nothing
		}
		return mappedIndex{core.NewOracle(), made}
	}})
	t.Cleanup(s.Close)
	for _, model := range []string{"a", "b"} {
		if _, err := s.Open(event.Space{Model: model, BlockSize: 16}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.MappedBytes(), int64(1+3+4+5+6); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// TestSpacesShareTheBudget fills two spaces with shards under one budget: their
// sum stays near it, no batch is counted twice, and there is room again once
// the workers are gone.
func TestSpacesShareTheBudget(t *testing.T) {
	for _, shards := range []int{1, 3} {
		const budget = 8 << 20
		set := New(Config{Shards: shards, MemoryBudget: budget})
		t.Cleanup(set.Close)
		r := rand.New(rand.NewPCG(1, uint64(shards)))
		refused, spaces := 0, []event.Space{{Model: "a", BlockSize: 16}, {Model: "b", BlockSize: 16}}
		for i := range 6000 {
			sp, err := set.Open(spaces[i%2])
			if err != nil {
				t.Fatal(err)
			}
			ev := event.Event{Kind: event.Stored}
			for range 64 {
				ev.Engine, ev.Local = append(ev.Engine, r.Uint64()), append(ev.Local, r.Uint64())
			}
			out := apply(t, sp, &event.Batch{Space: spaces[i%2], Worker: uint64(1 + i%5), Events: []event.Event{ev}})
			if out.Stored+out.Refused != 64 {
				t.Fatalf("%d shards: %+v of 64 blocks", shards, out)
			}
			refused += out.Refused
			if used, _ := set.MemoryBudget(); used > budget+4<<20 {
				t.Fatalf("%d shards: %d bytes, budget %d", shards, used, budget)
			}
		}
		if refused == 0 || !set.Full() {
			t.Errorf("%d shards: %d blocks refused, full: %v", shards, refused, set.Full())
		}
		sum := int64(0)
		for _, k := range set.Memory() {
			sum += k.Bytes
		}
		if used, _ := set.MemoryBudget(); used != sum {
			t.Errorf("%d shards: %d bytes, by kind %d", shards, used, sum)
		}
		for w := uint64(1); w <= 5; w++ {
			for _, id := range spaces {
				if err := set.Lookup(id).RemoveWorker(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
		}
		if used, _ := set.MemoryBudget(); used > 1<<20 {
			t.Errorf("%d shards: %d bytes with all workers gone", shards, used)
		}
		out := apply(t, set.Lookup(spaces[0]), &event.Batch{Space: spaces[0], Worker: 9, Events: []event.Event{
			{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{2}},
		}})
		if out.Stored != 1 {
			t.Errorf("%d shards: %+v with all workers gone", shards, out)
		}
	}
}
