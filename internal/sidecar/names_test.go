package sidecar

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

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

// TestAllThatIsSaidOfPoolsIsPassedOn: others remove what this engine has stored there and the other way
// round, and what is not said again may grow old; so nothing is held back.
func TestAllThatIsSaidOfPoolsIsPassedOn(t *testing.T) {
	out := new(notepad)
	s, err := newStream(streamConfig{
		blockSize: 1, pooled: [event.NumTiers]bool{event.Disk: true}, store: out, open: func(context.Context, opening) (sink, error) { return out, nil },
		position: func() []byte { return nil }, every: time.Hour, retry: time.Hour, log: slog.New(slog.DiscardHandler), m: newStreamMeters(metrics.NewSet(), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := []uint64{7, 8, 9}
	begun := len(out.said)
	for i, c := range []struct {
		ev   event.Event
		said int
	}{
		{event.Event{Kind: event.Stored, Engine: names, Local: []uint64{1, 2, 3}}, 1},
		{event.Event{Kind: event.Stored, Engine: names, Local: []uint64{1, 2, 3}}, 1},
		{event.Event{Kind: event.Stored, Tier: event.Disk, Engine: names}, 2},
		{event.Event{Kind: event.Stored, Tier: event.Disk, Engine: names}, 3},
		{event.Event{Kind: event.Stored, Tier: event.External, Engine: names}, 4},
		{event.Event{Kind: event.Stored, Tier: event.External, Engine: names}, 4},
		{event.Event{Kind: event.Removed, Tier: event.Disk, Engine: names[:1]}, 5},
		{event.Event{Kind: event.Removed, Tier: event.Disk, Engine: []uint64{1, 7}}, 6},
		{event.Event{Kind: event.Removed, Tier: event.External, Engine: names[:1]}, 6},
		{event.Event{Kind: event.Removed, Tier: event.External, Engine: names[:1]}, 7},
	} {
		s.Batch(uint64(i), &event.Batch{CountCopies: true, Events: []event.Event{c.ev}})
		if n := len(out.said) - begun; n != c.said {
			t.Errorf("after event %d: %d are published, want %d", i, n, c.said)
		}
	}
	if held := s.set.held(); held != [event.NumTiers]int{event.Device: 3, event.Disk: 2, event.External: 2} {
		t.Errorf("held are %v", held)
	}
}
