package mocker

import (
	"testing"

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
