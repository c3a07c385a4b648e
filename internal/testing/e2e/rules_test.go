package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// One router, a model for each thing that an engine may be: it gets the key that it registers
// with, and no other; a connection that it closed is no request that fails; why nobody serves is
// one of three reasons; a client's error is the client's, whichever engine says so; and
// an operator administers the worker that is named.
func TestRulesOfTheFront(t *testing.T) {
	home := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(home, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keyed := func(key string) *spy {
		return newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
			if got := r.Header.Get("Authorization"); got != "Bearer "+key {
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			return false
		})
	}
	first, second, other := keyed("key-of-the-first"), keyed("key-of-the-second"), keyed("key-of-all-others")
	wrong := func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"top_k is too large"}}`)
		return true
	}
	prefill, decode := newSpy(t, wrong), newSpy(t, wrong)
	idle, closed := closesIdle(t)
	list, id := "", 0
	worker := func(model, http, more string) {
		id++
		list += fmt.Sprintf("- {worker_id: %d, model: %s, block_size: 16, transport: none, endpoints: {%s}%s}\n", id, model, http, more)
	}
	at := func(url string) string { return "http: " + url }
	worker("keyed", at(first.url), ", credential: first")
	worker("keyed", at(second.url), ", credential: second")
	worker("named", at(other.url), "")
	worker("nowhere", "", "")
	worker("dead", "http: http://127.0.0.1:1", "")
	worker("drained", at(other.url), "")
	worker("split", at(prefill.url), ", role: prefill, kv_transfer: sglang")
	worker("split", at(decode.url), ", role: decode, kv_transfer: sglang")
	worker("idle", at(idle), "")
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--registry-workers="+write("workers", list), "--admin-listen=127.0.0.1:0",
		"--tokens-file="+write("tokens", "[{token: reader-0123456789abcdef, role: reader}, {token: operator-0123456789abcdef, role: operator}]"),
		"--engine-token=key-of-all-others", "--engine-credentials="+write("credentials",
			"[{name: first, hosts: [127.0.0.1], token: key-of-the-first}, {name: second, hosts: [127.0.0.1], token: key-of-the-second}]"))
	admin := "http://" + p.logged("admin port", "address")
	do := func(role, url, body string, headers ...string) (int, string, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+role+"-0123456789abcdef")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data), resp.Header
	}
	post := func(model string, headers ...string) (int, string, http.Header) {
		t.Helper()
		return do("reader", url+"/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":1}`, headers...)
	}

	for range 20 { // both get some
		if status, text, _ := post("keyed"); status != http.StatusOK {
			t.Errorf("an engine with a key of its own: %d %s", status, text)
		}
	}
	if a, b := len(first.take()), len(second.take()); a == 0 || b == 0 {
		t.Errorf("the engines with keys of their own got %d and %d requests", a, b)
	}
	if status, text, _ := do("operator", admin+"/drain", `{"worker_id":6}`); status != http.StatusOK {
		t.Errorf("draining: %d %s", status, text)
	}
	for model, why := range map[string]string{"nowhere": "1 without_address", "dead": "1 dead", "drained": "1 draining"} {
		eventually(t, time.Minute, func() error {
			if status, text, header := post(model); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(text, ": "+why+`"`) {
				return fmt.Errorf("%s: %d %s, want %s", model, status, text, why)
			}
			return nil
		})
	}
	for path, body := range map[string]string{"/generate": `{"text":"x"}`, "/v1/embeddings": `{"input":"x"}`, "/v1/responses": `{"input":"x"}`} {
		if status, text, _ := do("reader", url+path, body); status != http.StatusBadRequest || !strings.Contains(text, "missing_model") {
			t.Errorf("%s without a name, of several models: %d %s", path, status, text)
		}
	}
	for range 20 { // more than an engine may call wrong unheard
		if status, text, _ := post("split"); status != http.StatusBadRequest || !strings.Contains(text, "top_k is too large") {
			t.Errorf("a client's error: %d %s", status, text)
		}
	}
	text, err := metrics(t, url)
	if failed, left := sum(text, "kvatlas_router_prefill_failed_total"), sum(text, "kvatlas_router_left_out_total"); err != nil || failed+left != 0 {
		t.Errorf("a client's error is the engines': %v failures of prefill, %v left out, %v", failed, left, err)
	}
	for i := range 5 {
		if status, text, _ := post("idle"); status != http.StatusOK {
			t.Errorf("request %d over connections that the engine closes: %d %s", i, status, text)
		}
		eventually(t, time.Minute, func() error {
			if closed.Load() <= int64(i) {
				return errors.New("the engine has closed no connection")
			}
			return nil
		})
	}
	var packed strings.Builder
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(z, `{"model":"named","prompt":"packed"}`)
	_ = z.Close()
	other.take()
	if status, text, _ := do("reader", url+"/v1/completions", packed.String(), "Content-Encoding", "zstd"); status != http.StatusOK {
		t.Errorf("a body of zstd: %d %s", status, text)
	}
	if got := other.take(); len(got) != 1 || !strings.HasSuffix(got[0], `{"model":"named","prompt":"packed"}`) {
		t.Errorf("a body of zstd is %q at the engine", got)
	}
	if status, text, _ := do("operator", url+"/sleep", "", "X-Kvatlas-Model", "keyed", "X-Kvatlas-Worker", "2"); status != http.StatusOK {
		t.Errorf("one worker is administered: %d %s", status, text)
	}
	if a, b := first.take(), second.take(); len(a) != 0 || len(b) != 1 || b[0] != "POST /sleep " {
		t.Errorf("one worker is administered: the engines saw %q and %q", a, b)
	}
	p.stop()
	if text, err := os.ReadFile(p.stderr); err != nil || strings.Contains(string(text), "key-of-") || strings.Contains(string(text), "top_k") {
		t.Errorf("%v; the log: %s", err, text)
	}
}

// metrics asks for them as a reader.
func metrics(t *testing.T, url string) ([]byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer reader-0123456789abcdef")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	return io.ReadAll(resp.Body)
}

// closesIdle is an engine that closes connections soon after an answer, as engines do after five
// seconds, and how many it has closed behind a completion.
func closesIdle(t *testing.T) (url string, closed *atomic.Int64) {
	t.Helper()
	closed = new(atomic.Int64)
	var served atomic.Pointer[string] // where the last completion came from
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil && r.URL.Path == "/v1/completions" {
			served.Store(&r.RemoteAddr)
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
	}))
	s.Config.IdleTimeout = 10 * time.Millisecond
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if at := served.Load(); state == http.StateClosed && at != nil && *at == c.RemoteAddr().String() {
			closed.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, closed
}
