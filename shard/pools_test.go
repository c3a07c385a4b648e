package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// TestPoolsAreWhatWorkersSaid: random stores, removals, clears, offloads, departures, other
// registrations and dumps of workers that name a pool, and of one that does not, against the
// oracle; with some numbers of shards, with and without an age, and over restarts from a cut. What was
// removed no dump brings back, but after a restart.
func TestPoolsAreWhatWorkersSaid(t *testing.T) {
	for _, shards := range []int{1, 2, 5} {
		for seed := range uint64(8) {
			poolHistory(t, shards, seed)
		}
	}
}

// commitDump commits what a rank's publisher dumps.
func commitDump(t *testing.T, sp *Space, id RankID, events []event.Event, copies [][]uint32) {
	t.Helper()
	r, err := sp.Replace(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Add(t.Context(), events, copies); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

func poolHistory(t *testing.T, shards int, seed uint64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, uint64(shards)))
	sp := openSpace(t, Config{Shards: shards})
	pools := []event.Pool{{Name: "shared"}}
	third, begin := int64(0), time.Unix(3_000_000, 0)
	// With an age: which tiers of the pool each block is on, where it is stored now, and for how many thirds nothing goes.
	said, slot, keep := map[uint64][event.NumTiers]bool{}, 0, event.NumTiers-1
	gone := map[uint64]bool{} // last that it has left
	ages := seed%2 == 1
	if ages {
		pools[0].Age = 30
	}
	const strange = 3 // names no pool
	register := func(sp *Space, worker uint64, list []event.Pool) {
		if err := sp.SetPools(t.Context(), worker, []uint32{0, 1}, list); err != nil {
			t.Fatal(err)
		}
	}
	for w := range uint64(strange) {
		register(sp, w, pools)
	}
	o := core.NewOracle() // a holder for each rank, and the last for the pool
	const pool = core.Holder(8)
	holder := func(id RankID) core.Holder { return core.Holder(id.Worker*2 + uint64(id.DPRank)) }
	offload := func(from core.Holder, engine []uint64) {
		core.StoreHashOnly(o, pool, &event.Event{Kind: event.Stored, Engine: engine}, false,
			func(i int) (core.Holder, bool) { return from, o.Knows(from, engine[i]) })
		for _, e := range engine {
			if on := said[e]; o.Knows(pool, e) { // else nobody knows its place
				on[slot] = true
				said[e] = on
			}
		}
	}
	drop := func(engine ...uint64) {
		o.Remove(pool, &event.Event{Kind: event.Removed, Engine: engine}, false)
		for _, e := range engine {
			delete(said, e)
		}
	}
	// age is what the pool's age does as time goes on.
	age := func(thirds int64) {
		if !ages {
			return
		}
		third += thirds
		if err := sp.AgePools(t.Context(), begin.Add(time.Duration(10*third)*time.Second)); err != nil {
			t.Fatal(err)
		}
		for range thirds {
			slot = (slot + 1) % event.NumTiers
			if keep > 0 {
				keep--
				continue
			}
			for e, on := range said {
				on[slot] = false
				if said[e] = on; on == ([event.NumTiers]bool{}) {
					drop(e)
				}
			}
		}
	}
	age(0)
	// Chains of a small tree: block hashes are local hashes, and engine hashes name the path.
	type chain struct{ local, engine []uint64 }
	var chains []chain
	for i := range uint64(6) {
		var c chain
		path := uint64(0)
		for j := range uint64(8) {
			l := 1 + j*10 + (i>>min(j, 2))%4
			path = path*31 + l + 1
			c.local, c.engine = append(c.local, l), append(c.engine, path)
		}
		chains = append(chains, c)
	}
	send := func(id RankID, ev event.Event) {
		ev.DPRank = id.DPRank
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: id.Worker, CountCopies: true, Events: []event.Event{ev}})
	}
	// check compares the space with the oracle.
	check := func(where string, sp *Space) {
		t.Helper()
		var r Result
		for _, c := range chains {
			sp.Find(c.local, &r)
			got := map[RankID][event.NumTiers]uint32{}
			r.Each(func(id RankID, d [event.NumTiers]uint32) { got[id] = d })
			var m core.Matches
			o.Find(c.local, &m)
			deepest := make(map[core.Holder]uint32)
			m.Each(event.Device, func(h core.Holder, d uint32) { deepest[h] = d })
			deep := deepest[pool]
			want := map[RankID][event.NumTiers]uint32{}
			for w := range uint64(4) {
				for rank := range uint32(2) {
					id := RankID{w, rank}
					d := deepest[holder(id)]
					x := [event.NumTiers]uint32{d, d, d, d}
					if w != strange {
						x[event.External] = max(d, deep)
					}
					if x[event.External] > 0 {
						want[id] = x
					}
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("%s: depths %v, want %v (pool %d)", where, got, want, deep)
			}
			if p := r.Pools(); len(p) != 1 || p[0] != (PoolDepth{"shared", deep}) {
				t.Fatalf("%s: pools %v, want depth %d", where, p, deep)
			}
		}
		// With an age a block counts once for each third of it in which it was said.
		if p := sp.Pools(); len(p) != 1 || !ages && p[0].Blocks != o.Held(pool, event.Device) || p[0].Workers != 3 {
			t.Fatalf("%s: pools %+v, want %d blocks", where, p, o.Held(pool, event.Device))
		}
	}
	for step := range 120 {
		id := RankID{rnd.Uint64N(4), rnd.Uint32N(2)}
		h, names := holder(id), id.Worker != strange
		c := chains[rnd.IntN(len(chains))]
		from := rnd.IntN(len(c.engine))
		to := from + 1 + rnd.IntN(len(c.engine)-from)
		switch rnd.IntN(10) {
		case 0, 1, 2: // computed, from the beginning
			ev := event.Event{Kind: event.Stored, Engine: c.engine[:to], Local: c.local[:to]}
			send(id, ev)
			o.Store(h, &ev, true)
		case 3, 4, 5: // offloaded, by hash or with tokens that nobody reads
			if !names {
				continue
			}
			ev := event.Event{Kind: event.Stored, Tier: event.External, Engine: c.engine[from:to]}
			if rnd.IntN(2) == 0 {
				ev.Local = c.local[from:to]
				if from > 0 {
					ev.HasParent, ev.Parent = true, c.engine[from-1]
				}
			}
			send(id, ev)
			offload(h, ev.Engine)
			for _, e := range ev.Engine {
				delete(gone, e)
			}
		case 6: // evicted from the device
			ev := event.Event{Kind: event.Removed, Engine: c.engine[from : from+1]}
			send(id, ev)
			o.Remove(h, &ev, true)
		case 7: // and from the pool
			if !names {
				continue
			}
			ev := event.Event{Kind: event.Removed, Engine: c.engine[from:to]}
			drop(ev.Engine...)
			ev.Tier = event.External
			send(id, ev)
			for _, e := range ev.Engine {
				gone[e] = true
			}
		case 8:
			switch rnd.IntN(4) {
			case 0: // the engine is cleared, the pool is not
				send(id, event.Event{Kind: event.Cleared, AllTiers: true})
				o.Clear(h, 0, true)
			case 1: // the pool is
				if names {
					o.Dump(pool, func(ev *event.Event, copies []uint32) bool {
						for j, e := range ev.Engine {
							gone[e] = gone[e] || copies[j] > 0
						}
						return true
					})
					send(id, event.Event{Kind: event.Cleared, Tier: event.External})
					o.Clear(pool, 0, true)
					clear(said)
				}
			case 2: // it names none for a moment, or another
				if names {
					register(sp, id.Worker, []event.Pool{{Name: "other"}}[:rnd.IntN(2)])
					register(sp, id.Worker, pools)
				}
			default: // the worker dies, and is back with the next registration
				if err := sp.RemoveWorker(t.Context(), id.Worker); err != nil {
					t.Fatal(err)
				}
				o.Clear(holder(RankID{id.Worker, 0}), 0, true)
				o.Clear(holder(RankID{id.Worker, 1}), 0, true)
				if names {
					register(sp, id.Worker, pools)
				}
			}
		case 9: // a dump that says of some blocks that they are in the pool
			ones := slices.Repeat([]uint32{1}, 8)
			events := []event.Event{{Kind: event.Stored, Engine: c.engine[:to], Local: c.local[:to], DPRank: id.DPRank}}
			copies := [][]uint32{ones[:to]}
			o.Clear(h, 0, true)
			o.Store(h, &events[0], false)
			if n := rnd.IntN(to + 1); names && n > 0 {
				events = append(events, event.Event{Kind: event.Stored, Tier: event.External, Engine: c.engine[:n], DPRank: id.DPRank})
				copies = append(copies, ones[:n])
				offload(h, slices.DeleteFunc(slices.Clone(c.engine[:n]), func(e uint64) bool { return gone[e] }))
			}
			commitDump(t, sp, id, events, copies)
		}
		if rnd.IntN(5) == 0 {
			age(1 + rnd.Int64N(2))
		}
		if rnd.IntN(30) == 0 { // the indexer's next run
			next := openSpace(t, Config{Shards: 1 + rnd.IntN(4)})
			if err := take(t, sp, 2, func() {}).load(t, next).Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for w := range uint64(strange) {
				register(next, w, pools)
			}
			sp, slot, keep = next, 0, event.NumTiers-1
			clear(gone)
			age(0)
		}
		check(fmt.Sprintf("%d shards, seed %d, step %d", shards, seed, step), sp)
	}
	back := openSpace(t, Config{Shards: 3})
	if err := take(t, sp, 2, func() {}).load(t, back).Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for w := range uint64(strange) {
		register(back, w, pools)
	}
	check(fmt.Sprintf("%d shards, seed %d, loaded", shards, seed), back)
}

// TestPoolsOfARegistrationThatComesLate: what was taken to be the worker's own becomes the
// pool's, once for two workers that say the same, and a snapshot has it without them.
func TestPoolsOfARegistrationThatComesLate(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for w := range uint64(2) {
		apply(t, sp, chain(w, 0, 1, 2, 3))
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: w, Events: []event.Event{
			{Kind: event.Stored, Tier: event.Disk, Engine: []uint64{1, 2, 3}},
			{Kind: event.Removed, Engine: []uint64{1, 2, 3}},
		}})
		if err := sp.SetPools(t.Context(), w, []uint32{0}, []event.Pool{{Name: "fs", Tiers: []string{"disk"}, Chunk: 32}}); err != nil {
			t.Fatal(err)
		}
	}
	if p := sp.Pools(); !slices.Equal(p, []PoolStat{{"fs", 3, 2}}) {
		t.Fatalf("pools %+v", p)
	}
	if err := sp.RemoveWorker(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	back := openSpace(t, Config{Shards: 3})
	if err := take(t, sp, 2, func() {}).load(t, back).Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sp := range []*Space{sp, back} {
		if err := sp.SetPools(t.Context(), 7, []uint32{4}, []event.Pool{{Name: "fs", Chunk: 2 * sp.Key().BlockSize}}); err != nil {
			t.Fatal(err)
		}
		var r Result
		sp.Find([]uint64{1, 2, 3, 4}, &r)
		var got [event.NumTiers]uint32
		r.Each(func(id RankID, d [event.NumTiers]uint32) {
			if id == (RankID{7, 4}) {
				got = d
			}
		})
		if got != [event.NumTiers]uint32{event.External: 2} {
			t.Errorf("whole chunks of three blocks: %v", got)
		}
	}
}

// TestPoolsWithNamesOfTheirOwn: what is told with its tokens is stored so; of what hangs on
// blocks that the pool has not nobody is asked.
func TestPoolsWithNamesOfTheirOwn(t *testing.T) {
	for _, shards := range []int{1, 4} {
		sp := openSpace(t, Config{Shards: shards})
		if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "own", OwnNames: true}}); err != nil {
			t.Fatal(err)
		}
		out, err := sp.ApplyWait(t.Context(), &event.Batch{Space: sp.Key(), Worker: 1, CountCopies: true, Events: []event.Event{
			{Kind: event.Stored, Tier: event.External, Engine: []uint64{901, 902}, Local: []uint64{1, 2}},
			{Kind: event.Stored, Tier: event.External, Engine: []uint64{901, 902}, Local: []uint64{1, 2}},
			{Kind: event.Stored, Tier: event.External, HasParent: true, Parent: 902, Engine: []uint64{903, 904}, Local: []uint64{3, 4}},
			{Kind: event.Stored, Tier: event.External, HasParent: true, Parent: 999, Engine: []uint64{905}, Local: []uint64{5}},
			{Kind: event.Removed, Tier: event.External, Engine: []uint64{904}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if out.UnknownParent != 0 || out.UnknownBlock != 1 || out.Removed != 1 {
			t.Errorf("%d shards: %+v", shards, out)
		}
		var r Result
		sp.Find([]uint64{1, 2, 3, 4}, &r)
		if p := r.Pools(); !slices.Equal(p, []PoolDepth{{"own", 3}}) {
			t.Errorf("%d shards: %+v", shards, p)
		}
	}
}

// TestNobodyIsAPool: no event is about the rank by which the index knows pools, and no
// worker's end is that of a pool of its name.
func TestNobodyIsAPool(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	at := event.WorkerID("p")
	if err := sp.SetPools(t.Context(), at, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	apply(t, sp, chain(at, 0, 1, 2))
	apply(t, sp, &event.Batch{Space: sp.Key(), Worker: at, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: []uint64{1}}}})
	forged := chain(at, event.PoolRank, 1, 2)
	if out, err := sp.ApplyWait(t.Context(), forged); err != nil || out.Refused != 2 || out.Stored != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if err := sp.RemoveWorker(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if p := sp.Pools(); len(p) != 1 || p[0].Blocks != 1 {
		t.Errorf("%+v", p)
	}
	for _, bad := range [][]event.Pool{{{}}, {{Name: "x", Tiers: []string{"device"}}}, {{Name: "x"}, {Name: "y"}}, {{Name: "x", Tiers: []string{"tape"}}}} {
		if sp.SetPools(t.Context(), 2, []uint32{0}, bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// TestPoolsAge: what nobody says any more goes after the pool's age, and a third of it at most;
// what is said again stays as long anew, and a removal is of all that was ever said.
func TestPoolsAge(t *testing.T) {
	for _, shards := range []int{1, 3} {
		sp := openSpace(t, Config{Shards: shards})
		if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "p", Age: 30}}); err != nil {
			t.Fatal(err)
		}
		apply(t, sp, chain(1, 0, 1, 2, 3))
		begin := time.Unix(3_000_000, 0)
		at := func(second int) {
			if err := sp.AgePools(t.Context(), begin.Add(time.Duration(second)*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		say := func(kind event.Kind, blocks ...uint64) {
			apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, CountCopies: true, Events: []event.Event{{Kind: kind, Tier: event.External, Engine: blocks}}})
		}
		has := func(second int, want uint32) {
			t.Helper()
			at(second)
			var r Result
			sp.Find([]uint64{1, 2, 3}, &r)
			if p := r.Pools(); len(p) != 1 || p[0].Depth != want {
				t.Errorf("%d shards, after %d s: %v, want %d blocks", shards, second, p, want)
			}
		}
		at(0)
		say(event.Stored, 1, 2, 3)
		has(10, 3)
		say(event.Stored, 2)
		has(20, 3)
		say(event.Stored, 1)
		has(39, 3)
		has(40, 2) // 3 was said at 0
		has(49, 2)
		has(50, 1) // 2 at 10
		has(59, 1)
		say(event.Stored, 1)
		say(event.Removed, 1)
		has(59, 0)
		say(event.Stored, 1, 2, 3)
		has(85, 3)
		has(1000, 0) // nobody has looked for long
		if h := sp.Pools()[0].Blocks; h != 0 {
			t.Errorf("%d blocks are left", h)
		}
	}
}

// TestPoolsAgeAfterARestart: a new run does not know when what it loaded was said, and lets it stay
// for the pool's age, whatever the age's third in which it was said.
func TestPoolsAgeAfterARestart(t *testing.T) {
	pools := []event.Pool{{Name: "p", Age: 30}}
	for round := range 4 {
		sp, back := openSpace(t, Config{Shards: 2}), openSpace(t, Config{Shards: 1})
		begin := time.Unix(3_000_000, 0)
		at := func(sp *Space, second int) {
			t.Helper()
			if err := sp.AgePools(t.Context(), begin.Add(time.Duration(second)*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		name := func(sp *Space) {
			t.Helper()
			if err := sp.SetPools(t.Context(), 1, []uint32{0}, pools); err != nil {
				t.Fatal(err)
			}
		}
		name(sp)
		apply(t, sp, chain(1, 0, 1, 2))
		for i := range round + 1 {
			at(sp, 10*i)
		}
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2}}}})
		if err := take(t, sp, 2, func() {}).load(t, back).Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		name(back)
		blocks := func(second int) int {
			at(back, second)
			return back.Pools()[0].Blocks
		}
		for second := 100; second < 130; second += 5 {
			if n := blocks(second); n != 2 {
				t.Errorf("said in third %d: %d blocks %d s after the restart", round, n, second-100)
			}
		}
		for second := 130; second < 180; second += 5 {
			blocks(second)
		}
		if n := blocks(180); n != 0 {
			t.Errorf("said in third %d: %d blocks are left", round, n)
		}
	}
}

// What a rank has on other tiers than a pool's is not looked through when the pool takes over what it has there.
func TestAPoolTakesWhatIsItsAlone(t *testing.T) {
	sp := openSpace(t, Config{Shards: 1})
	prompt := make([]uint64, 10_000)
	for i := range prompt {
		prompt[i] = uint64(i + 1)
	}
	apply(t, sp, chain(1, 0, prompt...))
	allocs := make(chan float64, 1)
	sp.mu.Lock()
	m := sp.table.find(RankID{1, 0})
	k := &takers{workerPools: newWorkerPools([]event.Pool{{Name: "p"}})}
	sp.mu.Unlock()
	if err := sp.submitWait(t.Context(), func(task *task) {
		task.inspect = func(o *owner) { allocs <- testing.AllocsPerRun(10, func() { o.giveTo(k, m) }) }
	}); err != nil {
		t.Fatal(err)
	}
	if n := <-allocs; n > 0 {
		t.Errorf("%v allocations for a rank that has nothing of the pool", n)
	}
}
