package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
)

// Workers that hand prompts over in different ways are never paired: those of one way are, and
// nothing is computed twice; where nobody is left to pair with, decode workers do all of it, and it is said.
func TestWorkersOfTwoWaysAreNotPaired(t *testing.T) {
	ways := []string{mockapi.TransferVLLM, mockapi.TransferMooncake, mockapi.TransferSGLang, mockapi.TransferVLLM, mockapi.TransferMooncake}
	l := newLab(t, setup{engines: len(ways),
		engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = ways[i], i < 3 },
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.KVTransfer(ways[i]), registry.Decode
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			if i < 3 {
				w.Role = registry.Prefill
			}
		}})
	apart := func(reason string) float64 {
		return l.number(`kvatlas_router_pairs_apart{model="org/model",block_size="4",group="",reason="` + reason + `"}`)
	}
	if n := apart("transfer"); n != 4 {
		t.Errorf("%v of 6 pairs are apart", n)
	}
	const requests = 40
	ask := func(i int) (prefill, decode string) {
		status, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6,7,8,9],"max_tokens":2}`, i))
		if status != 200 {
			t.Fatalf("%d %s", status, data)
		}
		return header.Get(headerPrefill), header.Get(headerWorker)
	}
	for i := range requests {
		if p, d := ask(i); p+d != "03" && p+d != "14" {
			t.Errorf("prefill worker %q and decode worker %q", p, d)
		}
	}
	l.idle()
	if got, lost := l.engines[3].Received.Load()+l.engines[4].Received.Load(), l.engines[3].Lost.Load()+l.engines[4].Lost.Load(); got != requests || lost != 0 {
		t.Errorf("%d prompts came, %d were lost", got, lost)
	}
	if n := l.number("kvatlas_router_prefill_failed_total"); n != 0 {
		t.Errorf("%v prefills failed", n)
	}
	for _, id := range []uint64{0, 1} {
		l.fleet.RemoveWorker(registry.Key{Space: space, Worker: id})
	}
	if p, _ := ask(requests); p != "" || l.number("kvatlas_router_decode_only_total") != 1 {
		t.Errorf("prefill worker %q, %v done by one", p, l.number("kvatlas_router_decode_only_total"))
	}
	if n := l.engines[2].Requests.Load(); n != 0 {
		t.Errorf("the one that nobody goes with got %d", n)
	}
	l.fleet.RemoveWorker(registry.Key{Space: space, Worker: 2})
	if n := apart("transfer"); n != 0 {
		t.Errorf("%v pairs of nobody", n)
	}
}

// pairLab is a prefill worker and two decode workers, of which the first gets no prompt from it.
func pairLab(t *testing.T, way string, deaf func(c *mockapi.Config)) *lab {
	t.Helper()
	return newLab(t, setup{engines: 3,
		fleet: func(c *fleet.Config) { c.PairLosses, c.PairRest = 2, time.Hour },
		engine: func(i int, c *mockapi.Config) {
			if c.Transfer, c.Prefill = way, i == 0; i == 1 {
				deaf(c)
			}
		},
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.KVTransfer(way), registry.Decode
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			if i == 0 {
				w.Role = registry.Prefill
			}
		}})
}

// A pair whose prompts do not come is found by what its decode worker says or by its failing, counted, and not made any
// more; each client gets its answer, and the other pair goes on.
func TestPairsWhosePromptsAreLost(t *testing.T) {
	for name, c := range map[string]struct {
		way    string
		deaf   func(c *mockapi.Config)
		stream string
	}{
		"computed once more": {mockapi.TransferMooncake, func(c *mockapi.Config) { c.Transfer = "" }, ""},
		"and streamed":       {mockapi.TransferMooncake, func(c *mockapi.Config) { c.Transfer = "" }, `,"stream":true,"stream_options":{"include_usage":true}`},
		"fails":              {mockapi.TransferMooncake, failsAtTransfers, ""},
		"fails, as NIXL":     {mockapi.TransferVLLM, failsAtTransfers, `,"stream":true`},
	} {
		t.Run(name, func(t *testing.T) {
			l := pairLab(t, c.way, c.deaf)
			const requests = 60
			pairs := map[string]int{}
			for i := range requests {
				status, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6,7,8,9],"max_tokens":2%s}`, i, c.stream))
				if status != 200 || strings.Contains(data, `"error"`) {
					t.Fatalf("%d: %d %s", i, status, data)
				}
				pairs[header.Get(headerPrefill)+"→"+header.Get(headerWorker)]++
			}
			if n := l.number(`kvatlas_router_handed_over_total{result="lost"}`); n != 2 {
				t.Errorf("%v prompts are lost: %v", n, pairs)
			}
			if n := l.number(`kvatlas_router_pairs_apart{model="org/model",block_size="4",group="",reason="lost"}`); n != 1 {
				t.Errorf("%v pairs are apart", n)
			}
			if pairs["0→2"] < requests-10 {
				t.Errorf("%v", pairs)
			}
			m := l.model()
			for _, h := range m.Router.Health() {
				if h.LeftOut > 0 {
					t.Errorf("worker %d is left out for the pair", h.Worker)
				}
			}
			l.fleet.RemoveWorker(registry.Key{Space: space, Worker: 1})
			if n := l.number(`kvatlas_router_pairs_apart{model="org/model",block_size="4",group="",reason="lost"}`); n != 0 {
				t.Errorf("%v pairs of one that has left", n)
			}
			l.idle()
		})
	}
}

// failsAtTransfers is a decode engine that fails where a prompt is to come from another, as vLLM's do.
func failsAtTransfers(c *mockapi.Config) { c.Wrong = append(c.Wrong, mockapi.WrongLost) }

// One that has no other to go to does all of the request itself, and is not blamed; and a request at which all fail is
// not taken for prompts that are lost.
func TestLostPromptsOfTheOnlyPair(t *testing.T) {
	l := newLab(t, setup{engines: 2,
		fleet: func(c *fleet.Config) { c.PairLosses, c.PairRest = 2, time.Hour },
		engine: func(i int, c *mockapi.Config) {
			c.Transfer, c.Prefill = mockapi.TransferVLLM, i == 0
			if i == 1 {
				failsAtTransfers(c)
				c.Fault = func(r *http.Request) (f mockapi.Fault) {
					if r.Header.Get("X-Poison") != "" {
						f.Status = 500
					}
					return f
				}
			}
		},
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.TransferVLLM, []registry.Role{registry.Prefill, registry.Decode}[i]
		}})
	body := func(i int) string {
		return fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6],"max_tokens":2}`, i)
	}
	for i := range 5 {
		if status, data, _ := l.post("/v1/completions", body(i), "X-Poison", "1"); status != 500 {
			t.Errorf("%d %s", status, data)
		}
	}
	if n := l.number(`kvatlas_router_handed_over_total{result="lost"}`); n != 0 {
		t.Errorf("%v prompts are lost", n)
	}
	for i := range 20 {
		if status, data, header := l.post("/v1/completions", body(i)); status != 200 || header.Get(headerPrefill) != "" {
			t.Errorf("%d %s %v", status, data, header)
		}
	}
	if n := l.number(`kvatlas_router_handed_over_total{result="lost"}`); n != 2 {
		t.Errorf("%v prompts are lost", n)
	}
	if n := l.engines[0].Requests.Load(); n > 5+2 {
		t.Errorf("%d prompts were computed for nobody", n)
	}
	l.idle()
}

// The prefill engine's one token never ends its answer, whatever ends the client's: else vLLM's connectors keep
// nothing for the decode engine.
func TestNothingEndsAPrefill(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferMooncake} {
		for _, end := range []string{"", `,"ignore_eos":false,"stop_token_ids":[7,8]`, `,"ignore_eos":null,"min_tokens":3`} {
			var mu sync.Mutex
			var seen [2]map[string]any
			l := pools(t, way, func(i int, c *mockapi.Config) {
				c.Seen = func(body []byte, _ []uint32, _ bool) {
					mu.Lock()
					defer mu.Unlock()
					if err := json.Unmarshal(body, &seen[i/2]); err != nil {
						t.Error(err)
					}
				}
			})
			if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5,6],"max_tokens":4`+end+`}`); status != 200 {
				t.Fatalf("%d %s", status, data)
			}
			l.idle()
			mu.Lock()
			p, d := seen[0], seen[1]
			mu.Unlock()
			if p["ignore_eos"] != true || p["stop_token_ids"] != nil || p["min_tokens"] != nil || p["max_tokens"] != 1.0 {
				t.Errorf("%s: the prefill engine gets %v", way, p)
			}
			if d["ignore_eos"] == true || strings.Contains(end, "stop") != (d["stop_token_ids"] != nil) {
				t.Errorf("%s: the decode engine gets %v", way, d)
			}
		}
	}
}
