package groups

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// someGroups is a model with two windows, full attention of its own, and states.
var someGroups = []event.CacheGroup{
	{Number: 0, Kind: "full_attention", BlockSize: 2},
	{Number: 1, Kind: "sliding_window", BlockSize: 2, Span: 5},
	{Number: 2, Kind: "mla_attention", BlockSize: 4},
	{Number: 5, Kind: "mamba", BlockSize: 2},
}

// someEngine is a rank of an engine: what its group 0 has of a few prompts that share
// beginnings, and names that are given once.
type someEngine struct {
	rnd   *rand.Rand
	names map[string]uint64 // by chain
	main  map[uint64]int    // copies that group 0 has on any tier
	apply func(ev *event.Event)
}

func (e *someEngine) prompt() []uint64 {
	var local []uint64
	for range 1 + e.rnd.IntN(9) {
		local = append(local, 1+e.rnd.Uint64N(2))
	}
	return local
}

func (e *someEngine) name(local []uint64) uint64 {
	key := ""
	for _, l := range local {
		key += string(rune(l))
	}
	if e.names[key] == 0 {
		e.names[key] = e.rnd.Uint64() | 1
	}
	return e.names[key]
}

func (e *someEngine) tier() event.Tier { return event.Tier(max(0, e.rnd.IntN(8)-4)) }

func (e *someEngine) group() uint8 { return []uint8{1, 2, 5}[e.rnd.IntN(3)] }

// step makes one event: blocks of group 0 only where it has those before them.
func (e *someEngine) step() {
	local := e.prompt()
	var names []uint64
	for i := range local {
		names = append(names, e.name(local[:i+1]))
	}
	switch e.rnd.IntN(12) {
	case 0, 1, 2, 3:
		from := 0
		for from < len(names)-1 && e.main[names[from]] > 0 && e.rnd.IntN(6) > 0 {
			from++
		}
		ev := event.Event{Kind: event.Stored, Tier: e.tier(), Engine: names[from:], Local: local[from:]}
		if from > 0 {
			ev.HasParent, ev.Parent = true, names[from-1]
		}
		for _, n := range ev.Engine {
			e.main[n]++
		}
		e.apply(&ev)
	case 4, 5, 6, 7: // before or after group 0 has it
		e.apply(&event.Event{Kind: event.Stored, Tier: e.tier(), Group: e.group(), Engine: names[e.rnd.IntN(len(names)):]})
	case 8, 9:
		e.apply(&event.Event{Kind: event.Removed, Tier: e.tier(), Group: e.group(), Engine: names[e.rnd.IntN(len(names)):]})
	case 10:
		for _, n := range slices.Sorted(maps.Keys(e.main)) { // in an order that the seed says
			if e.rnd.IntN(3) == 0 {
				for t := range event.Tier(event.NumTiers) {
					for range e.main[n] {
						e.apply(&event.Event{Kind: event.Removed, Tier: t, Engine: []uint64{n}})
					}
				}
				delete(e.main, n)
			}
		}
	case 11:
		if e.rnd.IntN(8) == 0 {
			ev := event.Event{Kind: event.Cleared, AllTiers: e.rnd.IntN(2) == 0, Tier: e.tier()}
			if ev.AllTiers {
				clear(e.main)
			}
			e.apply(&ev)
		}
	}
}

func places(local []uint64) (seqs []uint64) {
	for i, l := range local {
		if i > 0 {
			l = blockhash.NextSequenceHash(seqs[i-1], l)
		}
		seqs = append(seqs, l)
	}
	return seqs
}

// A Table says of random histories what the literal reference says, and so does one that is
// made from its dump.
func TestTableIsTheOracle(t *testing.T) {
	model, err := NewModel(someGroups, 2)
	if err != nil {
		t.Fatal(err)
	}
	asked, some, exact := 0, 0, 0
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(20, seed))
		table, oracle, count := NewTable(), NewOracle(), seed%2 == 0
		var main []event.Event
		e := &someEngine{rnd: rnd, names: map[string]uint64{}, main: map[uint64]int{}, apply: func(ev *event.Event) {
			table.Apply(ev, count)
			oracle.Apply(ev, count)
			if ev.Group == 0 {
				main = append(main, *ev)
			}
		}}
		for range 400 {
			e.step()
			asked++
			if !table.Exact(model) {
				continue
			}
			exact++
			local := e.prompt()
			tokens := 2*len(local) + rnd.IntN(2)
			depth, want := oracle.Depth(local), oracle.Reusable(someGroups, 2, local, tokens)
			if have := table.Reusable(model, places(local), tokens, depth); have != want {
				t.Fatalf("seed %d: %v of %d tokens %v are reusable, the oracle says %v", seed, have, tokens, local, want)
			}
			if want[event.NumTiers-1] > 0 {
				some++
			}
		}
		again := NewTable()
		for i := range main {
			again.Apply(&main[i], count)
		}
		table.Dump(func(ev *event.Event, copies []uint32) { again.Restore(ev, copies) })
		again.Restored()
		if have, want := again.Digest(1, 2, 3), table.Digest(1, 2, 3); have != want || again.Held() != table.Held() {
			t.Errorf("seed %d: another digest after a dump: %x, %x, %d of %d blocks", seed, have, want, again.Held(), table.Held())
		}
		table.Apply(&event.Event{Kind: event.Cleared, AllTiers: true}, count)
		if table.Names() != 0 || table.Held() != 0 || len(table.places) != 0 || len(table.more) != 0 || table.lost != 0 {
			t.Errorf("seed %d: something is left of a cleared rank", seed)
		}
	}
	if some < 200 || exact < asked/2 {
		t.Errorf("of %d prompts %d were asked about exactly, %d were reusable", asked, exact, some)
	}
}

// All that is removed one by one leaves nothing behind, in whatever order.
func TestTableForgetsWhatIsRemoved(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	table := NewTable()
	var log []event.Event
	e := &someEngine{rnd: rnd, names: map[string]uint64{}, main: map[uint64]int{}, apply: func(ev *event.Event) {
		if ev.Kind == event.Stored {
			table.Apply(ev, true)
			log = append(log, *ev)
		}
	}}
	for range 200 {
		e.step()
	}
	rnd.Shuffle(len(log), func(i, j int) { log[i], log[j] = log[j], log[i] })
	for i := range log {
		table.Apply(&event.Event{Kind: event.Removed, Tier: log[i].Tier, Group: log[i].Group, Engine: log[i].Engine}, true)
	}
	if table.Names() != 0 || len(table.places) != 0 || len(table.more) != 0 || table.lost != 0 || len(table.free) != len(table.entries) {
		t.Errorf("%d names, %d places, %d lost are left", table.Names(), len(table.places), table.lost)
	}
}

// What is not known well enough is not called exact.
func TestTableSaysWhatItLacks(t *testing.T) {
	model, err := NewModel(someGroups, 2)
	if err != nil {
		t.Fatal(err)
	}
	main := event.Event{Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{7, 8}}
	others := func(table *Table) {
		for _, g := range someGroups[1:] {
			if table.Exact(model) {
				t.Error("it is called exact before every group is heard of")
			}
			table.Apply(&event.Event{Kind: event.Stored, Group: g.Number, Engine: []uint64{1}}, true)
		}
	}
	for name, c := range map[string]struct {
		first event.Event // after main
		then  event.Event // after which it is exact
	}{
		"a hole in the stream": {event.Event{Kind: event.Stored, Group: 1, Incomplete: true, Engine: []uint64{1}}, event.Event{}},
		"an unknown group":     {event.Event{Kind: event.Stored, Group: 9, Engine: []uint64{1}}, event.Event{}},
		"an unknown parent":    {event.Event{Kind: event.Stored, HasParent: true, Parent: 77, Engine: []uint64{5}, Local: []uint64{1}}, event.Event{Kind: event.Removed, Engine: []uint64{5}}},
	} {
		table := NewTable()
		table.Apply(&main, true)
		others(table)
		if !table.Exact(model) {
			t.Fatal("it lacks something from the start")
		}
		table.Apply(&c.first, true)
		if table.Exact(model) {
			t.Errorf("%s: it is called exact", name)
		}
		table.Apply(&c.then, true)
		if have := table.Exact(model); have != (c.then.Kind != 0) {
			t.Errorf("%s: then exact is %v", name, have)
		}
		table.Apply(&event.Event{Kind: event.Cleared, AllTiers: true}, true)
		table.Apply(&main, true)
		others(table) // which it may not have any more
		if !table.Exact(model) {
			t.Errorf("%s: it is not exact once all was cleared and stored again", name)
		}
	}
}

// Names of one place do not make one another slow: beyond a few they are blocks whose place
// is not known.
func TestManyNamesOfOnePlace(t *testing.T) {
	table := NewTable()
	const many = 100
	for n := range uint64(many) {
		table.Apply(&event.Event{Kind: event.Stored, Engine: []uint64{n}, Local: []uint64{7}}, true)
	}
	chain := 0
	for at := table.places[7] + 1; at != 0; at = table.entries[at-1].next {
		chain++
	}
	if chain > maxNames || table.lost != many-chain {
		t.Errorf("%d names of one place are followed, %d have none, of %d", chain, table.lost, many)
	}
	for n := range uint64(many) {
		table.Apply(&event.Event{Kind: event.Removed, Engine: []uint64{n}}, true)
	}
	if table.Names() != 0 || len(table.places) != 0 || table.lost != 0 {
		t.Errorf("%d names, %d places, %d lost are left", table.Names(), len(table.places), table.lost)
	}
}

func TestModelsThatSayTooLittle(t *testing.T) {
	change := func(i int, f func(g *event.CacheGroup)) []event.CacheGroup {
		list := slices.Clone(someGroups)
		f(&list[i])
		return list
	}
	for name, list := range map[string][]event.CacheGroup{
		"none":               nil,
		"one":                someGroups[:1],
		"no full attention":  someGroups[1:],
		"a window of what":   change(1, func(g *event.CacheGroup) { g.Span = 0 }),
		"an unknown kind":    change(1, func(g *event.CacheGroup) { g.Kind = "cross_attention" }),
		"an unknown block":   change(3, func(g *event.CacheGroup) { g.BlockSize = 0 }),
		"a smaller block":    change(1, func(g *event.CacheGroup) { g.BlockSize = 1 }),
		"another main block": change(0, func(g *event.CacheGroup) { g.BlockSize = 4 }),
		"twice":              change(1, func(g *event.CacheGroup) { g.Number = 0 }),
	} {
		if _, err := NewModel(list, 2); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A window or a chunk of more tokens than most prompts have counts as it is: what is left of
// it does not do.
func TestWindowsLongerThanPrompts(t *testing.T) {
	const span, blocks = 1 << 16, 24 // of 4,096 tokens
	for _, kind := range []string{"sliding_window", "chunked_local_attention"} {
		model, err := NewModel([]event.CacheGroup{{Kind: "full_attention", BlockSize: 4096}, {Number: 2, Kind: kind, BlockSize: 4096, Span: span}}, 4096)
		if err != nil {
			t.Fatal(err)
		}
		table := NewTable()
		ev := event.Event{Kind: event.Stored}
		for i := range uint64(blocks) {
			ev.Engine, ev.Local = append(ev.Engine, i+1), append(ev.Local, i+1)
		}
		table.Apply(&ev, true)
		seqs := places(ev.Local)
		table.Apply(&event.Event{Kind: event.Stored, Group: 2, Engine: ev.Engine[12:]}, true)
		want := uint32(0) // the window reaches back to block 8
		if kind == "chunked_local_attention" {
			table.Apply(&event.Event{Kind: event.Removed, Group: 2, Engine: ev.Engine[16:]}, true)
			want = 16 // where the second chunk begins
		}
		if have := table.Reusable(model, seqs, 0, [event.NumTiers]uint32{blocks, blocks, blocks, blocks}); have[0] != want {
			t.Errorf("%s: %d blocks are reusable, want %d", kind, have[0], want)
		}
	}
}

// What a block of a rank with groups takes, and to ask about a prompt of 1,024 blocks.
func BenchmarkTable(b *testing.B) {
	list := []event.CacheGroup{{Number: 0, Kind: "full_attention", BlockSize: 16}, {Number: 2, Kind: "sliding_window", BlockSize: 16, Span: 4096}}
	model, err := NewModel(list, 16)
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := NewTable()
	rnd := rand.New(rand.NewPCG(1, 1))
	var ask []uint64
	for range 100 {
		ev := event.Event{Kind: event.Stored}
		for range 1024 {
			ev.Engine, ev.Local = append(ev.Engine, rnd.Uint64()), append(ev.Local, rnd.Uint64())
		}
		table.Apply(&ev, true)
		ask, ev.Group, ev.Local = places(ev.Local), 2, nil
		table.Apply(&ev, true)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := float64(after.HeapAlloc-before.HeapAlloc) / float64(table.Names())
	b.Run("ask", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if table.Reusable(model, ask, 0, [event.NumTiers]uint32{1024, 1024, 1024, 1024})[0] != 1024 {
				b.Fatal("not all")
			}
		}
		b.ReportMetric(float64(table.Bytes())/float64(table.Names()), "B/block")
		b.ReportMetric(heap, "heap-B/block")
	})
	b.Run("store", func(b *testing.B) { // and remove 16 blocks of the other group
		names := make([]uint64, 16)
		for b.Loop() {
			for i := range names {
				names[i] = rnd.Uint64()
			}
			table.Apply(&event.Event{Kind: event.Stored, Group: 2, Engine: names}, true)
			table.Apply(&event.Event{Kind: event.Removed, Group: 2, Engine: names}, true)
		}
	})
}
