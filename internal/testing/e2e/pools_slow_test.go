package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestSlowPoolsHoldUpThemselvesAlone: of one pool the keys trickle without end, of another the stream's other end accepts and
// says nothing. Nothing is found in these two; a third one is followed, and what the workers of all three say of themselves
// counts. The indexer ends in time.
func TestSlowPoolsHoldUpThemselvesAlone(t *testing.T) {
	t.Parallel()
	const size, blocks = 4, 4
	home := t.TempDir()
	prompt, names := poolPrompt(t, size, blocks)
	publisher := func(replay string) *enginepub.Publisher {
		p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: replay, WithTopic: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	key := func(block int) string {
		return fmt.Sprintf("org/m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@%048x%016x", 7, names[block])
	}
	keys := func(answer func(w http.ResponseWriter, r *http.Request)) string {
		s := httptest.NewServer(http.HandlerFunc(answer))
		t.Cleanup(s.Close)
		return s.URL
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	go func() { // ends with the listener
		for {
			if c, err := mute.Accept(); err != nil {
				return
			} else {
				t.Cleanup(func() { _ = c.Close() })
			}
		}
	}()
	trickle := time.NewTicker(10 * time.Millisecond)
	t.Cleanup(trickle.Stop)
	var two atomic.Bool
	all := keys(func(w http.ResponseWriter, _ *http.Request) {
		if _, _ = fmt.Fprintln(w, key(0)); two.Load() {
			_, _ = fmt.Fprintln(w, key(1))
		}
	})
	masters := []*enginepub.Publisher{publisher(""), publisher("")}
	sources := []event.PoolSource{
		{Events: masters[0].Endpoint(), Keys: all},
		{Events: masters[1].Endpoint(), Keys: keys(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := fmt.Fprintln(w, key(0)); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				<-trickle.C
			}
		})},
		{Events: "tcp://" + mute.Addr().String(), Keys: all},
	}
	in := startIndexer(t, home)
	engines := make([]*enginepub.Publisher, len(sources))
	var tokens []any
	for _, token := range prompt[:blocks*size] {
		tokens = append(tokens, token)
	}
	for i := range sources {
		engines[i] = publisher("tcp://127.0.0.1:0")
		sources[i].Prefix, sources[i].Parts = "org/m", 1
		pools, err := json.Marshal([]event.Pool{{Name: "pool" + strconv.Itoa(i), Source: &sources[i]}})
		if err != nil {
			t.Fatal(err)
		}
		start(t, home, "kvpublisher", "--data-dir="+filepath.Join(home, "data"), "--worker="+strconv.Itoa(i), "--model=m", "--block-size="+strconv.Itoa(size),
			"--engine="+engines[i].Endpoint(), "--engine-replay="+engines[i].ReplayEndpoint(), "--engine-http=http://127.0.0.1:9", "--admin-listen=", "--pools="+string(pools))
	}
	say := func(i, n int) {
		engines[i].Publish(mptest.Encode([]any{1.5, []any{mptest.Map{"type", "BlockStored", "block_hashes", list(names[:n]), "medium", "GPU", "parent_block_hash", nil,
			"token_ids", tokens[:n*size], "block_size", size, "lora_id", nil}}, 0}))
	}
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
			pools := map[string]int{}
			for _, p := range m.Spaces[0].Pools {
				pools[p.Name] = p.Depth
			}
			if fmt.Sprint(have) != fmt.Sprint(want) || fmt.Sprint(pools) != fmt.Sprint(map[string]int{"pool0": pool, "pool1": 0, "pool2": 0}) {
				return fmt.Errorf("%s: %v and %v, want %d and %v", when, pools, have, pool, want)
			}
			return nil
		})
	}
	say(0, 3)
	say(1, 4)
	say(2, 2)
	wanted("listed", 1, map[uint64][2]int{0: {3, 3}, 1: {4, 4}, 2: {2, 2}})
	waittest.For(t, "a subscription", func() bool { return masters[0].Subscribers() > 0 })
	two.Store(true)
	masters[0].Publish(mptest.Encode([]any{uint64(1764000000123), []any{mptest.Map{"event_type", "stored", "object_key", key(1), "tenant_id", "default", "medium", "cpu"}}, 0}))
	wanted("stored", 2, map[uint64][2]int{0: {3, 3}, 1: {4, 4}, 2: {2, 2}})
	engines[0].Publish(mptest.Encode([]any{1.5, []any{mptest.Map{"type", "BlockRemoved", "block_hashes", list(names[:3]), "medium", "GPU"}}, 0}))
	wanted("evicted on the device", 2, map[uint64][2]int{0: {0, 2}, 1: {4, 4}, 2: {2, 2}})
	in.stop()
}
