package mocker

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
)

// TestRawIsReadAsWhatTheEngineMeant: the bytes for kvpublisher say what the mock engine said,
// with salts and adapters.
func TestRawIsReadAsWhatTheEngineMeant(t *testing.T) {
	tokens := []uint32{1, 2, 3, 70000, 5, 6, 7, 8}
	for _, c := range []struct{ lora, salt string }{{}, {"sql", ""}, {"", "s"}, {"sql", "s"}} {
		local, err := blockhash.LocalHashes(nil, tokens, 4, blockhash.Options{Seed: blockhash.Seed(c.lora, c.salt)})
		if err != nil {
			t.Fatal(err)
		}
		r := &raw{size: 4, keep: 8, now: map[uint64]content{}}
		r.told(&mockapi.Blocks{Local: local, Tokens: tokens, Lora: c.lora, Salt: c.salt})
		dec, err := engine.NewDecoder(engine.Config{BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		read := func(ev event.Event) event.Event {
			b, err := dec.Decode(r.payload(&ev))
			if err != nil || len(b.Events) != 1 {
				t.Fatalf("%+v: %v", b, err)
			}
			return b.Events[0]
		}
		for i, ev := range []event.Event{
			{Kind: event.Stored, DPRank: 3, Engine: []uint64{1 << 63}, Local: local[:1]},
			{Kind: event.Stored, DPRank: 3, HasParent: true, Parent: 1 << 63, Engine: []uint64{9}, Local: local[1:]},
		} {
			if got := read(ev); got.DPRank != 3 || got.Engine[0] != ev.Engine[0] || got.Local[0] != ev.Local[0] || got.Parent != ev.Parent {
				t.Errorf("%v: block %d is read as %+v, was %+v", c, i, got, ev)
			}
		}
		if got := read(event.Event{Kind: event.Removed, Engine: []uint64{9}}); got.Kind != event.Removed || got.Engine[0] != 9 {
			t.Errorf("a removal is read as %+v", got)
		}
		if got := read(event.Event{Kind: event.Cleared, AllTiers: true}); got.Kind != event.Cleared {
			t.Errorf("a clear is read as %+v", got)
		}
		if r.payload(&event.Event{Kind: event.Stored, Engine: []uint64{5}, Local: []uint64{5}}) != nil {
			t.Error("a block whose content nobody told is published")
		}
	}
}

// Of a hybrid model, the bytes are read as what the engine meant of each cache group, and tell
// what the groups are; but for the size of chunks, which vLLM does not tell.
func TestRawOfCacheGroups(t *testing.T) {
	const size = 4
	cfg := mock.Config{BlockSize: size, Blocks: 40, MaxBatched: 32, Groups: []mock.Group{
		{Kind: "sliding_window", Span: 10, Blocks: 12}, {Kind: "mamba", BlockSize: 2 * size, Blocks: 5}, {Kind: "chunked_local_attention", Span: 16},
	}}
	r := &raw{size: size, keep: 1 << 16, now: map[uint64]content{}, groups: cfg.CacheGroups()}
	dec, err := engine.NewDecoder(engine.Config{BlockSize: size})
	if err != nil {
		t.Fatal(err)
	}
	var told []event.CacheGroup
	kinds := map[[2]uint8]int{}
	e, err := mock.New(cfg, func(ev *event.Event) {
		b, err := dec.Decode(r.payload(ev))
		if err != nil || len(b.Events) != 1 || b.Lost > 0 {
			t.Fatalf("%+v is read as %+v, %v", ev, b, err)
		}
		if b.Groups != nil {
			told = b.Groups
		}
		got := b.Events[0]
		if got.Kind != ev.Kind || got.Group != ev.Group || got.HasParent != ev.HasParent || got.Parent != ev.Parent || !slices.Equal(got.Engine, ev.Engine) || !slices.Equal(got.Local, ev.Local) {
			t.Fatalf("%+v is read as %+v", ev, got)
		}
		kinds[[2]uint8{uint8(ev.Kind), ev.Group}]++
	})
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(20, 1))
	for id := range uint64(100) {
		tokens := make([]uint32, 1+rnd.IntN(100))
		for i := range tokens {
			tokens[i] = uint32(i) + uint32(id%5)<<16
		}
		local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r.told(&mockapi.Blocks{Local: local, Tokens: tokens})
		if err := e.Admit(&mock.Request{ID: id, Input: len(tokens), Local: local}); err != nil {
			t.Fatal(err)
		}
		for !e.Idle() {
			e.Step()
		}
	}
	want := cfg.CacheGroups()
	want[3].Span = 0
	slices.SortFunc(told, func(a, b event.CacheGroup) int { return int(a.Number) - int(b.Number) })
	if len(kinds) < 7 || !slices.Equal(told, want) {
		t.Errorf("events by kind and group: %v; the groups are told as %+v, want %+v", kinds, told, want)
	}
}
