package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// foundRanks are the ranks of a lookup, with their depths in external storage.
func foundRanks(sp *Space, local ...uint64) map[RankID]uint32 {
	var r Result
	sp.Find(local, &r)
	got := make(map[RankID]uint32)
	r.Each(func(id RankID, d [event.NumTiers]uint32) { got[id] = d[event.External] })
	return got
}

// TestAPoolIsNoRank: a worker whose number is that of a pool's name neither becomes the pool
// nor gives what the pool has to another one, and a pool that nobody names yet is no rank.
func TestAPoolIsNoRank(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	at := event.WorkerID("p")
	name := func(worker uint64, pool string) {
		t.Helper()
		if err := sp.SetPools(t.Context(), worker, []uint32{0}, []event.Pool{{Name: pool, Tiers: []string{"host_pinned", "disk", "external"}, Age: 30}}); err != nil {
			t.Fatal(err)
		}
	}
	name(1, "p")
	for round := range int64(4) { // so that it is on a tier of an age
		if err := sp.AgePools(t.Context(), time.Unix(3000+10*round, 0)); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, sp, chain(1, 0, 1, 2))
	apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.Disk, Engine: []uint64{1, 2}}}})
	name(at, "q")
	if got := foundRanks(sp, 1, 2); len(got) != 1 || got[RankID{1, 0}] != 2 {
		t.Errorf("ranks %v", got)
	}
	if p := sp.Pools(); !slices.Equal(p, []PoolStat{{"p", 2, 1}, {"q", 0, 1}}) {
		t.Errorf("pools %+v", p)
	}
	if err := sp.RemoveRank(t.Context(), RankID{at, event.PoolRank}); err != nil {
		t.Fatal(err)
	}
	if p := sp.Pools(); p[0].Blocks != 2 {
		t.Errorf("the rank of a pool is removed: %+v", p)
	}
	back := openSpace(t, Config{Shards: 1})
	if err := take(t, sp, 2, func() {}).load(t, back).Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := foundRanks(back, 1, 2); len(got) != 1 || got[RankID{1, 0}] != 2 {
		t.Errorf("ranks after a restart, before anybody is registered: %v", got)
	}
	// Nobody ages yet, and the block is on the tier that it had.
	if err := back.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "p", Tiers: []string{"disk"}}}); err != nil {
		t.Fatal(err)
	}
	apply(t, back, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Removed, Tier: event.Disk, Engine: []uint64{2}}}})
	if p := back.Pools(); len(p) != 1 || p[0].Blocks != 1 {
		t.Errorf("removed after a restart: %+v", p)
	}
}

// TestPoolsThatNobodyNamesGo: what re-registrations leave behind takes no room of ranks for ever.
func TestPoolsThatNobodyNamesGo(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2, MaxRanks: 4})
	begin := time.Unix(10_000, 0)
	at := func(after time.Duration) {
		t.Helper()
		if err := sp.AgePools(t.Context(), begin.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: string(rune('a' + i)), Age: 30}}); err != nil {
			t.Fatal(err)
		}
		at(time.Duration(2*i) * time.Second)
		at(time.Duration(2*i+1) * time.Second)
	}
	if n := sp.Stats().Ranks; n != 2 {
		t.Errorf("%d ranks and pools, want the worker's and its last", n)
	}
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "kept"}}); err != nil {
		t.Fatal(err)
	}
	apply(t, sp, chain(1, 0, 1, 2))
	apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2}}}})
	if err := sp.SetPools(t.Context(), 1, nil, nil); err != nil {
		t.Fatal(err)
	}
	at(time.Minute)
	at(59 * time.Minute) // it may be back
	name := func() []PoolStat {
		if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "kept"}}); err != nil {
			t.Fatal(err)
		}
		return sp.Pools()
	}
	if p := name(); len(p) != 1 || p[0].Blocks != 2 {
		t.Errorf("a worker was away for an hour: %+v", p)
	}
	at(59 * time.Minute)
	if err := sp.SetPools(t.Context(), 1, nil, nil); err != nil {
		t.Fatal(err)
	}
	at(90 * time.Minute)
	at(150 * time.Minute)
	if n := sp.Stats().Ranks; n != 1 {
		t.Errorf("%d ranks and pools, want the worker's alone", n)
	}
	if p := name(); len(p) != 1 || p[0].Blocks != 0 {
		t.Errorf("named again after that: %+v", p)
	}
}

// TestPoolsOfHybridModelsAreEstimates: a pool has full attention's blocks alone, so what it has
// of a prompt may be more than the other cache groups allow.
func TestPoolsOfHybridModelsAreEstimates(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	size := sp.Key().BlockSize
	sp.SetCacheGroups(1, []event.CacheGroup{{Number: 0, Kind: "full_attention", BlockSize: size}, {Number: 1, Kind: "sliding_window", BlockSize: size, Span: size}})
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	for _, first := range []uint64{10, 20} {
		apply(t, sp, chain(1, 0, first, first+1))
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Group: 1, Engine: []uint64{first, first + 1}}}})
	}
	apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: []uint64{10}}}})
	for first, want := range map[uint64]bool{10: false, 20: true} {
		var r Result
		if sp.Find([]uint64{first, first + 1}, &r); r.Exact() != want {
			t.Errorf("of %d: exact %v", first, r.Exact())
		}
	}
}

// TestPoolsWhileAllChanges: pools are named, renamed, given up and named again, workers leave, and stores are listed, while events
// and lookups fly. In the end all is as what was said last says, and nothing is remembered for anybody.
func TestPoolsWhileAllChanges(t *testing.T) {
	sp := openSpace(t, Config{Shards: 3, MaxRanks: 64})
	const workers, rounds = 6, 300
	lists := [][]event.Pool{
		nil, {{Name: "a"}}, {{Name: "b", Age: 30}}, {{Name: "a", Tiers: []string{"disk"}}, {Name: "b"}}, {{Name: "own", Source: sourced()[0].Source}, {Name: "a", Tiers: []string{"disk"}}},
	}
	var all sync.WaitGroup
	run := func(seed uint64, f func(rnd *rand.Rand, round int) error) {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 9))
			for round := range rounds {
				if err := f(rnd, round); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	names := func(rnd *rand.Rand) []uint64 {
		list := make([]uint64, 1+rnd.IntN(8))
		for i := range list {
			list[i] = uint64(i + 1)
		}
		return list
	}
	ctx := t.Context()
	for w := range uint64(workers) {
		run(w, func(rnd *rand.Rand, _ int) error {
			list := names(rnd)
			ev := event.Event{Kind: event.Stored, Engine: list, Local: list}
			if rnd.IntN(3) > 0 {
				ev = event.Event{Kind: event.Kind(1 + rnd.IntN(2)), Tier: event.Tier(2 + rnd.IntN(2)), Engine: list}
			}
			if rnd.IntN(20) == 0 {
				ev = event.Event{Kind: event.Cleared, Tier: event.Disk, AllTiers: rnd.IntN(2) == 0}
			}
			_, err := sp.ApplyWait(ctx, &event.Batch{Space: sp.Key(), Worker: w, Published: rnd.Int64N(3), Events: []event.Event{ev}})
			return err
		})
	}
	run(100, func(rnd *rand.Rand, _ int) error {
		w := rnd.Uint64N(workers)
		switch rnd.IntN(8) {
		case 0:
			sp.Unregistered(w)
			return sp.RemoveWorker(ctx, w)
		case 1:
			sp.Unregistered(w)
			return nil
		}
		return sp.SetPools(ctx, w, []uint32{0}, lists[rnd.IntN(len(lists))])
	})
	run(101, func(rnd *rand.Rand, round int) error {
		if err := sp.AgePools(ctx, time.Unix(int64(1e6+20*round), 0)); err != nil {
			return err
		}
		sp.PoolReadable("own", rnd.IntN(2) == 0)
		if _, err := sp.PoolStore(ctx, "own", names(rnd)); err != nil {
			return err
		}
		if err := sp.PoolRemove(ctx, "own", names(rnd)[:1]); err != nil {
			return err
		}
		return sp.PoolKeep(ctx, "own", func(e uint64) bool { return e%2 == 0 })
	})
	for i := range uint64(2) {
		run(200+i, func(*rand.Rand, int) error {
			var r Result
			sp.Find([]uint64{1, 2, 3, 4, 5, 6, 7, 8}, &r)
			for _, p := range r.Pools() {
				if p.Depth > 8 {
					return fmt.Errorf("%+v", p)
				}
			}
			sp.Pools()
			return nil
		})
	}
	all.Wait()
	for w := range uint64(workers) {
		if err := sp.SetPools(ctx, w, []uint32{0}, lists[1]); err != nil {
			t.Fatal(err)
		}
	}
	if sp.early.ops != nil || len(sp.early.of) > 0 || len(sp.table.leaving) > 0 || len(sp.table.unpooled) > 0 {
		t.Errorf("left are %d, %v, %v, %v", len(sp.early.ops), sp.early.of, sp.table.leaving, sp.table.unpooled)
	}
	apply(t, sp, chain(0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
	for _, kind := range []event.Kind{event.Cleared, event.Stored} {
		apply(t, sp, &event.Batch{Space: sp.Key(), Events: []event.Event{{Kind: kind, Tier: event.External, Engine: []uint64{1, 2, 3, 4, 5, 6, 7, 8}[:5]}}})
	}
	if got := foundRanks(sp, 1, 2, 3, 4, 5, 6, 7, 8); len(got) != workers || got[RankID{0, 0}] != 8 || got[RankID{1, 0}] < 5 {
		t.Errorf("%v", got)
	}
	if p := sp.Pools(); len(p) != 1 || p[0] != (PoolStat{"a", 5, workers}) {
		t.Errorf("%+v", p)
	}
}
