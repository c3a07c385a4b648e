package sidecar

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// What vLLM says of an offload medium: names without tokens. Those whose content
// the engine never told are counted and not passed on, and are not held once it
// is told; and a sidecar that starts again holds the same.
func TestOffloadedNamesOfVLLM(t *testing.T) {
	type m = mptest.Map
	stored := func(medium string, hashes []uint64, tokens []uint32) m {
		return m{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", nil, "token_ids", tokens,
			"block_size", 4, "lora_id", nil, "medium", medium, "lora_name", nil}
	}
	removed := m{"type", "BlockRemoved", "block_hashes", []uint64{20, 11}, "medium", "CPU"}
	d, err := engine.NewDecoder(engine.Config{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	s, o := newSet(), core.NewOracle() // what a reader has
	for _, step := range []struct {
		says    any
		passed  []uint64
		unknown int
	}{
		{stored("GPU", []uint64{10, 11}, []uint32{1, 2, 3, 4, 5, 6, 7, 8}), []uint64{10, 11}, 0},
		{stored("CPU", []uint64{11, 20, 21, 20}, nil), []uint64{11}, 3},
		{stored("GPU", []uint64{20}, []uint32{9, 9, 9, 9}), []uint64{20}, 0},
		{removed, []uint64{11}, 0},
		{stored("CPU", []uint64{20}, nil), []uint64{20}, 0},
	} {
		b, err := d.Decode(mptest.Encode([]any{1.0, []any{step.says}, 0}))
		if err != nil {
			t.Fatal(err)
		}
		var passed []uint64
		out, err := s.apply(&b.Events[0], b.CountCopies, func(ev event.Event) error {
			passed = append(passed, ev.Engine...)
			if ev.Kind == event.Stored {
				o.Store(holder, &ev, false)
			} else {
				o.Remove(holder, &ev, false)
			}
			return nil
		})
		if err != nil || !slices.Equal(passed, step.passed) || out.UnknownBlock != step.unknown {
			t.Errorf("%v: passed on %v, want %v; %+v, %v", step.says, passed, step.passed, out, err)
		}
	}
	again, err := decodeState(appendState(nil, &state{set: s}))
	if err != nil {
		t.Fatal(err)
	}
	for tier := range event.Tier(event.NumTiers) {
		if have, want := again.set.held()[tier], o.Held(holder, tier); have != want {
			t.Errorf("tier %s: %d blocks after a restart, %d before", tier, have, want)
		}
	}
	if o.Held(holder, event.HostPinned) != 1 {
		t.Errorf("%d blocks in host memory", o.Held(holder, event.HostPinned))
	}
}
