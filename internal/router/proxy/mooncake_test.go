package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/registry"
)

// A prefill worker whose bootstrap server does not say who its engines are is found out, and
// not asked for each request: it would hold each up. Answers come from decode workers alone.
func TestBootstrapServersThatFail(t *testing.T) {
	for name, say := range map[string]func(w http.ResponseWriter){
		"nothing":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"no ranks": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
		"no JSON":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"0":[]}`) },
		"endless": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"0":{"engine_id":"`+strings.Repeat("x", 2<<20))
		},
		"too long": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"0":{"engine_id":"`+strings.Repeat("x", 1<<19)+`"}}`)
		},
		"hangs up": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				say(w)
			}))
			t.Cleanup(server.Close)
			l := newLab(t, setup{engines: 2,
				engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = mockapi.TransferMooncake, i == 0 },
				registry: func(i int, w *registry.Worker) {
					w.KVTransfer, w.Role = registry.TransferMooncake, []registry.Role{registry.Prefill, registry.Decode}[i]
					w.Endpoints.Bootstrap = strings.TrimPrefix(server.URL, "http://")
				}})
			const requests = 40
			for i := range requests {
				status, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6],"max_tokens":2}`, i))
				if status != 200 || header.Get(headerPrefill) != "" {
					t.Fatalf("%d %s %v", status, data, header)
				}
			}
			if n := asked.Load(); n == 0 || n > 4 {
				t.Errorf("asked %d times in %d requests", n, requests)
			}
			if n := l.engines[0].Requests.Load(); n != 0 {
				t.Errorf("the prefill worker got %d", n)
			}
			l.idle()
		})
	}
}

// Where another prefill worker does its part, one whose bootstrap server fails is left out.
func TestBootstrapFailuresCount(t *testing.T) {
	l := newLab(t, setup{engines: 3,
		engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = mockapi.TransferMooncake, i < 2 },
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.TransferMooncake, []registry.Role{registry.Prefill, registry.Prefill, registry.Decode}[i]
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			if i == 0 {
				w.Endpoints.Bootstrap = "127.0.0.1:1"
			}
		}})
	const requests = 40
	for i := range requests {
		if status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6],"max_tokens":2}`, i)); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	if n := l.number("kvatlas_router_prefill_failed_total"); n == 0 || n > 6 {
		t.Errorf("%v of %d went to the one that cannot hand over", n, requests)
	}
	l.idle()
}
