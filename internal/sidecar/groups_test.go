package sidecar

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

var hybrid = []event.CacheGroup{
	{Number: 0, Kind: "full_attention", BlockSize: 1}, {Number: 1, Kind: "sliding_window", BlockSize: 1, Span: 3}, {Number: 4, Kind: "mamba", BlockSize: 1},
}

// What a set publishes of an engine's cache groups, whose copies it counts, is to a reader
// without copies what the engine holds; so is a state that was kept meanwhile, and the dump
// of a publisher's local index.
func TestSetOfCacheGroups(t *testing.T) {
	model, err := groups.NewModel(hybrid, 1)
	if err != nil {
		t.Fatal(err)
	}
	some := 0
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(20, seed))
		s, oracle, reader := newSet(), groups.NewOracle(), groups.NewTable()
		source := recovery.NewSource(recovery.Config{Space: event.Space{Model: "m", BlockSize: 1}, Ring: 1, RingBytes: 1 << 20, KeepDump: 1 << 40})
		var main []event.Event
		id := uint64(0)
		emit := func(ev event.Event) error {
			ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
			if b := (event.Batch{Space: event.Space{BlockSize: 1}, Events: []event.Event{ev}}); b.Check() != nil {
				t.Fatalf("it publishes %+v", ev)
			}
			reader.Apply(&ev, false)
			id++
			ev.ID = id
			source.Apply(ev)
			if ev.Group == 0 {
				main = append(main, ev)
			}
			return nil
		}
		for step := range 120 {
			for _, ev := range someEvents(rnd) {
				oracle.Apply(&ev, true)
				if _, err := s.apply(&ev, true, emit); err != nil {
					t.Fatal(err)
				}
			}
			local := []uint64{1, 1 + rnd.Uint64N(2), 1 + rnd.Uint64N(2), 1}
			want := oracle.Reusable(hybrid, 1, local, 5)
			if have := reader.Reusable(model, blockhash.SequenceHashes(nil, local), 5, oracle.Depth(local)); have != want {
				t.Fatalf("seed %d, step %d: of %v %v are reusable, the oracle says %v", seed, step, local, have, want)
			}
			if want[0] > 0 {
				some++
			}
			if step == 60 { // a restart
				st, err := decodeState(appendState(nil, &state{set: s}))
				if err != nil {
					t.Fatal(err)
				}
				s = st.set
			}
		}
		if s.groups.Digest(1, 2, 3) == reader.Digest(1, 2, 3) && seed == 0 {
			t.Error("no block has copies")
		}
		if have, want := fromDump(t, source, main).Digest(1, 2, 3), reader.Digest(1, 2, 3); have != want {
			t.Errorf("seed %d: the dump has digest %x, the reader %x", seed, have, want)
		}
	}
	if some < 100 {
		t.Errorf("only %d prompts are reusable", some)
	}
}

// someEvents are of prompts of which the names are their content. Group 0 loses nothing
// but all at once.
func someEvents(rnd *rand.Rand) []event.Event {
	local := []uint64{1, 1 + rnd.Uint64N(2), 1 + rnd.Uint64N(2), 1}
	var names []uint64
	for i := range local {
		n := uint64(0)
		for _, l := range local[:i+1] {
			n = 10*n + l
		}
		names = append(names, n)
	}
	if rnd.IntN(60) == 0 {
		return []event.Event{{Kind: event.Cleared, AllTiers: true}}
	}
	group := uint8(1 + 3*rnd.IntN(2))
	if rnd.IntN(2) == 0 {
		return []event.Event{{Kind: event.Removed, Group: group, Engine: names[rnd.IntN(4):]}}
	}
	return []event.Event{{Kind: event.Stored, Group: group, Engine: names[rnd.IntN(4):]}, {Kind: event.Stored, Engine: names, Local: local}}
}

// fromDump reads the dump of a local index, after the events of group 0.
func fromDump(t *testing.T, source *recovery.Source, main []event.Event) *groups.Table {
	t.Helper()
	reply, kind := source.Answer(recovery.AppendRequest(nil, recovery.Request{}), 1<<20)
	if kind != recovery.Dump {
		t.Fatalf("the answer is %s", kind)
	}
	r, err := recovery.DecodeReply(reply)
	if err != nil {
		t.Fatal(err)
	}
	table := groups.NewTable()
	for i := range main {
		table.Apply(&main[i], false)
	}
	var frames recovery.Frames
	if err := frames.Add(r.Body, func(b *event.Batch, copies [][]uint32) error {
		for i := range b.Events {
			if b.Events[i].Group > 0 {
				table.Restore(&b.Events[i], copies[i])
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return table
}

// A state of before groups were told apart lacks what they hold: nothing is said of them
// until all is cleared. Without groups the format is that of before.
func TestStateWithoutCacheGroups(t *testing.T) {
	plain := appendState(nil, &state{set: newSet()})
	if plain[4] != plainVersion {
		t.Errorf("a state without groups has version %d", plain[4])
	}
	old := appendState(nil, &state{set: newSet(), hybrid: true})
	for range 2 { // and once more, as kept by this version
		st, err := decodeState(old)
		if err != nil {
			t.Fatal(err)
		}
		var said []event.Event
		emit := func(ev event.Event) error { said = append(said, ev); return nil }
		window := event.Event{Kind: event.Stored, Group: 1, Engine: []uint64{1}}
		if _, err := st.set.apply(&window, true, emit); err != nil || said != nil {
			t.Errorf("it says %+v, %v", said, err)
		}
		old = appendState(nil, st)
		for _, ev := range []event.Event{{Kind: event.Cleared, AllTiers: true}, window} {
			if _, err := st.set.apply(&ev, true, emit); err != nil {
				t.Fatal(err)
			}
		}
		if len(said) != 2 || said[1].Group != 1 {
			t.Errorf("after a clear it says %+v", said)
		}
	}
	st := &state{set: newSet()}
	if _, err := st.set.apply(&event.Event{Kind: event.Stored, Group: 1, Engine: []uint64{1}}, true, func(event.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	grouped := appendState(nil, st)
	for n := range len(grouped) {
		if _, err := decodeState(grouped[:n]); !errors.Is(err, errState) {
			t.Fatalf("the first %d bytes of a state: %v", n, err)
		}
	}
}

func TestCacheGroupsSetting(t *testing.T) {
	for text, want := range map[string]string{
		"":   "",
		"[]": "",
		`[{"number":1,"kind":"mamba","block_size":4,"eagle":true}]`: "",
		`[{"number":16,"kind":"mamba"}]`:                            "number 16",
		`[{"number":1}]`:                                            "no kind",
		`[{"number":1,"kind":"mamba"},{"number":1,"kind":"mamba"}]`: "twice",
		`[{"nummer":1}]`:                                            "nummer",
		`{`:                                                         "--cache-groups",
	} {
		if _, err := parseGroups(text); (err == nil) != (want == "") || err != nil && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
