package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// tenantsFile writes a file of three tokens and the limits.
func tenantsFile(t *testing.T, limits string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	securetest.Replace(t, path, []byte("tokens:\n- {name: a, token: a-0123456789abcdef, role: reader}\n- {name: b, token: b-0123456789abcdef, role: reader}\n"+
		"- {name: c, token: c-0123456789abcdef, role: reader, tenant: ''}\ntenants:\n"+limits))
	return path
}

// A tenant that has used what it may is told when to come again; others are not
// touched, nor is one without limits.
func TestLimitsOfTenants(t *testing.T) {
	tokens := tenantsFile(t, "  a: {requests: 2, per: 1h}\n  b: {tokens: 100, per: 1h}\n")
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4", "--tokens-file="+tokens,
		"--trust=127.0.0.1")
	ask := func(who string, headers ...string) (int, string, http.Header) {
		t.Helper()
		return askAs(t, who+"-0123456789abcdef", "POST", url+"/v1/completions", `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":30}`, headers...)
	}
	level := func(h http.Header, of string) string {
		return h.Get("X-Ratelimit-Limit-"+of) + " " + h.Get("X-Ratelimit-Remaining-"+of)
	}
	for i, want := range []string{"200 2 1", "200 2 0", "429 2 0"} {
		status, text, header := ask("a")
		if got := fmt.Sprint(status, " ", level(header, "Requests")); got != want || header.Get("X-Ratelimit-Limit-Tokens") != "" {
			t.Errorf("request %d: %s, want %s: %v %s", i, got, want, header, text)
		}
		if status == 429 {
			after, err := strconv.Atoi(header.Get("Retry-After"))
			reset, rerr := time.ParseDuration(header.Get("X-Ratelimit-Reset-Requests"))
			if err != nil || after < 1700 || after > 1800 || rerr != nil || reset < time.Hour-time.Minute || reset > time.Hour || !strings.Contains(text, `"code":"rate_limit_exceeded"`) {
				t.Errorf("%v %s", header, text)
			}
		}
	}
	// 10 tokens of the prompt are taken first, and 30 of the answer when it is there.
	for i, want := range []string{"200 100 90", "200 100 50", "200 100 10", "429 100 0"} {
		var status int
		var header http.Header
		waittest.Until(t, func() error { // what a request has used is taken when it has ended
			if i == 3 {
				status, _, header = ask("b")
				if status != 429 {
					return fmt.Errorf("%d", status)
				}
			}
			return nil
		})
		if i < 3 {
			status, _, header = ask("b")
		}
		if got := fmt.Sprint(status, " ", level(header, "Tokens")); got != want || header.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	for range 5 {
		if status, _, header := ask("c"); status != 200 || header.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("who has no limit: %d %v", status, header)
		}
	}
	if status, text, _ := ask("c", "X-Kvatlas-Tenant", "a"); status != 429 {
		t.Errorf("for the tenant that a trusted caller names: %d %s", status, text)
	}
	if _, text, _ := askAs(t, "a-0123456789abcdef", "GET", url+"/metrics", ""); !strings.Contains(text, `kvatlas_router_limited_total{limit="requests"} 2`) {
		t.Error("refusals are not counted")
	}
}

// A list of prompts, as SGLang's /generate takes it, is paid for whole: at first by its
// bytes, then by what each of its answers says, also of those long before the end.
func TestListsOfPromptsArePaidFor(t *testing.T) {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		one := `{"text":"` + strings.Repeat("x", 9000) + `","meta_info":{"prompt_tokens":100,"completion_tokens":10}}`
		_, _ = io.WriteString(w, "["+one+","+one+","+one+"]")
	}))
	t.Cleanup(e.Close)
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+e.URL, "--model=m", "--health-every=0s",
		"--tokens-file="+tenantsFile(t, "  a: {tokens: 100000, per: 24h}\n"))
	prompt := strings.Repeat("word ", 400)
	left := func() (n int) {
		t.Helper()
		status, text, header := askAs(t, "a-0123456789abcdef", "POST", url+"/generate", `{"model":"m","text":["`+prompt+`","`+prompt+`","`+prompt+`"]}`)
		n, err := strconv.Atoi(header.Get("X-Ratelimit-Remaining-Tokens"))
		if status != http.StatusOK || err != nil {
			t.Fatalf("%d %v %.200s", status, header, text)
		}
		return n
	}
	first := left() // bytes of three prompts, by four
	if used := 100_000 - first; used < 1400 || used > 1600 {
		t.Errorf("%d tokens are taken at first", used)
	}
	waittest.Until(t, func() error { // what was used is taken when a request has ended: its own is as at first
		before := left()
		if after := left(); before-after < 320 || before-after > 340 {
			return fmt.Errorf("%d tokens are paid for", before-after)
		}
		return nil
	})
}

// A client that leaves has used what it had the engine do: the prompt, once it was sent
// there, and what it saw of the answer. What no engine did is not paid for.
func TestWhoLeavesPays(t *testing.T) {
	asked := make(chan struct{}, 8)
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.Method != http.MethodPost, strings.Contains(string(body), "fails"):
			w.WriteHeader(http.StatusInternalServerError)
			return
		case strings.Contains(string(body), `"stream":true`):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, strings.Repeat("data: {\"choices\":[{}]}\n\n", 5))
			_ = http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(e.Close)
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+e.URL, "--model=m", "--health-every=0s",
		"--tokens-file="+tenantsFile(t, "  a: {tokens: 1000, per: 24h}\n"))
	left := func() (n int) {
		t.Helper()
		_, _, header := askAs(t, "a-0123456789abcdef", "POST", url+"/v1/completions", `{"model":"m","prompt":[1],"user":"fails"}`)
		n, err := strconv.Atoi(header.Get("X-Ratelimit-Remaining-Tokens"))
		if err != nil {
			t.Fatal(err)
		}
		return n + 1
	}
	if n := left(); n != 1000 {
		t.Fatalf("%d at first", n)
	}
	if n := left(); n != 1000 {
		t.Errorf("%d after an engine has failed", n)
	}
	want := 1000
	for _, c := range []struct {
		body string
		uses int
	}{{`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10]}`, 10}, {`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"stream":true}`, 15}} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer a-0123456789abcdef")
		gone := make(chan struct{})
		go func() { // ends with the request
			defer close(gone)
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_, _ = io.ReadFull(resp.Body, make([]byte, 5*len("data: {\"choices\":[{}]}\n\n")))
				cancel()
				_ = resp.Body.Close()
			}
		}()
		<-asked
		if c.uses == 10 {
			cancel()
		}
		<-gone
		cancel()
		want -= c.uses
		waittest.Until(t, func() error { // what a request has used is taken when it has ended
			if n := left(); n != want {
				return fmt.Errorf("%d tokens are left after %s, want %d", n, c.body, want)
			}
			return nil
		})
	}
}

// One tenant floods the queue, and another one's requests are served in turn, by the
// weights of both.
func TestTenantsShareTheQueue(t *testing.T) {
	var mu sync.Mutex
	var served []string
	var serving atomic.Int64
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/completions" {
			if n := serving.Add(1); n != 1 {
				t.Errorf("%d are served at once", n)
			}
			mu.Lock()
			served = append(served, r.Header.Get("X-Tenant"))
			mu.Unlock()
			<-release
			serving.Add(-1)
		}
		_, _ = io.WriteString(w, `{"choices":[{}]}`)
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(release) })
	tokens := tenantsFile(t, "  a: {weight: 1}\n  b: {weight: 2}\n")
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+slow.URL, "--model=m", "--block-size=4", "--tokens-file="+tokens,
		"--busy-prefill-tokens=0", "--queue=40", "--queue-timeout=5m", "--health-every=0s", "--models-every=0s", "--mode=kv", "--overdue-after=0s")
	var all sync.WaitGroup
	var asked, refused atomic.Int64
	ask := func(who string) {
		all.Go(func() {
			// A prompt of its own, as one that is cached makes nobody busy; it ends when something comes.
			each := fmt.Sprintf(`{"model":"m","prompt":[%d,2,3,4,5,6,7,8],"max_tokens":1,"stream":true}`, asked.Add(1))
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+"/v1/completions", strings.NewReader(each))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+who+"-0123456789abcdef")
			req.Header.Set("X-Tenant", who)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != 200 {
				refused.Add(1)
			}
		})
	}
	waiting := func(n int) {
		t.Helper()
		waittest.Until(t, func() error {
			_, text, _ := askAs(t, "a-0123456789abcdef", "GET", url+"/metrics", "")
			if want := fmt.Sprintf("kvatlas_router_queue_length{model=\"m\",block_size=\"4\",group=\"\"} %d\n", n); !strings.Contains(text, want) || serving.Load() != 1 {
				return fmt.Errorf("not %d wait", n)
			}
			return nil
		})
	}
	ask("a")
	waittest.Until(t, func() error {
		if serving.Load() != 1 {
			return fmt.Errorf("%d are served", serving.Load())
		}
		return nil
	})
	for range 40 { // the queue is full of one tenant's
		ask("a")
	}
	waiting(40)
	for range 20 { // 20 of those go for the other's
		ask("b")
	}
	waittest.Until(t, func() error {
		if refused.Load() != 20 {
			return fmt.Errorf("%d are refused", refused.Load())
		}
		return nil
	})
	waiting(40)
	for range 41 { // one after the other, as the queue lets them
		release <- struct{}{}
	}
	all.Wait()
	of := func(who string, list []string) (n int) {
		for _, s := range list {
			if s == who {
				n++
			}
		}
		return n
	}
	if len(served) != 41 || of("b", served) != 20 {
		t.Fatalf("%d are served, %d of them the other's", len(served), of("b", served))
	}
	if n := of("b", served[1:25]); n < 14 || n > 18 { // two of three
		t.Errorf("%d of the first 24 are those of the tenant with twice the weight: %v", n, served)
	}
}

// A request has one name, in its answer and at its engine: its client's if that is
// plain.
func TestRequestsAreNamed(t *testing.T) {
	var mu sync.Mutex
	var last []string
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/completions" {
			mu.Lock()
			last = r.Header.Values("X-Request-Id")
			mu.Unlock()
			w.Header().Set("X-Request-Id", "the-engines")
		}
		_, _ = io.WriteString(w, `{"choices":[{}]}`)
	}))
	t.Cleanup(front.Close)
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+front.URL, "--model=m", "--block-size=4")
	for given, kept := range map[string]bool{"": false, "abc-123/x": true, "a b": false, "a\tb": false, strings.Repeat("x", 129): false, strings.Repeat("x", 128): true} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":[1],"max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		if given != "" {
			req.Header.Set("X-Request-Id", given)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		mu.Lock()
		got, engines := resp.Header.Values("X-Request-Id"), last
		mu.Unlock()
		if len(got) != 1 || len(engines) != 1 || got[0] != engines[0] || (got[0] == given) != kept || len(got[0]) < 16 && !kept {
			t.Errorf("%q is answered as %q, and is %q at the engine", given, got, engines)
		}
	}
	for _, path := range []string{"/livez", "/v1/models", "/nowhere", "/v1/completions"} {
		if status, _, header := ask("GET", url+path, ""); header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d without an id", path, status)
		}
	}
}

// The access log has a line for each request, with who and how long, and nothing that
// was said; metrics are by tenant and worker.
func TestTheAccessLogTellsOfEachRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	tokens := tenantsFile(t, "  a: {requests: 100}\n")
	url, stop := start(t, "--nats=none", "--kv-events=false", "--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4", "--tokens-file="+tokens, "--access-log="+path, "--metric-labels=2")
	const secret = "hunter2"
	for _, c := range []struct{ who, path, body string }{
		{"a", "/v1/completions", `{"model":"m","prompt":"` + secret + ` is what was said","max_tokens":7}`},
		{"a", "/v1/chat/completions?key=" + secret, `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + secret + `"}],"max_tokens":5}`},
		{"b", "/v1/completions", `{"model":"nobody","prompt":"` + secret + `"}`},
		{"c", "/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`},
		{secret, "/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`},
		{secret, "/v1/select", `{}`},
	} {
		askAs(t, c.who+"-0123456789abcdef", "POST", url+c.path, c.body)
	}
	_, metrics, _ := askAs(t, "a-0123456789abcdef", "GET", url+"/metrics", "")
	for _, want := range []string{
		`kvatlas_router_tenant_requests_total{model="m",block_size="4",group="",tenant="a",result="ok"} 2`,
		`kvatlas_router_tenant_tokens_total{model="m",block_size="4",group="",tenant="a",kind="output"} 1`,
		`kvatlas_router_worker_first_token_seconds_count{model="m",block_size="4",group="",worker="0"} 3`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	stop()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), secret) || strings.Contains(string(data), "0123456789abcdef") {
		t.Errorf("what was said is logged: %s", data)
	}
	type entry struct {
		ID      string `json:"request_id"`
		Tenant  string
		Model   string
		Worker  string
		Path    string
		Status  int
		Outcome string
		Bytes   int64
		Total   float64 `json:"total_ms"`
		First   float64 `json:"first_byte_ms"`
		Prompt  int     `json:"prompt_tokens"`
		Output  int     `json:"output_tokens"`
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if strings.HasPrefix(e.Path, "/v1/") {
			if e.ID == "" || e.Bytes == 0 || e.Total <= 0 || e.Status == 200 && (e.First <= 0 || e.First > e.Total || e.Output == 0 || e.Prompt == 0) {
				t.Errorf("incomplete: %s", line)
			}
			got = append(got, fmt.Sprint(e.Path, " ", e.Tenant, " ", e.Model, " ", e.Worker, " ", e.Status, " ", e.Outcome))
		}
	}
	want := []string{
		"/v1/completions a m 0 200 ok", "/v1/chat/completions a m 0 200 ok", "/v1/completions b nobody  404 model_not_found",
		"/v1/completions c m 0 200 ok", "/v1/completions    401 unauthenticated", "/v1/select    401 unauthenticated",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
