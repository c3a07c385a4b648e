package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/registry"
)

// What readers may ask of engines is a list; all else is for operators, under
// whatever name a path is asked for.
func TestWhoMayAsk(t *testing.T) {
	l := newLab(t, setup{})
	for request, want := range map[string]struct {
		role    secure.Role
		tenants bool
	}{
		"GET /livez": {secure.Anybody, true}, "GET /readyz": {secure.Anybody, true}, "GET /version": {secure.Anybody, true}, "GET /openapi.yaml": {secure.Anybody, true},
		"GET /metrics": {secure.Reader, false}, "GET /v1/models": {secure.Reader, true},
		"POST /v1/select": {secure.Reader, false}, "GET /v1/loads": {secure.Reader, false}, "POST /v1/potential_loads": {secure.Reader, false},
		"POST /v1/select_and_reserve": {secure.Operator, false}, "POST /v1/reservations": {secure.Operator, false},
		"DELETE /v1/reservations/x": {secure.Operator, false}, "POST /v1/reservations/x/output": {secure.Operator, false},
		"GET /busy_threshold": {secure.Reader, false}, "POST /busy_threshold": {secure.Operator, false},

		"POST /v1/chat/completions": {secure.Reader, true}, "POST /v1/chat/completions/": {secure.Reader, true}, "POST //v1/./completions": {secure.Reader, true},
		"POST /generate": {secure.Reader, true}, "POST /v1/messages": {secure.Reader, true}, "POST /tokenize": {secure.Reader, true},
		"GET /v1/responses/resp_1": {secure.Reader, true}, "GET /v1/models/org/model": {secure.Reader, true}, "HEAD /health": {secure.Anybody, true}, "GET /v1/models/a%2Fb": {secure.Reader, true},
		"OPTIONS /v1/chat/completions": {secure.Reader, true}, "PUT /echo": {secure.Reader, true},

		"GET /livez/x": {secure.Operator, false}, "POST /anything": {secure.Operator, false}, "GET /v1/chat/completions": {secure.Operator, false},
		"POST /update_weights": {secure.Operator, false}, "POST /reset_prefix_cache": {secure.Operator, false}, "POST /v1/load_lora_adapter": {secure.Operator, false},
		"POST /sleep": {secure.Operator, false}, "POST /collective_rpc": {secure.Operator, false}, "GET /get_server_info": {secure.Operator, false},
		"POST /v1/completions/../../sleep": {secure.Operator, false}, "POST /v1/%63ompletions/%2e%2e/%2e%2e/sleep": {secure.Operator, false},
		"GET /v1/responses/a%2Fb": {secure.Operator, false}, "GET /v1/models/a/../../../sleep": {secure.Operator, false}, "GET /v1/responses/a/b": {secure.Operator, false},
		"POST /v1%2Fcompletions": {secure.Operator, false}, "POST /V1/completions": {secure.Operator, false}, "SLEEP /v1/completions": {secure.Operator, false},
	} {
		method, path, _ := strings.Cut(request, " ")
		u, err := url.ParseRequestURI(path)
		if err != nil || !canonicalise(u) {
			t.Errorf("%s: no path: %v", path, err)
			continue
		}
		if role, tenants := l.proxy.routes.needs(&http.Request{Method: method, URL: u}); role != want.role || tenants != want.tenants {
			t.Errorf("%s: %v %t, want %+v", request, role, tenants, want)
		}
	}
	for _, list := range []string{"sglang2", "POST", "x", "/a/../b", "PRI /a", "/a?b", "/a/"} {
		if CheckRoutes([]string{list}) == nil {
			t.Errorf("%q is taken for a route", list)
		}
	}
}

// A path has one form, in which nothing is left to make another of.
func FuzzCanonicalPath(f *testing.F) {
	for _, path := range []string{"/v1/completions/", "//v1//x", "/%2e%2e/a", "/a%2F..%2Fb", "/a%5cb", "/%252e", "/a/./../b", "*", "/\xff", "/a%00"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.ParseRequestURI(text)
		if err != nil || !canonicalise(u) {
			return
		}
		again := *u
		if !canonicalise(&again) || again.Path != u.Path || again.RawPath != u.RawPath || u.EscapedPath() != again.EscapedPath() {
			t.Fatalf("%q becomes %q (%q), and then %q (%q)", text, u.Path, u.RawPath, again.Path, again.RawPath)
		}
		if u.Path[0] != '/' || strings.ContainsAny(u.Path, "\\\x00\r\n") || len(u.Path) > 1 && strings.HasSuffix(u.EscapedPath(), "/") {
			t.Fatalf("%q becomes %q", text, u.Path)
		}
		for segment := range strings.SplitSeq(u.Path, "/") {
			if segment == "." || segment == ".." {
				t.Fatalf("%q becomes %q", text, u.Path)
			}
		}
	})
}

// seen is what an engine was sent.
type seen struct {
	mu   sync.Mutex
	list []string // "worker method path body"
	ids  []string // X-Request-Id
}

func (s *seen) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	slices.Sort(list)
	return list
}

// spied returns a setup of engines that note what comes and answer with their number.
func spied(t *testing.T, n int, role func(i int) registry.Role) (setup, *seen) {
	t.Helper()
	var s seen
	urls := make([]string, n)
	for i := range n {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path != "/tokenize" {
				s.mu.Lock()
				s.list = append(s.list, strings.TrimSpace(fmt.Sprint(i, " ", r.Method, " ", r.RequestURI, " ", string(body))))
				s.ids = append(s.ids, r.Header.Get("X-Request-Id"))
				s.mu.Unlock()
			}
			if strings.Contains(string(body), "fail on 1") && i == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
			w.Header().Set("Access-Control-Allow-Origin", "*") // as vLLM's
			w.Header().Set("Vary", "Accept")
			_, _ = fmt.Fprintf(w, `{"engine":%d}`, i)
		}))
		t.Cleanup(h.Close)
		urls[i] = h.URL
	}
	return setup{engines: n, registry: func(i int, w *registry.Worker) {
		w.Endpoints.HTTP = urls[i]
		if role != nil {
			w.Role = role(i)
		}
	}}, &s
}

// Clients' own words about where a prompt's KV entries are reach no engine, on
// whatever route, under whatever spelling, however deep engines read them.
func TestHandOverFieldsReachNoEngine(t *testing.T) {
	for _, split := range []bool{false, true} {
		s, seen := spied(t, 2, func(i int) registry.Role {
			if split && i == 0 {
				return registry.Prefill
			}
			return registry.Aggregated
		})
		s.proxy = func(c *Config) { c.Trust = nil }
		l := newLab(t, s)
		for _, path := range []string{"/v1/completions", "/generate", "/inference/v1/generate", "/v1/responses", "//v1/completions", "/v1/completions/",
			"/v1/%63ompletions", "/v1/chat/../completions", "/v1/messages", "/api/chat", "/invocations"} {
			body := `{ "kv_transfer_params":{"remote_host":"evil"} , "model":"org/model","prompt":[1,2,3], "bootstrap_host" : "evil","\u0062ootstrap_room":[1],
				"sampling_params":{"extra_args":{"kv_transfer_params":"evil","n":1},"a":[{"b":1},{"kv_transfer_params":"evil"}]}, "bootstrap_port":1,
				"request_id":"cmpl-___prefill_addr_evil:1___decode_addr_evil:2_x", "max_tokens":1,
				"vllm_xargs":{"\u006bv_transfer_params":"evil"},"disaggregated_params":{"x":"evil"},"user":"evil bootstrap_host" ,"rid":"mine", "ec_transfer_params":"evil"}`
			if status, data, _ := l.post(path, body, "X-Request-Id", "___prefill_addr_evil:1___decode_addr_x"); status != 200 && !split {
				t.Errorf("%s: %d %s", path, status, data)
			}
			got := seen.take()
			if len(got) == 0 {
				t.Errorf("%s reaches no engine", path)
			}
			for _, line := range got {
				at := strings.IndexByte(line, '{')
				line = strings.ReplaceAll(line, `"evil bootstrap_host"`, "")
				line = strings.ReplaceAll(line, vllmPrefill, "")
				if strings.Contains(line, "evil") || strings.Contains(line, "bootstrap_") || at < 0 || strings.Contains(line[:at], "//") {
					t.Errorf("split %v: %s sends %s", split, path, line)
				}
				if !strings.Contains(line, `"mine"`) || !strings.Contains(line, `"n":1`) {
					t.Errorf("split %v: %s loses %s", split, path, line)
				}
			}
		}
		// Each by itself: one alone is enough for an engine.
		fields := []string{`"sampling_params":{"a":[{"kv_router_hint":"evil"}]}`, `"parameters":{"routed_dp_rank":"evil"}`}
		for _, name := range []string{"kv_router_hint", "http_worker_ipc", "routed_dp_rank", "data_parallel_rank", "data_parallel_rank_decode", "disagg_prefill_dp_rank",
			"bootstrap_pair_key", "pd_prefill_admission_ack", "decode_token_reservation_id", "encoder_urls", "num_items_assigned",
			"need_wait_for_image", "need_wait_for_mm_inputs", "prefill_host", "embedding_port"} {
			fields = append(fields, `"`+name+`":["evil"]`)
		}
		for _, field := range append(fields, `"request_id":"cmpl-___prefill_addr_evil:1_x"`, `"rid":"___decode_addr_evil:1"`, `"bootstrap_host":"evil"`,
			`"vllm_xargs":{"kv_transfer_params":"evil"}`, `"sampling_params":{"bootstrap_host":"evil"}`,
			`"parameters":{"bootstrap_host":"evil"}`, `"parameters":{"a":1,"\u0062ootstrap_port":"evil"}`, `"decode_tp_size":"evil"`, `"sampling_params":{"decode_tp_size":"evil"}`, `"custom_params":{"a":{"disaggregated_params":"evil"}}`) {
			l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],`+field+`}`)
			if got := seen.take(); len(got) == 0 || strings.Contains(strings.Join(got, ""), "evil") {
				t.Errorf("split %v: %s is sent as %q", split, field, got)
			}
		}
		for _, id := range seen.ids {
			if strings.Contains(id, "evil") {
				t.Errorf("a request is named %q", id)
			}
		}
		// What is no JSON object could hold anything.
		for path, body := range map[string]string{"/generate": "\xff\xfe{\x00}\x00", "/v1/responses": "[{\"bootstrap_host\":1}]", "/echo": "bootstrap_host=1", "/v1/audio/transcriptions": "--x"} {
			status, data, _ := l.post(path, body)
			if got := seen.take(); status < 400 == split || split && len(got) != 0 || strings.HasPrefix(path, "/v1/resp") && len(got) != 0 {
				if (path == "/generate" || path == "/v1/responses") && status == 400 && len(got) == 0 {
					continue
				}
				t.Errorf("split %v: %s: %d %s, engines saw %q", split, path, status, data, got)
			}
		}
	}
}

// What is taken out leaves an object that encoding/json reads, with all the others.
func FuzzBlankTransfers(f *testing.F) {
	f.Add([]byte(`{"a":1,"bootstrap_host":2,"b":[3]}`))
	f.Add([]byte(`{"bootstrap_host":2,"rid":"___prefill_addr_","kv_transfer_params":{}}`))
	f.Add([]byte(` { "sampling_params" : {"extra_args":[{"bootstrap_port":1}, {"x":"}"}]} , "bootstrap_room":1 } `))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after map[string]json.RawMessage
		if _, err := parseBody(data, 1<<20); err != nil || json.Unmarshal(data, &before) != nil {
			return
		}
		out := bytes.Clone(data)
		if err := blankTransfers(out); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if err := json.Unmarshal(out, &after); err != nil || len(out) != len(data) {
			t.Fatalf("%q becomes %q: %v", data, out, err)
		}
		for name := range after {
			if transferField(name) {
				t.Fatalf("%q becomes %q", data, out)
			}
		}
		for name := range before {
			if _, there := after[name]; !there && !transferField(name) && !idField(name) {
				t.Fatalf("%q loses %s: %q", data, name, out)
			}
		}
	})
}

// access returns who may ask, by a file of tokens.
func access(t *testing.T, tokens string) *secure.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := secure.Settings{TokensFile: path}.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Engines' administration is an operator's, who reaches all engines of a model or the
// one that is named; nobody's without tokens, unless that is asked for.
func TestAdministration(t *testing.T) {
	const reader, tenant, operator = "Bearer reader-0123456789abcdef", "Bearer tenant-0123456789abcdef", "Bearer operator-0123456789abcdef"
	const tokens = `[{token: reader-0123456789abcdef, role: reader}, {token: operator-0123456789abcdef, role: operator},
		{token: tenant-0123456789abcdef, role: operator, tenant: ""}]`
	for name, c := range map[string]struct {
		administration string
		guarded        bool
		authorization  string
		want           int
	}{
		"reader":                  {AdminOperators, true, reader, 403},
		"tenant":                  {AdminOperators, true, tenant, 403},
		"nobody's token":          {AdminOperators, true, "Bearer nobody-0123456789abcdef", 401},
		"operator":                {AdminOperators, true, operator, 200},
		"operator, closed":        {AdminNone, true, operator, 404},
		"without tokens":          {AdminOperators, false, "", 403},
		"without tokens, opened":  {AdminOpen, false, "", 200},
		"reader where it is open": {AdminOpen, true, reader, 403},
	} {
		t.Run(name, func(t *testing.T) {
			s, seen := spied(t, 3, nil)
			s.proxy = func(p *Config) {
				if p.Administration = c.administration; c.guarded {
					p.Access = access(t, tokens)
				}
			}
			l := newLab(t, s)
			status, data, _ := l.post("/v1/completions/..//load_lora_adapter/?a=b", `{"lora_name":"x"}`, "Authorization", c.authorization)
			got := seen.take()
			if status != c.want {
				t.Fatalf("%d %s", status, data)
			}
			if status != 200 {
				if len(got) != 0 {
					t.Errorf("engines saw %q", got)
				}
				return
			}
			want := []string{`0 POST /v1/load_lora_adapter?a=b {"lora_name":"x"}`, `1 POST /v1/load_lora_adapter?a=b {"lora_name":"x"}`, `2 POST /v1/load_lora_adapter?a=b {"lora_name":"x"}`}
			if !slices.Equal(got, want) || !strings.Contains(data, `{"worker_id":"2","status":200,"answer":{"engine":2}}`) {
				t.Errorf("engines saw %q; %s", got, data)
			}
			status, data, _ = l.post("/sleep", "", "Authorization", c.authorization, headerWorker, "1", headerModel, modelName)
			if got := seen.take(); status != 200 || data != `{"engine":1}` || !slices.Equal(got, []string{"1 POST /sleep"}) {
				t.Errorf("%d %s, engines saw %q", status, data, got)
			}
			status, data, _ = l.post("/sleep", `"fail on 1"`, "Authorization", c.authorization)
			if got := seen.take(); status != 502 || len(got) != 3 || !strings.Contains(data, `"status":500`) {
				t.Errorf("%d %s, engines saw %q", status, data, got)
			}
			for header, want := range map[string]string{headerWorker + ":7": "404 unknown_worker", headerWorker + ":x": "400 invalid_option", headerModel + ":none": "404 model_not_found"} {
				key, value, _ := strings.Cut(header, ":")
				status, data, _ := l.post("/sleep", "", "Authorization", c.authorization, key, value)
				if reason, _, _ := strings.Cut(want[4:], " "); fmt.Sprint(status) != want[:3] || !strings.Contains(data, reason) || len(seen.take()) != 0 {
					t.Errorf("%s: %d %s, want %s", header, status, data, want)
				}
			}
		})
	}
}

// Who opens the port in a browser is told what it is, and no engine is asked.
func TestTheRoot(t *testing.T) {
	s, seen := spied(t, 1, nil)
	l := newLab(t, s)
	for _, who := range []string{AdminOperators, AdminOpen} {
		l.proxy.cfg.Administration = who
		resp, err := http.Get(l.front.URL) //nolint:noctx // a test's own server
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "/v1/chat/completions") || len(seen.take()) != 0 {
			t.Errorf("%s: %d %s", who, resp.StatusCode, body)
		}
	}
}

// Who asks for a route of inference by another method is told by which.
func TestTheWrongMethod(t *testing.T) {
	s, seen := spied(t, 1, nil)
	l := newLab(t, s)
	for path, want := range map[string]string{"/v1/chat/completions": "405 POST", "/v1/completions/": "405 POST", "/sleep": "403 "} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.front.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Allow")); got != want || len(seen.take()) != 0 {
			t.Errorf("GET %s: %s, want %s: %s", path, got, want, body)
		}
	}
}

// Without tokens a loopback port answers no page of a site whose name means this machine:
// nothing that an engine would, nor the router; probes come by any name. And no page of
// another site administers engines.
func TestAPageOfASiteOfThisMachine(t *testing.T) {
	s, seen := spied(t, 1, nil)
	s.proxy = func(p *Config) {
		var err error
		if p.Access, err = (secure.Settings{HostNames: []string{"llm.example"}}).Open(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		p.Listen, p.Administration = "127.0.0.1:0", AdminOpen
		p.Console = http.NotFoundHandler()
	}
	l := newLab(t, s)
	for _, r := range []struct{ path, host, origin string }{
		{"/v1/models", "evil.example", ""}, {"/metrics", "evil.example:80", ""}, {"/console/", "evil.example", ""}, {"/v1/completions", "evil.example", ""},
		{"/sleep", "evil.example", ""}, {"/sleep", "localhost", "https://evil.example"}, {"/livez", "evil.example", ""}, {"/sleep", "llm.example:80", "http://llm.example:80"},
	} {
		method := http.MethodGet
		if r.path == "/sleep" || r.path == "/v1/completions" {
			method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+r.path, strings.NewReader(`{"model":"`+modelName+`","prompt":[1,2]}`))
		if err != nil {
			t.Fatal(err)
		}
		if req.Host = r.host; r.origin != "" {
			req.Header.Set("Origin", r.origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		served := r.path == "/livez" || strings.HasPrefix(r.host, "llm.example")
		if got := seen.take(); served != (resp.StatusCode == 200) || !served && (resp.StatusCode != 403 || len(got) > 0) {
			t.Errorf("%s by %s from %q: %d; engines saw %q", r.path, r.host, r.origin, resp.StatusCode, got)
		}
	}
}
