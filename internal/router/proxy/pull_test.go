package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/registry"
)

// pullLab has engines that fetch from each other where they are told to; bodies are what they got.
func pullLab(t *testing.T, engines int, peer func(i int) bool) (l *lab, last func() (params string)) {
	t.Helper()
	var mu sync.Mutex
	var body []byte
	l = newLab(t, setup{engines: engines,
		engine: func(i int, c *mockapi.Config) {
			c.Peer = peer(i)
			c.Seen = func(data []byte, _ []uint32, _ bool) {
				mu.Lock()
				defer mu.Unlock()
				body = data
			}
		},
		registry: func(i int, w *registry.Worker) {
			if i < 2 {
				w.Endpoints.Peer = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			}
		}})
	return l, func() (params string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		var q struct {
			Params json.RawMessage `json:"kv_transfer_params"`
		}
		if err := json.Unmarshal(body, &q); err != nil {
			t.Fatal(err)
		}
		return string(q.Params)
	}
}

func (l *lab) cachedOn(t *testing.T, worker string, prompt string, headers ...string) (cached int, h http.Header) {
	t.Helper()
	status, text, h := l.post("/v1/completions", prompt, append([]string{headerWorker, worker}, headers...)...)
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	return answer.Usage.Details.Cached, h
}

// A worker that a request is for, which has not its prefix, fetches it from the one that has:
// the engine is told in the body and in llm-d's header, says that it found it cached, and the
// account has it. What a client says of sources reaches nobody.
func TestPrefixesAreFetched(t *testing.T) {
	l, last := pullLab(t, 3, func(int) bool { return true })
	body := promptBody(false, 1000, 400, 2)
	if cached, _ := l.cachedOn(t, "0", body); cached != 0 {
		t.Fatalf("%d tokens are cached before anything", cached)
	}
	cached, h := l.cachedOn(t, "1", body)
	if cached != 396 || l.engines[1].Fetched.Load() != 100 || l.engines[0].Given.Load() != 100 {
		t.Errorf("%d tokens are cached, %d blocks fetched, %d given", cached, l.engines[1].Fetched.Load(), l.engines[0].Given.Load())
	}
	if r := h.Get(headerReceipt); !strings.Contains(r, `pull=399, pull-from="0"`) {
		t.Errorf("the receipt is %s", r)
	}
	if params := last(); !strings.Contains(params, `"remote_kv_source":{"kv_request_id":"kvatlas-`) || !strings.Contains(params, `"remote_port":`) {
		t.Errorf("the engine is told %s", params)
	}
	for range len(l.engines[1].seen) {
		if got := (<-l.engines[1].seen).Get(headerSource); got != strings.TrimPrefix(l.engines[0].http.URL, "http://") {
			t.Errorf("the header names %q", got)
		}
	}
	if n, missed := l.number("kvatlas_router_pulls_total"+labelsText), l.number("kvatlas_router_pulls_missed_total"+labelsText); n != 1 || missed != 0 {
		t.Errorf("%v came, %v did not", n, missed)
	}
	if cached, _ := l.cachedOn(t, "2", body); cached != 0 { // it is no peer by its registration
		t.Errorf("%d tokens came to a worker that does not fetch", cached)
	}
	own := fmt.Sprintf(`{"model":%q,"prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":1,"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"x","remote_host":"evil","remote_port":1}}}`, modelName)
	l.proxy.cfg.Trust = nil
	for range len(l.engines[0].seen) {
		<-l.engines[0].seen
	}
	told := []string{"x-KV-cache-source-host-port", "X-Prefiller-Host-Port", "x-prefiller-url", "X-Encoder-Hosts-Ports", "x-data-parallel-host-port"}
	var headers []string
	for _, name := range told {
		headers = append(headers, name, "evil:1")
	}
	status, text, _ := l.post("/v1/completions", own, headers...)
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if params := last(); params != "" {
		t.Errorf("an engine got a client's %s", params)
	}
	for _, e := range l.engines {
		for range len(e.seen) {
			h := <-e.seen
			for _, name := range told {
				if h.Get(name) == "evil:1" {
					t.Errorf("an engine got a client's %s", name)
				}
			}
		}
	}
	l.idle()
}

// What a trusted caller itself says of transfers is not replaced; and a body that is not looked into
// is for no model whose engines fetch.
func TestPrefixesAreNotFetchedOverACallersWord(t *testing.T) {
	l, last := pullLab(t, 2, func(int) bool { return true })
	body := promptBody(false, 1000, 400, 2)
	l.cachedOn(t, "0", body)
	const params = `{"do_remote_decode":false}`
	own := strings.TrimSuffix(body, "}") + `,"kv_transfer_params":` + params + `}`
	if _, h := l.cachedOn(t, "1", own); strings.Contains(h.Get(headerReceipt), "pull=") || last() != params {
		t.Errorf("a trusted caller's word became %s", last())
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + modelName + "\r\n--b--\r\n"
	for _, want := range []int{http.StatusNotFound, http.StatusUnsupportedMediaType} { // the mock's, which has no such path; and a guest's
		status, data, h := l.post("/v1/audio/transcriptions", form, "Content-Type", "multipart/form-data; boundary=b", headerWorker, "1")
		if status != want || strings.Contains(h.Get(headerReceipt), "pull=") {
			t.Errorf("a form: %d %s", status, data)
		}
		l.proxy.cfg.Trust = nil
	}
	for range len(l.engines[1].seen) {
		if got := (<-l.engines[1].seen).Get(headerSource); got != "" {
			t.Errorf("the header names %q", got)
		}
	}
	l.idle()
}

// An engine that does not do it is found out: it is counted, named in the account, and expected
// to be so.
func TestPrefixesThatAreNotFetched(t *testing.T) {
	l, _ := pullLab(t, 2, func(int) bool { return false })
	told := 0
	for i := range 40 {
		body := promptBody(false, 10_000*(i+1), 2000, 2)
		l.cachedOn(t, "0", body)
		cached, h := l.cachedOn(t, "1", body)
		if cached != 0 {
			t.Fatalf("%d tokens are cached", cached)
		}
		if strings.Contains(h.Get(headerReceipt), "pull=") {
			told++
		}
	}
	missed := l.number("kvatlas_router_pulls_missed_total" + labelsText)
	if told == 0 || told > 30 || missed != float64(told) || l.number("kvatlas_router_pulls_total"+labelsText) != 0 {
		t.Errorf("told %d times of 40, %v are counted", told, missed)
	}
	if n := l.number(`kvatlas_router_not_found_requests_total{model="` + modelName + `",block_size="4",group="",found="less",reason="not_pulled"}`); n != float64(told) {
		t.Errorf("the account has %v of %d", n, told)
	}
	l.idle()
}

const labelsText = `{model="` + modelName + `",block_size="4",group=""}`

// gateway is a Gateway that sends requests where it is told.
type gateway struct{ to Picked }

func (g *gateway) HandOn(req *http.Request, to Picked) (*http.Response, string, error) {
	g.to = to
	req.URL.Scheme, req.URL.Host, req.RequestURI = "http", to.Endpoints[0], ""
	resp, err := http.DefaultTransport.RoundTrip(req)
	return resp, to.Endpoints[0], err
}

// Where a gateway sends requests the engine is told as by the router itself; but not where the
// gateway has others to try, which would be told the same.
func TestPrefixesAreFetchedForGateways(t *testing.T) {
	for _, fallbacks := range []int{0, 1} {
		l, last := pullLab(t, 2, func(int) bool { return true })
		l.proxy.cfg.Gateway.Fallbacks = fallbacks
		body := promptBody(false, 1000, 400, 2)
		l.cachedOn(t, "0", body)
		g := new(gateway)
		r := httptest.NewRequestWithContext(WithPassage(t.Context(), &Passage{Gateway: g, ID: "a"}), http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set(headerWorker, "1")
		w := httptest.NewRecorder()
		l.proxy.ServeHTTP(w, r)
		var q struct {
			Source struct {
				Port int `json:"remote_port"`
			} `json:"remote_kv_source"`
		}
		if params := last(); params != "" {
			if err := json.Unmarshal([]byte(params), &q); err != nil {
				t.Error(err)
			}
		}
		header := ""
		for range len(l.engines[1].seen) {
			header = (<-l.engines[1].seen).Get(headerSource)
		}
		want, fetched := strings.TrimPrefix(l.engines[0].http.URL, "http://"), int64(100)
		if fallbacks > 0 {
			want, fetched = "", 0
		}
		if got := l.engines[1].Fetched.Load(); w.Code != 200 || g.to.Endpoints[0] != strings.TrimPrefix(l.engines[1].http.URL, "http://") ||
			header != want || got != fetched || want != "" && !strings.HasSuffix(want, fmt.Sprint(":", q.Source.Port)) {
			t.Errorf("%d fallbacks: %d %s; sent to %v, header %q, want %q; %d blocks fetched", fallbacks, w.Code, w.Body, g.to.Endpoints, header, want, got)
		}
	}
}

// pairPullLab is a prefill worker, 1, between two decode workers, all of which fetch, and a prompt that 0 has.
func pairPullLab(t *testing.T, way string) (l *lab, body string) {
	t.Helper()
	l = newLab(t, setup{engines: 3,
		engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill, c.Peer = way, i == 1, true },
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.KVTransfer(way), registry.Decode
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			w.Endpoints.Peer = w.Endpoints.Bootstrap
			if i == 1 {
				w.Role = registry.Prefill
			}
		}})
	drain := func(is bool) {
		t.Helper()
		if err := l.fleet.Models()[0].Router.Drain(1, is); err != nil {
			t.Fatal(err)
		}
	}
	drain(true)
	body = promptBody(false, 1000, 400, 2)
	l.cachedOn(t, "0", body) // alone
	l.idle()
	drain(false)
	return l, body
}

// Prefill workers fetch prefixes, too, where prompts are handed over by vLLM's connectors: what tells the engine to keep the
// prompt for the decode engine tells it where to fetch from. SGLang's do not.
func TestPrefillWorkersFetch(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang, mockapi.TransferMooncake} {
		l, body := pairPullLab(t, way)
		status, text, h := l.post("/v1/completions", body, headerWorker, "2")
		if status != http.StatusOK || h.Get(headerPrefill) != "1" {
			t.Fatalf("%s: %d %s, prefill worker %s", way, status, text, h.Get(headerPrefill))
		}
		l.idle()
		wantBlocks, wantPort := int64(0), ""
		if way != mockapi.TransferSGLang {
			wantBlocks, wantPort = 100, strings.TrimPrefix(l.engines[0].http.URL, "http://")
		}
		header := ""
		for range len(l.engines[1].seen) {
			header = (<-l.engines[1].seen).Get(headerSource)
		}
		if got := l.engines[1].Fetched.Load(); got != wantBlocks || header != wantPort || l.engines[2].Received.Load() != 1 || l.engines[2].Fetched.Load() != 0 {
			t.Errorf("%s: %d blocks fetched, want %d; the header says %q; %d prompts were handed over", way, got, wantBlocks, header, l.engines[2].Received.Load())
		}
		for range len(l.engines[2].seen) {
			if got := (<-l.engines[2].seen).Get(headerSource); got != "" {
				t.Errorf("%s: the decode worker is told of %q", way, got)
			}
		}
	}
}

// Of a pair that a gateway asks the sidecar of the decode worker is told who has the prefix, beside who the prefill
// worker is: it asks that one, and tells it (llm-d). The body says nothing, as the sidecar writes it.
func TestPrefillWorkersFetchForGateways(t *testing.T) {
	l, body := pairPullLab(t, mockapi.TransferVLLM)
	g := new(gateway)
	r := httptest.NewRequestWithContext(WithPassage(t.Context(), &Passage{Gateway: g, ID: "a"}), http.MethodPost, "/v1/completions", strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set(headerWorker, "2")
	w := httptest.NewRecorder()
	l.proxy.ServeHTTP(w, r)
	at := func(i int) string { return strings.TrimPrefix(l.engines[i].http.URL, "http://") }
	if w.Code != http.StatusOK || g.to.Prefill != at(1) || len(g.to.Endpoints) != 1 || g.to.Endpoints[0] != at(2) {
		t.Fatalf("%d %s: the pair is %s and %v", w.Code, w.Body, g.to.Prefill, g.to.Endpoints)
	}
	header := ""
	for range len(l.engines[2].seen) {
		header = (<-l.engines[2].seen).Get(headerSource)
	}
	if header != at(0) || l.engines[2].Fetched.Load() != 0 {
		t.Errorf("the header names %q, want %s; the decode worker itself was told to fetch %d blocks", header, at(0), l.engines[2].Fetched.Load())
	}
	l.idle()
}
