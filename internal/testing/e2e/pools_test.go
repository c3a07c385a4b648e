package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What engines offload to a pool is the pool's: everybody who names it can read it, once for
// all that say so, also after they are gone and after a restart, and until one of them says
// that it is not there any more.
func TestAPoolOutlivesWhoFilledIt(t *testing.T) {
	const size, blocks = 4, 6
	home := t.TempDir()
	prompt, names := poolPrompt(t, size, blocks)
	in := startIndexer(t, home)
	engines := map[uint64]*enginepub.Publisher{}
	sidecars := map[uint64]*process{}
	for id := range uint64(3) {
		p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", WithTopic: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		flags := []string{"--data-dir=" + filepath.Join(home, "data"), "--worker=" + strconv.FormatUint(id, 10), "--model=m", "--block-size=" + strconv.Itoa(size),
			"--engine=" + p.Endpoint(), "--engine-replay=" + p.ReplayEndpoint(), "--engine-http=http://127.0.0.1:9", "--admin-listen=", "--lease=2s"}
		if id < 2 {
			flags = append(flags, `--pools=[{"name":"store","tiers":["disk"],"chunk":8}]`)
		}
		engines[id], sidecars[id] = p, start(t, home, "kvpublisher", flags...)
	}
	say := func(id uint64, kind, medium string, names []uint64) {
		said := mptest.Map{"type", kind, "block_hashes", list(names), "medium", medium}
		if kind == "BlockStored" {
			var tokens []any
			for _, token := range prompt[:len(names)*size] {
				tokens = append(tokens, token)
			}
			if medium != "GPU" {
				tokens = []any{}
			}
			said = append(said, "parent_block_hash", nil, "token_ids", tokens, "block_size", size, "lora_id", nil)
		}
		engines[id].Publish(mptest.Encode([]any{1.5, []any{said}, 0}))
	}
	// want is the device and external depths of workers, and the pool's.
	wanted := func(when string, pool int, want map[uint64][2]int) {
		t.Helper()
		eventually(t, waittest.Patience, func() error {
			c, err := client.New(client.Config{URL: in.url})
			if err != nil {
				return err
			}
			m, err := c.FindMatches(t.Context(), client.Find{Model: "m", TokenIDs: prompt})
			if err != nil || len(m.Spaces) != 1 {
				return fmt.Errorf("%s: %v, %w", when, m, err)
			}
			have := map[uint64][2]int{}
			for _, r := range m.Spaces[0].Ranks {
				have[r.Worker] = [2]int{r.Device, r.External}
			}
			if p := m.Spaces[0].Pools; !slices.Equal(p, []client.PoolDepth{{Name: "store", Depth: pool}}) || fmt.Sprint(have) != fmt.Sprint(want) {
				return fmt.Errorf("%s: %v and %v, want %d and %v", when, p, have, pool, want)
			}
			return nil
		})
	}
	for _, id := range []uint64{0, 2} {
		say(id, "BlockStored", "GPU", names)
	}
	say(0, "BlockStored", "STORAGE", names[:5])
	say(2, "BlockStored", "STORAGE", names) // of its own disk
	wanted("offloaded", 5, map[uint64][2]int{0: {6, 6}, 1: {0, 4}, 2: {6, 6}})
	say(1, "BlockStored", "GPU", names[:3])
	say(1, "BlockStored", "STORAGE", names[:3])
	say(0, "BlockRemoved", "GPU", names)
	wanted("said twice, evicted on the device", 5, map[uint64][2]int{0: {0, 4}, 1: {3, 4}, 2: {6, 6}})
	say(1, "BlockRemoved", "STORAGE", names[2:4])
	wanted("removed from it by another one, also what that had not stored", 2, map[uint64][2]int{0: {0, 2}, 1: {3, 3}, 2: {6, 6}})
	say(0, "BlockStored", "STORAGE", names[:5])
	wanted("stored again by who had stored it", 5, map[uint64][2]int{0: {0, 4}, 1: {3, 4}, 2: {6, 6}})
	sidecars[0].stop()
	wanted("one has left", 5, map[uint64][2]int{1: {3, 4}, 2: {6, 6}})
	in.stop()
	in = startIndexer(t, home)
	wanted("a new run of the indexer", 5, map[uint64][2]int{1: {3, 4}, 2: {6, 6}})
	say(1, "BlockRemoved", "STORAGE", names[2:3])
	wanted("removed from it", 2, map[uint64][2]int{1: {3, 3}, 2: {6, 6}})
}

// poolPrompt returns tokens of so many blocks and one more, and what the blocks are called.
func poolPrompt(t *testing.T, size, blocks int) (prompt []uint32, names []uint64) {
	t.Helper()
	prompt = make([]uint32, size*blocks+1)
	for i := range prompt {
		prompt[i] = uint32(7 + i)
	}
	local, err := blockhash.LocalHashes(nil, prompt, size, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return prompt, blockhash.SequenceHashes(nil, local)
}
