package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
)

var hybridGroups = []event.CacheGroup{
	{Number: 0, Kind: "full_attention", BlockSize: 2},
	{Number: 2, Kind: "sliding_window", BlockSize: 2, Span: 5},
	{Number: 3, Kind: "mamba", BlockSize: 2},
}

// hybridRank is a rank of an engine with cache groups, and what the reference says of it.
type hybridRank struct {
	id     RankID
	oracle *groups.Oracle
	held   map[uint64]int // blocks of group 0
	list   []event.CacheGroup
}

// step makes events of one step of the engine; the groups' order is any.
func (r *hybridRank) step(rnd *rand.Rand, name func([]uint64) uint64) []event.Event {
	local := somePrompt(rnd)
	var names []uint64
	for i := range local {
		names = append(names, name(local[:i+1]))
	}
	var events []event.Event
	switch n := rnd.IntN(12); {
	case n < 6:
		from := 0
		for from < len(names)-1 && r.held[names[from]] > 0 {
			from++
		}
		ev := event.Event{Kind: event.Stored, Engine: names[from:], Local: local[from:]}
		if from > 0 {
			ev.HasParent, ev.Parent = true, names[from-1]
		}
		for _, h := range ev.Engine {
			r.held[h]++
		}
		tail := names[max(0, len(names)-1-rnd.IntN(4)):]
		events = append(events, ev, event.Event{Kind: event.Stored, Group: 2, Engine: tail}, event.Event{Kind: event.Stored, Group: 3, Tier: event.Tier(rnd.IntN(2)), Engine: names[len(names)-1:]})
		rnd.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	case n < 9:
		events = append(events, event.Event{Kind: event.Removed, Group: uint8(2 + rnd.IntN(2)), Engine: names[rnd.IntN(len(names)):]})
	case n < 11: // from the end, as an engine that shares one pool does not: children without parents are another test's
		for i := len(names) - 1; i >= 0 && rnd.IntN(3) > 0; i-- {
			deeper := false
			for _, l := range []uint64{1, 2, 3} {
				deeper = deeper || r.held[name(append(slices.Clone(local[:i+1]), l))] > 0
			}
			if r.held[names[i]] > 0 && !deeper {
				r.held[names[i]]--
				events = append(events, event.Event{Kind: event.Removed, Engine: names[i : i+1]})
			}
		}
	default:
		if rnd.IntN(10) == 0 {
			clear(r.held)
			events = append(events, event.Event{Kind: event.Cleared, AllTiers: true})
		}
	}
	for i := range events {
		events[i].DPRank = r.id.DPRank
		r.oracle.Apply(&events[i], true)
	}
	return events
}

func somePrompt(rnd *rand.Rand) (local []uint64) {
	for range 1 + rnd.IntN(8) {
		local = append(local, 1+rnd.Uint64N(3))
	}
	return local
}

// A space answers for ranks with cache groups what the reference says, with any number of
// shards, also where a rank is replaced by its dump, and its digest does not depend on the
// shards.
func TestCacheGroupsAreTheOracle(t *testing.T) {
	for seed := range uint64(6) {
		asked, exact, some := hybridHistories(t, func() *rand.Rand { return rand.New(rand.NewPCG(20, seed)) }, hybridGroups)
		if exact < asked/2 || some < 30 {
			t.Errorf("seed %d: of %d prompts %d were answered exactly, %d times something could be reused", seed, asked, exact, some)
		}
	}
}

// hybridHistories runs one history with three numbers of shards.
func hybridHistories(t *testing.T, random func() *rand.Rand, list []event.CacheGroup) (asked, exact, some int) {
	t.Helper()
	digests := map[uint64]bool{}
	for _, shards := range []int{1, 2, 5} {
		digest, a, e, s := hybridHistory(t, random(), list, shards)
		digests[digest] = true
		asked, exact, some = asked+a, exact+e, some+s
	}
	if len(digests) != 1 {
		t.Errorf("%d digests", len(digests))
	}
	return asked, exact, some
}

func hybridHistory(t *testing.T, rnd *rand.Rand, list []event.CacheGroup, shards int) (digest uint64, asked, exact, some int) {
	t.Helper()
	ctx := context.Background()
	set := New(Config{Shards: shards})
	defer set.Close()
	key := event.Space{Model: "m", BlockSize: 2}
	space, err := set.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]uint64{}
	name := func(local []uint64) uint64 {
		k := fmt.Sprint(local)
		if names[k] == 0 {
			names[k] = uint64(len(names) + 1)
		}
		return names[k]
	}
	var ranks []*hybridRank
	for i := range 3 {
		ranks = append(ranks, &hybridRank{id: RankID{uint64(7 + i/2), uint32(i % 2)}, oracle: groups.NewOracle(), held: map[uint64]int{}, list: list})
	}
	var found Result
	for step := range 150 {
		r := ranks[rnd.IntN(len(ranks))]
		b := &event.Batch{Space: key, Worker: r.id.Worker, CountCopies: true, Events: r.step(rnd, name)}
		if r.id.Worker == 7 && step > 20 { // of the other worker the registration tells, at once
			b.Hybrid, b.Groups = true, list
		} else if r.id.Worker == 8 {
			if rnd.IntN(8) == 0 { // it registers another window, or none of its groups
				r.list = slices.Clone(list)
				if r.list[1].Span = 2 * (1 + rnd.Uint32N(6)); rnd.IntN(8) == 0 {
					r.list = nil
				}
			}
			space.SetCacheGroups(8, r.list)
		}
		if _, err := space.ApplyWait(ctx, b); err != nil {
			t.Fatal(err)
		}
		if step%40 == 39 {
			replace(t, space, r.id)
		}
		local := somePrompt(rnd)
		found.Tokens = 2*len(local) + rnd.IntN(2)
		space.Find(local, &found)
		have := map[RankID][event.NumTiers]uint32{}
		found.Each(func(id RankID, depth [event.NumTiers]uint32) { have[id] = depth })
		asked++
		if !found.Exact() {
			continue
		}
		exact++
		for _, r := range ranks {
			if r.list == nil {
				if depth := r.oracle.Depth(local); depth[event.External] > 0 {
					t.Fatalf("%d shards, step %d: rank %v, of which no groups are registered, is called exact: %v", shards, step, r.id, depth)
				}
				continue
			}
			if want := r.oracle.Reusable(r.list, 2, local, found.Tokens); have[r.id] != want {
				t.Fatalf("%+v, %d shards, step %d: rank %v can reuse %v blocks of %v, the oracle says %v (%v of full attention)",
					r.list, shards, step, r.id, have[r.id], local, want, r.oracle.Depth(local))
			} else if want[event.External] > 0 {
				some++
			}
		}
	}
	digest, err = space.Digest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return digest, asked, exact, some
}

// replace replaces a rank by what it holds.
func replace(t *testing.T, space *Space, id RankID) {
	t.Helper()
	ctx := context.Background()
	before, err := space.Digest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dumped, err := space.DumpRank(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	p, err := space.Replace(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dumped {
		if _, err := p.Add(ctx, []event.Event{d.Event}, [][]uint32{d.Copies}); err != nil {
			t.Fatal(err)
		}
	}
	if during, err := space.Digest(ctx); err != nil || during != before {
		t.Errorf("the digest is %x while a rank is replaced, %x before, %v", during, before, err)
	}
	if _, err := p.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	if err := p.Commit(ctx, func() { close(done) }); err != nil {
		t.Fatal(err)
	}
	<-done
	if after, err := space.Digest(ctx); err != nil || after != before {
		t.Errorf("a rank that is replaced by its dump has digest %x, %x before, %v", after, before, err)
	}
}

// groupedSpace returns a space and what applies events of worker 7 to it.
func groupedSpace(t *testing.T, shards int) (ctx context.Context, space *Space, apply func(groups []event.CacheGroup, events ...event.Event)) {
	t.Helper()
	ctx = context.Background()
	set := New(Config{Shards: shards})
	t.Cleanup(set.Close)
	key := event.Space{Model: "m", BlockSize: 2}
	space, err := set.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, space, func(groups []event.CacheGroup, events ...event.Event) {
		t.Helper()
		if _, err := space.ApplyWait(ctx, &event.Batch{Space: key, Worker: 7, Events: events, Groups: groups}); err != nil {
			t.Fatal(err)
		}
	}
}

// What is not known well enough stays a bound, and is not called exact: a rank of a
// snapshot, a worker that does not say what its groups are, and one that lost something.
func TestCacheGroupsThatAreNotKnown(t *testing.T) {
	ctx, space, apply := groupedSpace(t, 2)
	check := func(when string, want uint32, exact bool) {
		t.Helper()
		var r Result
		space.Find([]uint64{1, 2, 3}, &r)
		got := uint32(0)
		r.Each(func(_ RankID, depth [event.NumTiers]uint32) { got = depth[0] })
		if got != want || r.Exact() != exact {
			t.Errorf("%s: %d blocks, exact %v; want %d, %v", when, got, r.Exact(), want, exact)
		}
	}
	main := event.Event{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}}
	window := event.Event{Kind: event.Stored, Group: 2, Engine: []uint64{1, 2}}
	state := event.Event{Kind: event.Stored, Group: 3, Engine: []uint64{2}}
	apply(nil, main)
	check("full attention alone", 3, false)
	if space.Hybrid() {
		t.Error("it is called hybrid before anything says so")
	}
	apply(nil, window)
	if check("a window of what", 3, false); !space.Hybrid() {
		t.Error("it is not called hybrid")
	}
	apply(hybridGroups)
	check("a group was not heard of", 3, false)
	apply(hybridGroups, state)
	check("all is known", 2, true)
	apply(hybridGroups, event.Event{Kind: event.Stored, Group: 2, Incomplete: true, Engine: []uint64{3}})
	check("something was lost", 3, false)
	apply(hybridGroups, event.Event{Kind: event.Cleared, AllTiers: true}, state, main, window)
	check("it was cleared", 2, true)

	p, err := space.Replace(ctx, RankID{Worker: 7})
	if err != nil {
		t.Fatal(err)
	}
	p.FromSnapshot()
	if _, err := p.Add(ctx, []event.Event{main}, [][]uint32{{1, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(ctx, nil); err != nil {
		t.Fatal(err)
	}
	apply(hybridGroups, window, state)
	check("of a snapshot", 3, false)
	if err := space.RemoveWorker(ctx, 7); err != nil {
		t.Fatal(err)
	}
	check("gone", 0, true)
	var r Result
	if space.Find(nil, &r); !r.Exact() {
		t.Error("of no block more than nothing could be reused")
	}
}

// inBetween calls f when its Err is asked for the second time: Apply does so before it
// queues a batch, after it has looked at what a rank has.
type inBetween struct {
	context.Context
	asked int
	f     func()
}

func (c *inBetween) Err() error {
	if c.asked++; c.asked == 2 {
		c.f()
	}
	return c.Context.Err()
}

// A rank that leaves, and one that is replaced, while a table is made of what it has: the
// rank that is there then is not called exact by what the other one had.
func TestATableIsOfTheRankThatItWasMadeOf(t *testing.T) {
	for name, meanwhile := range map[string]func(ctx context.Context, space *Space) error{
		"removed": func(ctx context.Context, space *Space) error { return space.RemoveRank(ctx, RankID{Worker: 7}) },
		"replaced": func(ctx context.Context, space *Space) error {
			p, err := space.Replace(ctx, RankID{Worker: 7})
			if err != nil {
				return err
			}
			p.FromSnapshot()
			if _, err := p.Add(ctx, []event.Event{{Kind: event.Stored, Engine: []uint64{8}, Local: []uint64{8}}}, [][]uint32{{1}}); err != nil {
				return err
			}
			if _, err := p.Finish(ctx); err != nil {
				return err
			}
			return p.Commit(ctx, nil)
		},
	} {
		ctx, space, apply := groupedSpace(t, 2)
		apply(nil, event.Event{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}})
		between := &inBetween{Context: ctx, f: func() {
			if err := meanwhile(ctx, space); err != nil {
				t.Error(err)
			}
		}}
		b := &event.Batch{Space: space.Key(), Worker: 7, Groups: hybridGroups, Events: []event.Event{
			{Kind: event.Stored, Engine: []uint64{9}, Local: []uint64{9}},
			{Kind: event.Stored, Group: 2, Engine: []uint64{9}}, {Kind: event.Stored, Group: 3, Engine: []uint64{9}},
			{Kind: event.Stored, HasParent: true, Parent: 3, Engine: []uint64{4}, Local: []uint64{4}}, // which the rank has not any more
		}}
		if _, err := space.ApplyWait(between, b); err != nil {
			t.Fatal(err)
		}
		var r Result
		if space.Find([]uint64{9}, &r); between.asked < 2 || r.Exact() {
			t.Errorf("%s: asked %d times; the answer is called exact: %v", name, between.asked, r.Exact())
		}
	}
}

// A group that one rank of a worker has told the others have as well, also if they have not
// said so, whoever speaks last.
func TestCacheGroupsAreOfAllRanks(t *testing.T) {
	_, space, apply := groupedSpace(t, 1)
	state := event.Event{Kind: event.Stored, Group: 3, Engine: []uint64{1}, DPRank: 1}
	apply(hybridGroups, state)
	apply(hybridGroups[:2], event.Event{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}, event.Event{Kind: event.Stored, Group: 2, Engine: []uint64{1}})
	var r Result
	if space.Find([]uint64{1}, &r); r.Exact() {
		t.Error("a rank that did not tell of a group is called exact without it")
	}
}

// Tables and the index keep to one budget together, whichever groups a stream or a dump
// fills, and a worker that goes gives all back.
func TestCacheGroupsShareTheBudget(t *testing.T) {
	const budget, reserve = 1 << 20, 5 << 20 // of the index, for ranks below their share
	ctx := context.Background()
	key := event.Space{Model: "m", BlockSize: 2}
	for _, kind := range []string{"groups first", "full attention", "a dump"} {
		set := New(Config{Shards: 1, MemoryBudget: budget})
		t.Cleanup(set.Close)
		space, err := set.Open(key)
		if err != nil {
			t.Fatal(err)
		}
		space.SetCacheGroups(7, hybridGroups)
		p, err := space.Replace(ctx, RankID{Worker: 7})
		if err != nil {
			t.Fatal(err)
		}
		next, refused := uint64(0), 0
		for step := range 2400 {
			group := uint8(0)
			if kind == "groups first" && step < 600 || kind == "a dump" {
				group = 2
			}
			ev := event.Event{Kind: event.Stored, Group: group}
			for range 64 {
				next++
				ev.Engine = append(ev.Engine, next)
			}
			if group == 0 {
				ev.Local = ev.Engine
			}
			var out core.Outcome
			if kind == "a dump" {
				out, err = p.Add(ctx, []event.Event{ev}, [][]uint32{slices.Repeat([]uint32{1}, 64)})
			} else {
				out, err = space.ApplyWait(ctx, &event.Batch{Space: key, Worker: 7, Events: []event.Event{ev}})
			}
			if err != nil {
				t.Fatal(err)
			}
			refused += out.Refused
		}
		if used, _ := set.MemoryBudget(); used > budget+reserve || refused == 0 {
			t.Errorf("%s: %d bytes are used of %d, %d blocks refused", kind, used, budget, refused)
		}
		if err := p.Abort(ctx); err != nil {
			t.Fatal(err)
		}
		if err := space.RemoveWorker(ctx, 7); err != nil {
			t.Fatal(err)
		}
		if _, err := space.Digest(ctx); err != nil { // behind it
			t.Fatal(err)
		}
		if kinds := set.Memory(); kinds[len(kinds)-1].Bytes != 0 {
			t.Errorf("%s: %d bytes of tables are left", kind, kinds[len(kinds)-1].Bytes)
		}
	}
}

// A block that the index takes over from another worker by its name has a place there, and
// none in the table.
func TestCacheGroupsOfBlocksThatOthersTell(t *testing.T) {
	ctx := context.Background()
	set := New(Config{Shards: 2, EngineScheme: func(event.Space, uint64) string { return "s" }})
	defer set.Close()
	key := event.Space{Model: "m", BlockSize: 2}
	space, err := set.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	others := []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{2, 3}}, {Kind: event.Stored, Group: 3, Engine: []uint64{3}}}
	apply := func(worker uint64, events ...event.Event) {
		t.Helper()
		space.SetCacheGroups(worker, hybridGroups)
		if _, err := space.ApplyWait(ctx, &event.Batch{Space: key, Worker: worker, Events: append(events, others...)}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(ranks int, exact bool) {
		t.Helper()
		var r Result
		space.Find([]uint64{1, 2, 3}, &r)
		r.Each(func(id RankID, depth [event.NumTiers]uint32) {
			if ranks--; depth[event.External] != 3 {
				t.Errorf("rank %v can reuse %d blocks, want 3", id, depth)
			}
		})
		if ranks != 0 || r.Exact() != exact {
			t.Errorf("%d ranks are missing, exact %v, want %v", ranks, r.Exact(), exact)
		}
	}
	apply(6, event.Event{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}})
	check(1, true)
	apply(7, event.Event{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}, event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: []uint64{2, 3}})
	check(2, false)
}

// With the memory budget reached blocks of groups are refused, counted, and the rank's
// depths are bounds.
func TestCacheGroupsKeepToTheBudget(t *testing.T) {
	ctx := context.Background()
	set := New(Config{Shards: 1, MemoryBudget: 1, NewIndex: func() core.Index { return core.NewRadix(core.Options{}) }})
	defer set.Close()
	key := event.Space{Model: "m", BlockSize: 2}
	space, err := set.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	space.SetCacheGroups(7, hybridGroups)
	out, err := space.ApplyWait(ctx, &event.Batch{Space: key, Worker: 7, Events: []event.Event{
		{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}, {Kind: event.Stored, Group: 2, Engine: []uint64{1, 2}},
	}})
	if err != nil || out.Refused != 2 || out.Stored != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	var r Result
	if space.Find([]uint64{1}, &r); r.Exact() {
		t.Error("it is called exact")
	}
	if kinds := set.Memory(); kinds[len(kinds)-1].Kind != "cache_groups" || kinds[len(kinds)-1].Bytes == 0 {
		t.Errorf("%+v", kinds)
	}
}
