package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// poolTwins are two spaces with one history: in the one every registration is known from the beginning.
type poolTwins struct {
	t      *testing.T
	where  string
	spaces [2]*Space // in time, late
	chains []*event.Batch
}

func (x *poolTwins) send(b event.Batch) {
	x.t.Helper()
	for _, sp := range x.spaces {
		b.Space = sp.Key()
		apply(x.t, sp, &b)
	}
}

func (x *poolTwins) name(sp *Space, worker uint64, list []event.Pool) {
	x.t.Helper()
	if err := sp.SetPools(x.t.Context(), worker, []uint32{0, 1}, list); err != nil {
		x.t.Fatal(err)
	}
}

// check requires that both answer the same, or if less that the late one has no more in its pools.
func (x *poolTwins) check(less bool) {
	x.t.Helper()
	var found [2]map[RankID][event.NumTiers]uint32
	var pools [2][]PoolDepth
	for _, c := range x.chains {
		for i, sp := range x.spaces {
			var r Result
			sp.Find(c.Events[0].Local, &r)
			found[i] = make(map[RankID][event.NumTiers]uint32)
			r.Each(func(id RankID, d [event.NumTiers]uint32) { found[i][id] = d })
			pools[i] = slices.Clone(r.Pools())
		}
		for i, p := range pools[1] {
			if !less && p != pools[0][i] || p.Depth > pools[0][i].Depth {
				x.t.Fatalf("%s: pools %v, in time %v", x.where, pools[1], pools[0])
			}
		}
		if !less && !maps.Equal(found[0], found[1]) {
			x.t.Fatalf("%s: depths %v, in time %v", x.where, found[1], found[0])
		}
	}
	want, got := x.spaces[0].Pools(), x.spaces[1].Pools()
	for i, p := range got {
		if !less && p != want[i] || p.Blocks > want[i].Blocks {
			x.t.Fatalf("%s: pools %+v, in time %+v", x.where, got, want)
		}
	}
}

// TestARegistrationThatComesLateIsAsInTime: random histories of workers that share two pools, whose registrations come
// at any point or never, against the same with registrations that were there before. Where engines
// are reset, leave and dump meanwhile, what a pool has is no more than in time.
func TestARegistrationThatComesLateIsAsInTime(t *testing.T) {
	for _, seed := range coretest.Seeds(200) {
		for _, rough := range []bool{false, true} {
			lateHistory(t, seed, rough)
		}
	}
}

func lateHistory(t *testing.T, seed uint64, rough bool) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 77))
	shards := []int{1, 2, 5}
	x := &poolTwins{t: t, spaces: [2]*Space{openSpace(t, Config{Shards: shards[rnd.IntN(3)]}), openSpace(t, Config{Shards: shards[rnd.IntN(3)]})}}
	const workers, steps = 4, 60
	lists := make([][]event.Pool, workers)
	come := make([]int, workers)
	for w := range lists {
		lists[w] = [][]event.Pool{
			{{Name: "a"}}, {{Name: "a", Tiers: []string{"disk"}}, {Name: "b"}}, {{Name: "b", Tiers: []string{"external", "disk"}}}, nil,
		}[rnd.IntN(4)]
		if come[w] = rnd.IntN(steps + 20); come[w] >= steps { // it never comes
			continue
		}
		x.name(x.spaces[0], uint64(w), lists[w])
	}
	clock := time.Now().UnixNano()
	device := make(map[RankID]map[uint64]bool)
	for i := range uint64(5) {
		ev := event.Event{Kind: event.Stored}
		path := uint64(0)
		for j := range uint64(5) {
			l := 1 + j*10 + (i>>min(j, 2))%4
			path = path*31 + l + 1
			ev.Local, ev.Engine = append(ev.Local, l), append(ev.Engine, path)
		}
		x.chains = append(x.chains, &event.Batch{Events: []event.Event{ev}})
	}
	for step := range steps + 15 {
		x.where = fmt.Sprintf("seed %d, rough %v, step %d", seed, rough, step)
		all := true
		for w, at := range come {
			if at == step && at < steps {
				x.name(x.spaces[1], uint64(w), lists[w])
			}
			all = all && (at <= step || at >= steps)
		}
		id := RankID{rnd.Uint64N(workers), rnd.Uint32N(2)}
		if device[id] == nil {
			device[id] = make(map[uint64]bool)
		}
		c := x.chains[rnd.IntN(len(x.chains))].Events[0]
		from := rnd.IntN(len(c.Engine))
		to := from + 1 + rnd.IntN(len(c.Engine)-from)
		clock += int64(time.Second)
		b := event.Batch{Worker: id.Worker, CountCopies: rnd.IntN(2) == 0}
		if rnd.IntN(3) > 0 { // some are late, and some clocks not known
			b.Published = clock - int64(rnd.IntN(5))*int64(time.Second)
		}
		ev := event.Event{Kind: event.Stored, DPRank: id.DPRank, Engine: c.Engine[from:to], Tier: []event.Tier{event.Disk, event.External}[rnd.IntN(2)]}
		switch n := rnd.IntN(12); {
		case n < 3 || n < 7 && !device[id][c.Engine[to-1]]: // computed
			ev.Tier, ev.Engine, ev.Local = event.Device, c.Engine[:to], c.Local[:to]
			for _, e := range ev.Engine {
				device[id][e] = true
			}
		case n < 7: // offloaded
			ev.Engine = slices.DeleteFunc(slices.Clone(ev.Engine), func(e uint64) bool { return !device[id][e] })
		case n < 10: // has left the tier
			ev.Kind = event.Removed
		case n == 10 && rnd.IntN(3) == 0 && !rough: // all of the tier, of which an awaited worker's dump does not hear
			ev.Kind, ev.Engine = event.Cleared, nil
		case !rough:
			continue
		case rnd.IntN(3) == 0:
			ev.Kind, ev.Engine, ev.AllTiers = event.Cleared, nil, true
			clear(device[id])
		case rnd.IntN(2) == 0:
			clear(device[RankID{id.Worker, 0}])
			clear(device[RankID{id.Worker, 1}])
			for _, sp := range x.spaces {
				if err := sp.RemoveWorker(t.Context(), id.Worker); err != nil {
					t.Fatal(err)
				}
			}
			continue
		default:
			clear(device[id])
			for _, e := range c.Engine[:to] {
				device[id][e] = true
			}
			for _, sp := range x.spaces {
				commitDump(t, sp, id, []event.Event{
					{Kind: event.Stored, Engine: c.Engine[:to], Local: c.Local[:to], DPRank: id.DPRank},
					{Kind: event.Stored, Engine: c.Engine[from:to], Tier: ev.Tier, DPRank: id.DPRank},
				}, [][]uint32{slices.Repeat([]uint32{1}, to), slices.Repeat([]uint32{1}, to-from)})
			}
			continue
		}
		b.Events = []event.Event{ev}
		x.send(b)
		if all {
			x.check(rough)
		}
	}
	if early := &x.spaces[1].early; !rough && !slices.ContainsFunc(come, func(at int) bool { return at >= steps }) && (early.ops != nil || len(early.of) > 0) {
		t.Errorf("%s: %d are awaited, and %d things remembered", x.where, len(early.of), len(early.ops))
	}
}

// TestRegistrationsAreAwaitedWithinBounds: for some minutes, and of the last that was said.
func TestRegistrationsAreAwaitedWithinBounds(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	say := func(worker uint64, kind event.Kind, n int) {
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = uint64(i + 1)
		}
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: kind, Tier: event.External, Engine: hashes}}})
	}
	say(1, event.Removed, 100)
	say(2, event.Removed, earlyOps-50)
	if n := sp.early.of[1]; n != 50 || len(sp.early.ops) != earlyOps {
		t.Errorf("%d of the oldest, %d in all", n, len(sp.early.ops))
	}
	if err := sp.SetPools(t.Context(), 3, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	say(3, event.Removed, earlyOps) // of a pool: they push out all that somebody is awaited for
	if sp.early.ops != nil {
		t.Errorf("%d are remembered for nobody", len(sp.early.ops))
	}
	apply(t, sp, chain(4, 0, 1, 2))
	say(4, event.Stored, 2)
	say(5, event.Removed, 2)
	begin := time.Unix(1000, 0)
	for _, at := range []time.Duration{0, earlyKeep - 1, earlyKeep} {
		if len(sp.early.of) != 2 {
			t.Errorf("%d are awaited before %v", len(sp.early.of), at)
		}
		if err := sp.AgePools(t.Context(), begin.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if say(4, event.Stored, 2); sp.early.ops != nil {
		t.Error("one is awaited anew that was taken for one without pools")
	}
	if err := sp.RemoveWorker(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if say(4, event.Stored, 2); sp.early.of[4] != 2 || len(sp.table.unpooled) != 0 {
		t.Errorf("one that has left is not awaited anew: %v, %v", sp.early.of, sp.table.unpooled)
	}
}

// TestWhatAWorkerSaysBeforeItIsRemovedIsOfItsPools: its registration is gone before the last that it has published is read.
func TestWhatAWorkerSaysBeforeItIsRemovedIsOfItsPools(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	pools := []event.Pool{{Name: "p"}}
	for w := range uint64(2) {
		if err := sp.SetPools(t.Context(), w, []uint32{0}, pools); err != nil {
			t.Fatal(err)
		}
		apply(t, sp, chain(w, 0, 1, 2, 3))
	}
	say := func(worker uint64, kind event.Kind, blocks ...uint64) {
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: kind, Tier: event.External, Engine: blocks}}})
	}
	has := func(when string, blocks, workers int) {
		t.Helper()
		if p := sp.Pools(); len(p) != 1 || p[0] != (PoolStat{"p", blocks, workers}) {
			t.Errorf("%s: %+v", when, p)
		}
	}
	say(0, event.Stored, 1, 2)
	sp.Unregistered(0)
	say(0, event.Stored, 3)
	say(0, event.Removed, 2)
	has("before it is removed", 2, 2)
	if err := sp.RemoveWorker(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	has("removed", 2, 1)
	say(0, event.Removed, 1) // of its next life
	has("before it is registered", 2, 1)
	if err := sp.SetPools(t.Context(), 0, []uint32{0}, pools); err != nil {
		t.Fatal(err)
	}
	has("registered", 1, 2)
	sp.Unregistered(0)
	if err := sp.SetPools(t.Context(), 0, []uint32{0}, pools); err != nil { // it is back before it is removed
		t.Fatal(err)
	}
	if err := sp.RemoveWorker(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	say(0, event.Removed, 3)
	has("of one that is registered", 0, 2)
	has("before nobody has removed it", 0, 2)
	sp.Unregistered(0) // and nobody removes it
	for _, at := range []int64{1000, 1059, 1060} {
		if err := sp.AgePools(t.Context(), time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	has("nobody has removed it", 0, 1)
	sp.Unregistered(7) // of whom nobody has heard
	if len(sp.table.leaving) != 0 {
		t.Errorf("%v", sp.table.leaving)
	}
}

// TestWhatIsRememberedAnewIsInOrder: a ring that others have pushed all out of, and that begins anew.
func TestWhatIsRememberedAnewIsInOrder(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	say := func(worker uint64, kind event.Kind, hashes ...uint64) {
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: kind, Tier: event.External, Engine: hashes}}})
	}
	many := make([]uint64, earlyOps)
	for i := range many {
		many[i] = 1000 + uint64(i)
	}
	pools := []event.Pool{{Name: "p"}}
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, pools); err != nil {
		t.Fatal(err)
	}
	say(2, event.Removed, 1, 2, 3)
	say(1, event.Removed, many...)
	if sp.early.ops != nil {
		t.Fatalf("%d are remembered for nobody", len(sp.early.ops))
	}
	apply(t, sp, chain(1, 0, 1, 2, 3))
	say(1, event.Stored, 1, 2)
	apply(t, sp, chain(2, 0, 1, 2, 3))
	say(2, event.Stored, 1, 2)
	say(2, event.Removed, 1, 2)
	say(2, event.Stored, 3)
	if err := sp.SetPools(t.Context(), 2, []uint32{0}, pools); err != nil {
		t.Fatal(err)
	}
	if p := sp.Pools(); len(p) != 1 || p[0].Blocks != 1 {
		t.Errorf("%+v, want block 3 alone", p)
	}
}

// TestHostileWorkersAreForgottenAtOnce: of many who are awaited, and of one that says again and again that all has left, what is
// remembered is gone through once; a pass for each would hold up the space for a minute or two.
func TestHostileWorkersAreForgottenAtOnce(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	say := func(worker uint64, kind event.Kind, hashes ...uint64) event.Batch {
		return event.Batch{Space: sp.Key(), Worker: worker, Events: []event.Event{{Kind: kind, Tier: event.External, Engine: hashes}}}
	}
	for w := range uint64(earlyOps) {
		b := say(w, event.Removed, 1)
		apply(t, sp, &b)
	}
	begin := time.Unix(1000, 0)
	for _, at := range []time.Duration{0, earlyKeep} {
		if n := len(sp.early.of); n != earlyOps {
			t.Errorf("%d are awaited", n)
		}
		if err := sp.AgePools(t.Context(), begin.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if sp.early.ops != nil || sp.early.of != nil || len(sp.table.unpooled) > 0 {
		t.Errorf("%d are awaited, %d things are remembered, %d have no pools", len(sp.early.of), len(sp.early.ops), len(sp.table.unpooled))
	}
	hashes := make([]uint64, earlyOps/2)
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	b := say(3, event.Stored, hashes...)
	apply(t, sp, chain(3, 0, 1, 2))
	apply(t, sp, &b)
	b = say(3, event.Cleared)
	b.Events = slices.Repeat(b.Events, earlyOps/2-1)
	apply(t, sp, &b)
	b = say(3, event.Stored, 1)
	apply(t, sp, &b)
	if err := sp.SetPools(t.Context(), 3, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	if p := sp.Pools(); len(p) != 1 || p[0].Blocks != 1 {
		t.Errorf("%+v, want block 1 alone", p)
	}
}

// TestARegistrationBeforeADumpIsCommitted: what was dumped before the worker's registration was known is of its pools, whenever
// in the course of the dump that comes.
func TestARegistrationBeforeADumpIsCommitted(t *testing.T) {
	for at := range 4 {
		sp := openSpace(t, Config{Shards: 2})
		name := func(when int) {
			if when != at {
				return
			}
			if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
				t.Fatal(err)
			}
		}
		c := chain(1, 0, 1, 2, 3).Events[0]
		p, err := sp.Replace(t.Context(), RankID{1, 0})
		if err != nil {
			t.Fatal(err)
		}
		name(0)
		if _, err := p.Add(t.Context(), []event.Event{c, {Kind: event.Stored, Tier: event.External, Engine: c.Engine[:2]}}, [][]uint32{{1, 1, 1}, {1, 1}}); err != nil {
			t.Fatal(err)
		}
		name(1)
		if _, err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		name(2)
		done := make(chan struct{})
		if err := p.Commit(t.Context(), func() { close(done) }); err != nil {
			t.Fatal(err)
		}
		<-done
		name(3)
		if p := sp.Pools(); len(p) != 1 || p[0] != (PoolStat{"p", 2, 1}) {
			t.Errorf("registered at step %d: %+v", at, p)
		}
		if r := sp.Ranks(); r[0].Held[event.External] != 0 {
			t.Errorf("registered at step %d: the worker has it too: %+v", at, r)
		}
	}
}
