package groups

import (
	"maps"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// fuzzLayouts are models whose answers Oracle can give: without EAGLE, and without states
// that are cached more finely than in blocks.
var fuzzLayouts = [][]event.CacheGroup{
	someGroups,
	{{Number: 0, Kind: "full_attention", BlockSize: 2}, {Number: 1, Kind: "sliding_window", BlockSize: 4, Span: 7}},
	{{Number: 0, Kind: "mla_attention", BlockSize: 2}, {Number: 3, Kind: "chunked_local_attention", BlockSize: 2, Span: 6}},
	{{Number: 0, Kind: "full_attention", BlockSize: 2}, {Number: 1, Kind: "sliding_window", BlockSize: 4, Span: 2}, {Number: 15, Kind: "mamba", BlockSize: 4}},
	{{Number: 0, Kind: "full_attention", BlockSize: 2}, {Number: 1, Kind: "full_attention", BlockSize: 6}, {Number: 2, Kind: "sliding_window", BlockSize: 2, Span: 3}},
}

// fuzzRank is a rank as any bytes have it act: names follow from content, and nothing else
// is as an engine would do it.
type fuzzRank struct {
	data   []byte
	table  *Table
	oracle *Oracle
	count  bool
	main   []event.Event
}

func (r *fuzzRank) next(n int) int {
	if len(r.data) == 0 {
		return 0
	}
	b := int(r.data[0])
	r.data = r.data[1:]
	return b % n
}

// prompt takes two bytes: how long it is, and its blocks.
func (r *fuzzRank) prompt() (local []uint64) {
	long, bits := 1+r.next(9), r.next(256)
	for i := range long {
		local = append(local, uint64(1+bits>>(i%8)&1))
	}
	return local
}

// names tells the oracle what each stands for, whether the table is told or not.
func (r *fuzzRank) names(local []uint64) (names []uint64) {
	name := uint64(1)
	for i, l := range local {
		name = name*3 + l
		names = append(names, name)
		r.oracle.chains[name] = local[:i+1]
	}
	return names
}

func (r *fuzzRank) apply(ev event.Event) {
	r.table.Apply(&ev, r.count)
	r.oracle.Apply(&ev, r.count)
	if ev.Group == 0 {
		r.main = append(r.main, ev)
	}
}

func (r *fuzzRank) step(list []event.CacheGroup) {
	local := r.prompt()
	names := r.names(local)
	from, tier := r.next(len(names)), event.Tier(r.next(event.NumTiers))
	group := list[1+r.next(len(list)-1)].Number
	main := func(name uint64) bool {
		for t := range event.Tier(event.NumTiers) {
			if r.oracle.copies[oracleCopy{name, 0, t}] > 0 {
				return true
			}
		}
		return false
	}
	switch r.next(16) {
	case 0, 1, 2, 3, 4: // its parent may be one that nobody told of
		ev := event.Event{Kind: event.Stored, Tier: tier, Engine: names[from:], Local: local[from:]}
		if from > 0 {
			ev.HasParent, ev.Parent = true, names[from-1]
		}
		r.apply(ev)
	case 5, 6, 7, 8:
		r.apply(event.Event{Kind: event.Stored, Tier: tier, Group: group, Engine: names[from:]})
	case 9: // on another tier by name alone
		if names = slices.DeleteFunc(names, func(n uint64) bool { return !main(n) }); len(names) > 0 {
			r.apply(event.Event{Kind: event.Stored, Tier: tier, Engine: names})
		}
	case 10, 11:
		r.apply(event.Event{Kind: event.Removed, Tier: tier, Engine: names[from:]})
	case 12, 13:
		r.apply(event.Event{Kind: event.Removed, Tier: tier, Group: group, Engine: names[from:]})
	case 14:
		r.apply(event.Event{Kind: event.Cleared, Tier: tier, AllTiers: from == 0})
	case 15: // what has no group or tier is nobody's
		r.table.Apply(&event.Event{Kind: event.Stored, Tier: event.NumTiers + tier, Group: group, Engine: names}, r.count)
		r.table.Apply(&event.Event{Kind: event.Kind(200), Tier: tier, Group: group, Engine: names}, r.count)
	}
}

// FuzzTable checks that after any operations a Table that calls itself exact says what the
// literal reference says, and is the same once it is dumped and restored.
func FuzzTable(f *testing.F) {
	f.Fuzz(fuzzTable)
}

func fuzzTable(t *testing.T, data []byte) {
	r := &fuzzRank{data: data, table: NewTable(), oracle: NewOracle()}
	list := fuzzLayouts[r.next(len(fuzzLayouts))]
	r.count = r.next(2) == 1
	model, err := NewModel(list, 2)
	if err != nil {
		t.Fatal(err)
	}
	for step := 0; len(r.data) > 0 && step < 64; step++ {
		r.step(list)
		local := r.prompt()
		seqs := places(local)
		tokens := 2*len(local) + r.next(2)
		depth := r.oracle.Depth(local)
		have := r.table.Reusable(model, seqs, tokens, depth)
		for tier, d := range have {
			if d > depth[tier] || tier > 0 && d < have[tier-1] {
				t.Fatalf("step %d: %v of %v blocks are reusable", step, have, depth)
			}
		}
		if want := r.oracle.Reusable(list, 2, local, tokens); r.table.Exact(model) && have != want {
			t.Fatalf("step %d: %v of %d tokens (%v) are reusable, the oracle says %v", step, have, tokens, local, want)
		}
	}
	again := NewTable()
	for i := range r.main {
		again.Apply(&r.main[i], r.count)
	}
	r.table.Dump(func(ev *event.Event, copies []uint32) { again.Restore(ev, copies) })
	again.Restored()
	if again.Digest(1, 2, 3) != r.table.Digest(1, 2, 3) || again.Held() != r.table.Held() {
		t.Fatalf("a dump has another digest: %d of %d blocks", again.Held(), r.table.Held())
	}
	for _, k := range slices.Collect(maps.Keys(r.oracle.copies)) { // each copy that there is can be removed, and nothing is left
		for range max(1, r.oracle.copies[k]) {
			r.table.Apply(&event.Event{Kind: event.Removed, Tier: k.tier, Group: k.group, Engine: []uint64{k.name}}, r.count)
		}
	}
	if r.table.Names() != 0 || len(r.table.places) != 0 || len(r.table.more) != 0 || r.table.lost != 0 {
		t.Fatalf("%d names, %d places, %d lost are left", r.table.Names(), len(r.table.places), r.table.lost)
	}
}
