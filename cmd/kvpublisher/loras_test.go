package main

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// An engine that gives its LoRA adapters by number (vLLM 0.13): blocks of one with a name
// are that adapter's, of one without a name nobody's, and never the plain model's.
func TestLorasByNumber(t *testing.T) {
	f := newFleet(t)
	engine, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close() //nolint:errcheck // it goes with the test
	p := f.start("--engine="+engine.Endpoint(), "--engine-replay="+engine.ReplayEndpoint(), "--lora-ids=2=sql")
	p.ready()
	tokens := func(first uint32) (list []uint32) {
		for i := range uint32(enginetest.BlockSize) {
			list = append(list, first+i)
		}
		return list
	}
	var events []any
	for i, lora := range []any{nil, mptest.Raw{2}, mptest.Raw{3}} { // 0.13's layout
		events = append(events, []any{"BlockStored", []uint64{uint64(i) + 1}, nil, tokens(uint32(i) * 100), mptest.Raw{byte(enginetest.BlockSize)}, lora, "GPU"})
	}
	engine.Publish(mptest.Encode([]any{1.0, events}))
	waittest.Until(t, func() error {
		if n := p.metric("kvatlas_publisher_feed_left_out_total", `reason="unnamed_lora"`); n != 1 {
			return fmt.Errorf("%v blocks of adapters without a name are left out, want 1", n)
		}
		return nil
	})
	holds := func(first uint32, lora string) bool {
		l, err := blockhash.LocalHashes(nil, tokens(first), enginetest.BlockSize, blockhash.Options{Seed: blockhash.Seed(lora, "")})
		if err != nil {
			t.Fatal(err)
		}
		sp := f.set.Lookup(space)
		if sp == nil {
			return false
		}
		var found shard.Result
		sp.Find(l, &found)
		n := 0
		found.EachMember(func(shard.Member, [event.NumTiers]uint32) { n++ })
		return n == 1
	}
	waittest.Until(t, func() error {
		if !holds(0, "") || !holds(100, "sql") {
			return fmt.Errorf("the plain model's block is there: %v; that of adapter 2: %v", holds(0, ""), holds(100, "sql"))
		}
		return nil
	})
	if holds(100, "") || holds(200, "") || holds(200, "sql") {
		t.Error("a block of an adapter counts as the plain model's, or another's")
	}
}
