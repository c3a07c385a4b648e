package e2e

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// hybridEngine publishes as vLLM does of a model with a sliding window, full attention and
// states: sparse groups name a few blocks of many tokens, and which they are only full
// attention tells, before or after.
type hybridEngine struct {
	*enginepub.Publisher
	oracle *groups.Oracle
	size   int
}

func newHybridEngine(t *testing.T, size int) *hybridEngine {
	t.Helper()
	p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", WithTopic: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &hybridEngine{p, groups.NewOracle(), size}
}

// groups are the engine's, as events number them: its group 1 is full attention.
func (e *hybridEngine) groups() []event.CacheGroup {
	size := uint32(e.size)
	return []event.CacheGroup{
		{Number: 0, Kind: "full_attention", BlockSize: size}, {Number: 1, Kind: "sliding_window", BlockSize: size, Span: size + 2}, {Number: 3, Kind: "mamba", BlockSize: size},
	}
}

// publish is a step of the engine: a prompt's leading blocks, or some blocks that go.
func (e *hybridEngine) publish(t *testing.T, rnd *rand.Rand, prompt []uint32) {
	t.Helper()
	local, names := e.hashes(t, prompt)
	if len(local) == 0 {
		return
	}
	n := 1 + rnd.IntN(len(local))
	local, names = local[:n], names[:n]
	var said []any
	if rnd.IntN(4) == 0 {
		for group, idx := range map[uint8]int{0: 1, 1: 0, 3: 2} {
			if rnd.IntN(2) == 0 {
				gone := names[rnd.IntN(n):]
				said = append(said, mptest.Map{"type", "BlockRemoved", "block_hashes", list(gone), "medium", "GPU", "group_idx", idx})
				e.oracle.Apply(&event.Event{Kind: event.Removed, Group: group, Engine: gone}, true)
			}
		}
	} else {
		store := func(group uint8, idx int, names, local []uint64, spec ...any) {
			var tokens []any
			for _, token := range prompt[:n*e.size] {
				tokens = append(tokens, token)
			}
			said = append(said, append(mptest.Map{"type", "BlockStored", "block_hashes", list(names), "parent_block_hash", nil, "token_ids", tokens,
				"block_size", e.size, "lora_id", nil, "medium", "GPU", "lora_name", nil, "group_idx", idx, "kv_cache_spec_kind"}, spec...))
			e.oracle.Apply(&event.Event{Kind: event.Stored, Group: group, Engine: names, Local: local}, true)
		}
		store(1, 0, names[max(0, n-1-rnd.IntN(3)):], nil, "sliding_window", "kv_cache_spec_sliding_window", e.size+2)
		store(0, 1, names, local, "full_attention")
		store(3, 2, names[n-1:], nil, "mamba")
	}
	e.Publish(mptest.Encode([]any{1.5, said, 0}))
}

func (e *hybridEngine) hashes(t *testing.T, prompt []uint32) (local, names []uint64) {
	t.Helper()
	local, err := blockhash.LocalHashes(nil, prompt, e.size, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range blockhash.SequenceHashes(nil, local) {
		names = append(names, h^0x20)
	}
	return local, names
}

// reusable is what the engine would reuse of the prompt, in blocks.
func (e *hybridEngine) reusable(t *testing.T, prompt []uint32) uint32 {
	t.Helper()
	local, _ := e.hashes(t, prompt)
	return e.oracle.Reusable(e.groups(), e.size, local, len(prompt))[event.Device]
}
