package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Two tenants' pools of one name are two: each is told of its own, also in the console, and neither finds what
// the other's workers have put there, nor the other's node of the console's tree.
func TestTenantsPoolsAreApart(t *testing.T) {
	const size = 4
	home := t.TempDir()
	prompt, names := poolPrompt(t, size, 6)
	tokens := filepath.Join(home, "tokens")
	if err := os.WriteFile(tokens, []byte(`[{"name":"a","token":"a-0123456789abcdef","role":"reader","tenant":"a"},{"name":"b","token":"b-0123456789abcdef","role":"reader","tenant":"b"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	in := startIndexer(t, home, "--tokens-file", tokens)
	depths := map[string]int{"a": 5, "b": 2}
	for id, group := range []string{"a", "b"} {
		p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", WithTopic: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		start(t, home, "kvpublisher", "--data-dir="+filepath.Join(home, "data"), "--worker="+strconv.Itoa(id), "--model=m", "--group="+group, "--block-size="+strconv.Itoa(size),
			"--engine="+p.Endpoint(), "--engine-replay="+p.ReplayEndpoint(), "--engine-http=http://127.0.0.1:9", "--admin-listen=", `--pools=[{"name":"store","tiers":["disk"]}]`)
		var all []any
		for _, token := range prompt[:size*len(names)] {
			all = append(all, token)
		}
		stored := func(medium string, names []uint64, tokens []any) mptest.Map {
			return mptest.Map{"type", "BlockStored", "block_hashes", list(names), "medium", medium, "parent_block_hash", nil, "token_ids", tokens, "block_size", size, "lora_id", nil}
		}
		p.Publish(mptest.Encode([]any{1.5, []any{stored("GPU", names, all), stored("STORAGE", names[:depths[group]], []any{})}, 0}))
	}
	ask := func(group, path string, into any) (status int, err error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.url+"/console/api/"+path, nil)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+group+"-0123456789abcdef")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode == http.StatusOK {
			err = json.Unmarshal(text, into)
		}
		return resp.StatusCode, err
	}
	type pool struct {
		Pool  string
		Depth int
	}
	nodes := map[string]string{}
	for group, depth := range depths {
		c, err := client.New(client.Config{URL: in.url, Token: client.StaticToken(group + "-0123456789abcdef")})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, waittest.Patience, func() error {
			m, err := c.FindMatches(t.Context(), client.Find{Model: "m", TokenIDs: prompt})
			if err != nil || len(m.Spaces) != 1 || len(m.Spaces[0].Ranks) != 1 || !slices.Equal(m.Spaces[0].Pools, []client.PoolDepth{{Name: "store", Depth: depth}}) {
				return fmt.Errorf("%s finds %+v: %w", group, m, err)
			}
			var tree struct{ Children []struct{ ID string } }
			var has struct {
				Holders []struct{ Worker string }
				Pools   []pool
			}
			if _, err := ask(group, "prefixes?model=m&group="+group, &tree); err != nil || len(tree.Children) != 1 {
				return fmt.Errorf("%s's tree is %+v: %w", group, tree, err)
			}
			nodes[group] = tree.Children[0].ID
			_, err = ask(group, "prefixes/holders?node="+nodes[group], &has)
			if err != nil || len(has.Holders) != 1 || !slices.Equal(has.Pools, []pool{{"store", depth}}) {
				return fmt.Errorf("%s's holders are %+v: %w", group, has, err)
			}
			return nil
		})
	}
	for group, other := range map[string]string{"a": "b", "b": "a"} {
		for _, path := range []string{"prefixes/holders?node=" + nodes[other], "prefixes?model=m&group=" + other} {
			if status, err := ask(group, path, nil); status != http.StatusNotFound || err != nil {
				t.Errorf("%s is answered %d of %s: %v", group, status, path, err)
			}
		}
	}
}
