package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// A fleet of a hybrid model: what kvindexer and kvrouter say that a worker can reuse of a prompt
// is what the worker then says that it has found, also where a window or a state is gone.
func TestRouterAndHybrids(t *testing.T) {
	t.Parallel()
	const size = 16
	home := t.TempDir()
	in := startIndexer(t, home)
	_, url := startRouter(t, home, "--queue=0", "--trust=127.0.0.1")
	start(t, home, "kvmocker", "--data-dir="+home+"/data", "--http", "--http-port=0", "--workers=2", "--speed=0", "--model=m",
		"--cache-kinds=sliding_window:64:0:40,mamba:0:32:30")
	eventually(t, time.Minute, func() error {
		if status, data, _ := ask(url+"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, data)
		}
		return nil
	})
	// depths are what workers can reuse, in blocks.
	depths := func(prompt []uint32) (found map[string]int, exact bool) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"model": "m", "token_ids": prompt})
		if err != nil {
			t.Fatal(err)
		}
		status, data, _ := ask(in.url+"/v1/find_matches", string(body))
		if status == http.StatusNotFound {
			return nil, true // nothing is stored yet
		}
		var answer struct {
			Spaces []struct {
				Estimated bool
				Workers   []struct {
					ID     string `json:"worker_id"`
					Device int
				}
			}
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != http.StatusOK || len(answer.Spaces) != 1 {
			t.Fatalf("%d %s %v", status, data, err)
		}
		found = map[string]int{}
		for _, w := range answer.Spaces[0].Workers {
			found[w.ID] = w.Device
		}
		return found, !answer.Spaces[0].Estimated
	}
	rnd := rand.New(rand.NewPCG(20, 20))
	var said [][]uint32
	hits, cut := 0, 0
	for step := range 40 {
		var prompt []uint32
		if step > 4 {
			prompt = said[rnd.IntN(len(said))]
			prompt = slices.Clone(prompt[:size*rnd.IntN(len(prompt)/size)])
		}
		shared := len(prompt) / size
		for range 2*size + rnd.IntN(20*size) {
			prompt = append(prompt, rnd.Uint32N(100_000))
		}
		before, exact := depths(prompt)
		body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		status, data, who, receipt := askFor(url+"/v1/completions", string(body), "X-Kvatlas-Receipt")
		var answer struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s %v", status, data, err)
		}
		said = append(said, prompt)
		if have := answer.Usage.Details.Cached; exact && (have != before[who]*size || !strings.Contains(receipt, fmt.Sprintf(" selected=%d,", have))) {
			t.Errorf("step %d: worker %s found %d tokens, kvindexer said %v blocks, kvrouter %s; %d were shared", step, who, have, before, receipt, shared)
		} else if exact && have > 0 {
			hits++
		} else if exact && shared > 4 {
			cut++
		}
		// What it has computed is known once all of it can be reused: the last event is of its state.
		whole := prompt[:len(prompt)/(2*size)*2*size]
		eventually(t, time.Minute, func() error {
			if after, _ := depths(append(slices.Clone(whole), 1)); after[who]*size != len(whole) {
				return fmt.Errorf("step %d: of %d tokens on worker %s %v blocks are known", step, len(whole), who, after)
			}
			var applied [2]float64
			for i, at := range []string{in.url, url} {
				text, err := get(t.Context(), at+"/metrics")
				if err != nil {
					return err
				}
				applied[i] = sum(text, "kvatlas_ingest_events_total")
			}
			if applied[0] != applied[1] {
				return fmt.Errorf("kvindexer and kvrouter have applied %v events", applied)
			}
			return nil
		})
	}
	if hits < 5 || cut < 3 {
		t.Errorf("%d prompts hit, %d were cut to nothing", hits, cut)
	}
}
