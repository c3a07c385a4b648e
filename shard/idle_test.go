package shard

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// watched is a production index that counts what is asked of it, but for
// whether it has anything of a holder.
type watched struct {
	*core.Radix
	asked int
}

func (w *watched) Store(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	w.asked++
	return w.Radix.Store(h, ev, countCopies)
}

func (w *watched) Remove(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	w.asked++
	return w.Radix.Remove(h, ev, countCopies)
}

func (w *watched) Knows(h core.Holder, hash uint64) bool {
	w.asked++
	return w.Radix.Knows(h, hash)
}

func (w *watched) Held(h core.Holder, t event.Tier) int {
	w.asked++
	return w.Radix.Held(h, t)
}

func (w *watched) Memory() core.Memory {
	w.asked++
	return w.Radix.Memory()
}

func (w *watched) Prefetch(h core.Holder, ev *event.Event) {
	w.asked++
	w.Radix.Prefetch(h, ev)
}

func (w *watched) PrefetchSingles(h core.Holder, hashes []uint64) {
	w.asked++
	w.Radix.PrefetchSingles(h, hashes)
}

// chainIn returns n hashes of a chain that begins in the shard.
func chainIn(sp *Space, number int, from uint64, n int) []uint64 {
	for sp.shardOf(from) != number {
		from++
	}
	c := make([]uint64, n)
	for i := range c {
		c[i] = from + uint64(i)<<32
	}
	return c
}

// TestAShardWithNothingOfARankIsIdle: with 10,000 ranks that have all their
// chains in one of four shards, their batches go to no other; and as those of a
// rank that once had blocks there would, the others take them without an
// allocation, without a look at the events' names and without weighing their
// index, also one that has others' chains.
func TestAShardWithNothingOfARankIsIdle(t *testing.T) {
	const ranks, shards, home, others = 10_000, 4, 2, 1
	var made []*watched
	sp := openSpace(t, Config{Shards: shards, NewIndex: func() core.Index {
		made = append(made, &watched{Radix: core.NewRadix(core.Options{})})
		return made[len(made)-1]
	}})
	local := chainIn(sp, home, 1, 64)
	store := event.Event{Kind: event.Stored, Engine: local, Local: local}
	for w := range uint64(ranks) {
		short := store
		short.Engine, short.Local = local[:2], local[:2]
		apply(t, sp, &event.Batch{Space: testSpace, Worker: w, Events: []event.Event{short}})
	}
	one := chainIn(sp, others, 1, 1)
	apply(t, sp, &event.Batch{Space: testSpace, Worker: ranks, Events: []event.Event{{Kind: event.Stored, Engine: one, Local: one}}})

	more := chainIn(sp, home, 1<<20, 64)
	b := &event.Batch{Space: testSpace, Worker: ranks - 1, CountCopies: true, Events: []event.Event{
		store,
		{Kind: event.Stored, HasParent: true, Parent: local[63], Engine: more, Local: more},
		{Kind: event.Stored, HasParent: true, Parent: 12345, Engine: more, Local: more},
		{Kind: event.Stored, Tier: event.HostPinned, Engine: local},
		{Kind: event.Removed, Engine: more},
		{Kind: event.Removed, Engine: more},
		{Kind: event.Cleared, Tier: event.HostPinned},
	}}
	task := newTask(shards)
	task.batch, task.to = b, sp.shards
	for range b.Events {
		task.members = append(task.members, sp.table.find(RankID{Worker: b.Worker}))
	}
	for _, index := range made {
		index.asked = 0
	}
	apply(t, sp, b)
	for number, index := range made {
		if number != home && index.asked > 0 {
			t.Errorf("shard %d, which no block of the rank ever reached, took its batch: asked %d times", number, index.asked)
		}
	}
	task.start()
	for i := range sp.shards {
		number := (home + 1 + i) % shards // its own last: it waits for what the others say
		o, index := sp.shards[number], made[number]
		index.asked = 0
		changed := o.apply(task)
		if number == home {
			if !changed || index.asked <= 10 {
				t.Errorf("the rank's shard: changed %v, asked %d times", changed, index.asked)
			}
			break
		}
		// Two parents, a store by names and two removals are unknown at once.
		if changed || index.asked > 5 {
			t.Errorf("shard %d, which has nothing of the rank: changed %v, asked %d times for %d events", number, changed, index.asked, len(b.Events))
		}
	}
	for number, o := range sp.shards {
		if number == home {
			continue
		}
		n := testing.AllocsPerRun(100, func() {
			task.start()
			o.apply(task)
		})
		if n != 0 {
			t.Errorf("shard %d, which has nothing of the rank: %v allocations for %d events", number, n, len(b.Events))
		}
		if len(o.members) > ranks+1 || number != others && len(o.members) > 0 {
			t.Errorf("shard %d keeps %d ranks", number, len(o.members))
		}
	}
}
