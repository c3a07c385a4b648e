package engine

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// The hashes of the layouts: vLLM's and SGLang's of the two blocks.
const (
	vllm0, vllm1 = 0x101e1ec2751812af, 0xb6852d4786f8d394
	sgl0, sgl1   = 0x84c7354ba192a4a0, 0x0b719ab6a5acf01d
)

// TestEveryLayout states what each line of testdata/layouts.jsonl means.
func TestEveryLayout(t *testing.T) {
	both := local(t, 0, 1, 2, 300, 70000, 5, 6, 7, 8)
	stored := func(l []uint64, engine ...uint64) event.Event {
		return event.Event{Kind: event.Stored, Engine: engine, Local: l}
	}
	removed := func(tier event.Tier, engine ...uint64) event.Event {
		return event.Event{Kind: event.Removed, Tier: tier, Engine: engine}
	}
	cleared := event.Event{Kind: event.Cleared, AllTiers: true}
	vllm := stored(both, vllm0, vllm1)
	sgl := stored(both, sgl0, sgl1)
	rank1 := removed(event.HostPinned, sgl0, sgl1)
	rank1.DPRank = 1
	mooncake := stored(nil, 42)
	mooncake.Tier = event.HostPinned
	window := stored(nil, vllm1)
	window.Group, window.DPRank = 2, 3
	want := map[string]event.Event{ // by the layout's name
		"V7m": window,
		"V0":  stored(both, 0xa68f35f32a294ffd, 42),
		"V1":  vllm,
		"V2":  vllm,
		"V2b": stored(both[:1], 0x1e1ec2751812af|0x10<<56),
		"V3":  vllm,
		"V4":  vllm,
		"V5":  vllm,
		"V6":  vllm,
		"V7":  vllm,
		"V7r": removed(event.Device, vllm1),
		"V7c": cleared,
		"V6r": removed(event.Device, vllm1),
		"V2r": removed(event.Device, vllm1),
		"V*c": cleared,
		"S1":  sgl,
		"S2":  sgl,
		"S3":  stored(local(t, blockhash.Seed("", "salt"), 1, 2, 300, 70000), sgl0),
		"S4":  sgl,
		"S4h": rank1,
		"T1":  stored(both[:1], 1<<63|1),
		"D1":  stored(both[:1], 1<<63|1),
		"M1":  mooncake,
	}
	n := 0
	for name, payload := range layouts(t) {
		n++
		t.Run(name, func(t *testing.T) {
			code, _, _ := strings.Cut(name, " ")
			d := newDecoder(t, Config{BlockSize: 4})
			ev, ok := want[code]
			if !ok {
				t.Fatal("the test does not say what this layout means")
			}
			check(t, d, payload, int64(published), ev)
			if d.Stats() != (Stats{}) {
				t.Errorf("left out %v", d.Stats())
			}
		})
	}
	if n != 23 {
		t.Errorf("%d layouts, want 23", n)
	}
}

// TestLayoutsInOneStream decodes them all with one decoder, as after upgrades.
func TestLayoutsInOneStream(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4})
	for range 3 {
		for name, payload := range layouts(t) {
			if _, err := d.Decode(payload); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if d.Stats() != (Stats{}) {
		t.Errorf("left out %v", d.Stats())
	}
}
