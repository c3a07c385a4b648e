package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A store's master says what is in it, each block as two objects: a block counts while both are
// there, whatever workers say, and nothing does while nobody knows.
func TestAPoolsMasterSaysWhatIsInIt(t *testing.T) {
	const size, blocks = 4, 4
	home := t.TempDir()
	prompt, names := poolPrompt(t, size, blocks)
	key := func(block, rank int) string {
		return fmt.Sprintf("org/m@tp_rank:%d@pcp0@dcp0@pp_rank:0@group:0@%048x%016x", rank, 7, names[block])
	}
	publisher := func(replay string) *enginepub.Publisher {
		p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: replay, WithTopic: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	engine, master := publisher("tcp://127.0.0.1:0"), publisher("")
	var keys sync.Map
	lists := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		keys.Range(func(key, _ any) bool {
			_, err := fmt.Fprintln(w, key)
			return err == nil
		})
	}))
	t.Cleanup(lists.Close)
	pools, err := json.Marshal([]event.Pool{{Name: "store", Source: &event.PoolSource{Events: master.Endpoint(), Keys: lists.URL, Prefix: "org/m", Parts: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	for block := range 2 {
		keys.Store(key(block, 0), true)
		keys.Store(key(block, 1), true)
	}
	in := startIndexer(t, home)
	start(t, home, "kvpublisher", "--data-dir="+filepath.Join(home, "data"), "--worker=1", "--model=m", "--block-size=4", "--engine="+engine.Endpoint(),
		"--engine-replay="+engine.ReplayEndpoint(), "--engine-http=http://127.0.0.1:9", "--admin-listen=", "--pools="+string(pools))
	var tokens []any
	for _, token := range prompt[:blocks*size] {
		tokens = append(tokens, token)
	}
	say := func(events ...any) { engine.Publish(mptest.Encode([]any{1.5, events, 0})) }
	stored := func(medium string) mptest.Map {
		return mptest.Map{"type", "BlockStored", "block_hashes", list(names), "medium", medium, "parent_block_hash", nil, "token_ids", tokens, "block_size", size, "lora_id", nil}
	}
	say(stored("GPU"), stored("EXTERNAL"))
	wanted := func(when string, device, pool, external int) {
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
			if sp := m.Spaces[0]; len(sp.Ranks) != 1 || sp.Ranks[0].Device != device || sp.Ranks[0].External != external || len(sp.Pools) != 1 || sp.Pools[0].Depth != pool {
				return fmt.Errorf("%s: %+v", when, sp)
			}
			return nil
		})
	}
	object := func(kind string, block, rank int) mptest.Map {
		if kind == "stored" {
			keys.Store(key(block, rank), true)
		} else {
			keys.Delete(key(block, rank))
		}
		return mptest.Map{"event_type", kind, "object_key", key(block, rank), "tenant_id", "default", "medium", "cpu"}
	}
	tell := func(events ...any) { master.Publish(mptest.Encode([]any{uint64(1764000000123), events, 0})) }
	wanted("listed", 4, 2, 4)
	waittest.For(t, "a subscription", func() bool { return master.Subscribers() > 0 })
	tell(object("stored", 2, 0), object("stored", 3, 0), object("stored", 3, 1))
	tell(object("stored", 2, 1))
	wanted("stored by both ranks", 4, 4, 4)
	say(mptest.Map{"type", "BlockRemoved", "block_hashes", list(names[1:]), "medium", "GPU"})
	wanted("evicted on the device", 1, 4, 4)
	tell(object("removed", 1, 1))
	wanted("one part is gone", 1, 1, 1)
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	wanted("the master is away", 1, 0, 1)
	text, err := get(t.Context(), in.url+"/metrics")
	if err != nil || !strings.Contains(string(text), "kvatlas_pool_stream_readable{") || strings.Contains(string(text), `pool="store"} 1`) {
		t.Errorf("%v: %s", err, text)
	}
}
