package shard

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// sourced names a pool with a stream of its own.
func sourced() []event.Pool {
	return []event.Pool{{Name: "own", Source: &event.PoolSource{Events: "tcp://m:1", Keys: "http://m:2", Parts: 1}}}
}

// TestAPoolsOwnStream: what it says is in it is found where workers know the place, and nothing
// that workers say of it; random histories with some numbers of shards, beside a set.
func TestAPoolsOwnStream(t *testing.T) {
	for _, shards := range []int{1, 2, 5} {
		rnd := rand.New(rand.NewPCG(9, uint64(shards)))
		sp := openSpace(t, Config{Shards: shards})
		name := func(list []event.Pool) {
			t.Helper()
			for w := range uint64(2) {
				if err := sp.SetPools(t.Context(), w, []uint32{0}, list); err != nil {
					t.Fatal(err)
				}
			}
		}
		name(sourced())
		in := map[uint64]bool{} // what the store has
		placed := map[uint64]bool{}
		var waiting []uint64
		store := func(hashes []uint64) {
			t.Helper()
			unplaced, err := sp.PoolStore(t.Context(), "own", hashes)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range hashes {
				if !slices.Contains(unplaced, e) {
					placed[e] = true
				}
			}
			waiting = slices.Concat(waiting, unplaced)
		}
		path := func(head uint64) (local, engine []uint64) {
			for j := range uint64(4) {
				local, engine = append(local, head*10+j), append(engine, head*100+j)
			}
			return local, engine
		}
		check := func(where string, hidden bool) {
			t.Helper()
			var r Result
			for head := uint64(1); head < 7; head++ {
				local, engine := path(head)
				want := uint32(0)
				for int(want) < len(engine) && in[engine[want]] && placed[engine[want]] && !hidden {
					want++
				}
				sp.Find(local, &r)
				if p := r.Pools(); len(p) != 1 || p[0].Depth != want {
					t.Fatalf("%d shards, %s: chain %d has %v, want %d", shards, where, head, p, want)
				}
			}
		}
		check("before it was read", true)
		sp.PoolReadable("own", true)
		for step := range 150 {
			worker := rnd.Uint64N(2)
			local, engine := path(1 + rnd.Uint64N(6))
			i := rnd.IntN(4)
			switch rnd.IntN(7) {
			case 6: // the indexer's next run
				next := openSpace(t, Config{Shards: 1 + rnd.IntN(4)})
				if err := take(t, sp, 2, func() {}).load(t, next).Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				sp = next
				name(sourced())
				check(fmt.Sprint("step ", step, ", before it is listed"), true)
				if err := sp.PoolKeep(t.Context(), "own", func(e uint64) bool { return in[e] }); err != nil {
					t.Fatal(err)
				}
				waiting = nil
				store(slices.Collect(maps.Keys(in)))
				sp.PoolReadable("own", true)
			case 0: // computed
				apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: event.Stored, Engine: engine, Local: local}}})
				again := waiting
				waiting = nil
				store(again)
			case 1, 2: // put
				in[engine[i]] = true
				store(engine[i : i+1])
			case 3: // evicted
				delete(in, engine[i])
				delete(placed, engine[i])
				waiting = slices.DeleteFunc(waiting, func(e uint64) bool { return e == engine[i] })
				if err := sp.PoolRemove(t.Context(), "own", engine[i:i+1]); err != nil {
					t.Fatal(err)
				}
			case 4: // what a worker says of it is not heard
				apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: engine}}})
				apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: event.Removed, Tier: event.External, Engine: engine}}})
			default: // a list of all that there is
				delete(in, engine[i])
				delete(placed, engine[i])
				waiting = slices.DeleteFunc(waiting, func(e uint64) bool { return e == engine[i] })
				if err := sp.PoolKeep(t.Context(), "own", func(e uint64) bool { return in[e] }); err != nil {
					t.Fatal(err)
				}
			}
			check(fmt.Sprint("step ", step), false)
		}
		sp.PoolReadable("own", false)
		check("while it is away", true)
		sp.PoolReadable("own", true)
		check("when it is back", false)
		name([]event.Pool{{Name: "own"}}) // it has no stream any more
		if _, err := sp.PoolStore(t.Context(), "own", []uint64{1}); err != nil {
			t.Error(err)
		}
		sp.PoolReadable("own", false)
		check("without its stream", false)
	}
}

// TestAPoolThatIsListedHoldsNobodyUp: events of others are applied while it is found out what of a pool is to go.
func TestAPoolThatIsListedHoldsNobodyUp(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, sourced()); err != nil {
		t.Fatal(err)
	}
	const blocks = 3*poolChunk + 1
	names := make([]uint64, blocks)
	for i := range names {
		names[i] = uint64(i + 1)
	}
	apply(t, sp, chain(1, 0, names...))
	if unplaced, err := sp.PoolStore(t.Context(), "own", names); err != nil || len(unplaced) > 0 {
		t.Fatal(len(unplaced), err)
	}
	sp.PoolReadable("own", true)
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	asked := 0
	if err := sp.PoolKeep(ctx, "own", func(e uint64) bool {
		if asked++; asked == blocks/2 {
			applied := make(chan struct{})
			if err := sp.Apply(ctx, chain(2, 0, 1, 2, 3), func(core.Outcome) { close(applied) }); err != nil {
				t.Error(err)
			}
			select {
			case <-applied:
			case <-ctx.Done():
				t.Error("what another worker says waits for the list")
			}
		}
		return e == 1
	}); err != nil {
		t.Fatal(err)
	}
	if p := sp.Pools(); asked != blocks || len(p) != 1 || p[0].Blocks != 1 {
		t.Errorf("asked of %d blocks, the pool is %+v", asked, p)
	}
}

// TestAPoolsOwnStreamAndDumps: what a worker's dump says of such a pool is neither the pool's nor
// the worker's.
func TestAPoolsOwnStreamAndDumps(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, sourced()); err != nil {
		t.Fatal(err)
	}
	sp.PoolReadable("own", true)
	commitDump(t, sp, RankID{1, 0}, []event.Event{
		{Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}, {Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2}},
	}, [][]uint32{{1, 0}, {1, 1}})
	if p := sp.Pools(); len(p) != 1 || p[0].Blocks != 0 {
		t.Errorf("%+v", p)
	}
	if got := foundRanks(sp, 1, 2); len(got) != 1 || got[RankID{1, 0}] != 1 {
		t.Errorf("%v", got)
	}
}

// TestAPoolIsGoneThroughWhileItsRunsMove: what is in a pool is found and what is to go is taken out, whatever others' events do to
// the runs that it is in meanwhile.
func TestAPoolIsGoneThroughWhileItsRunsMove(t *testing.T) {
	for _, shards := range []int{1, 3} {
		rnd := rand.New(rand.NewPCG(4, uint64(shards)))
		sp := openSpace(t, Config{Shards: shards})
		if err := sp.SetPools(t.Context(), 1, []uint32{0}, sourced()); err != nil {
			t.Fatal(err)
		}
		sp.PoolReadable("own", true)
		const chains, blocks = 4 * poolChunk / 16, 16
		first := func(chain int) uint64 { return uint64(chain)<<8 + 1 }
		path := func(chain, n, tail int) []uint64 { // that leaves the chain at n
			list := make([]uint64, 0, n+tail)
			for i := range n + tail {
				e := first(chain) + uint64(i)
				if i >= n {
					e += uint64(n) * 1e6
				}
				list = append(list, e)
			}
			return list
		}
		in := make(map[uint64]bool)
		for c := range chains {
			list := path(c, blocks, 0)
			apply(t, sp, chain(1, 0, list...))
			for i, e := range list { // some with holes
				if c%3 > 0 || i%5 > 0 {
					in[e] = true
				}
			}
		}
		for some := range slices.Chunk(slices.Sorted(maps.Keys(in)), poolChunk) {
			if unplaced, err := sp.PoolStore(t.Context(), "own", some); err != nil || len(unplaced) > 0 {
				t.Fatal(len(unplaced), err)
			}
		}
		for round := range 3 {
			asked := 0
			if err := sp.PoolKeep(t.Context(), "own", func(e uint64) bool {
				if !in[e] {
					t.Fatalf("%x is not in the pool", e)
				}
				if asked++; asked%50 == 0 {
					c := rnd.IntN(chains)
					worker := rnd.Uint64N(3)
					if rnd.IntN(2) == 0 {
						apply(t, sp, chain(worker, 0, path(c, rnd.IntN(blocks), 1+rnd.IntN(2*blocks))...))
					} else {
						apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: event.Removed, Engine: path(c, blocks, 0)[rnd.IntN(blocks):]}}})
					}
				}
				if e%7 == uint64(round) {
					return false
				}
				return true
			}); err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(in, func(e uint64, _ bool) bool { return e%7 == uint64(round) })
			if p := sp.Pools(); len(p) != 1 || p[0].Blocks != len(in) {
				t.Errorf("%d shards, round %d: %+v, want %d blocks", shards, round, p, len(in))
			}
		}
	}
}
