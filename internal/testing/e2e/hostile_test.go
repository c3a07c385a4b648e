package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// spy is an engine that notes what reaches it.
type spy struct {
	url string
	mu  sync.Mutex
	all []string // "METHOD target body"
}

func newSpy(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) bool) *spy {
	t.Helper()
	var s spy
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what came of it is noted
		switch r.URL.Path {
		case "/health", "/metrics", "/v1/models":
		default:
			s.mu.Lock()
			s.all = append(s.all, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, body))
			s.mu.Unlock()
		}
		if answer != nil && answer(w, r) {
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
	}))
	t.Cleanup(h.Close)
	s.url = h.URL
	return &s
}

// take returns what has come since the last call.
func (s *spy) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

// raw sends bytes to the server at the URL and returns the status line and all
// that follows, until the server closes or a short time has passed.
func raw(t *testing.T, url, text string) (status, rest string, closed bool) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // all was read
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	status, err = in.ReadString('\n')
	if err != nil {
		return "", "", true
	}
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	data, err := io.ReadAll(in)
	return strings.TrimSpace(strings.TrimPrefix(status, "HTTP/1.1 ")), string(data), err == nil
}

// A client without a role gets nothing but inference out of engines, and nothing
// that engines tell each other into them, in whatever way it writes its request.
func TestHostileRoutes(t *testing.T) {
	home := t.TempDir()
	tokens := filepath.Join(home, "tokens")
	if err := os.WriteFile(tokens, []byte("[{token: reader-0123456789abcdef, role: reader}, {token: operator-0123456789abcdef, role: operator}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := newSpy(t, nil), newSpy(t, nil)
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--engines="+a.url+","+b.url, "--model=m", "--tokens-file="+tokens, "--admin-listen=127.0.0.1:0")
	send := func(token, method, target, body string) (string, string) {
		t.Helper()
		status, rest, _ := raw(t, url, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s-0123456789abcdef\r\nContent-Length: %d\r\n\r\n%s", method, target, token, len(body), body))
		return status, rest
	}
	for _, target := range []string{"/sleep", "/v1/completions/../../sleep", "/v1/%2e%2e/sleep", "//sleep", "/v1/responses/..%2f..%2fsleep", "/v1/responses/x%2f..%2fsleep",
		"http://x/sleep", "/v1/models/..%5c..%5csleep", "/SLEEP", "/sleep/", "/sleep?/v1/completions", "/v1/completions;/sleep", "/v1/completions%00"} {
		if status, _ := send("reader", "POST", target, `{"model":"m"}`); status != "403 Forbidden" && status != "400 Bad Request" {
			t.Errorf("%s: %s", target, status)
		}
		if got := append(a.take(), b.take()...); len(got) != 0 {
			t.Errorf("%s: engines saw %q", target, got)
		}
	}
	if status, rest := send("operator", "POST", "/sleep?level=1", ""); status != "200 OK" || strings.Count(rest, `"status":200`) != 2 {
		t.Errorf("an operator: %s %s", status, rest)
	}
	if x, y := a.take(), b.take(); len(x) != 1 || len(y) != 1 || x[0] != "POST /sleep?level=1 " || y[0] != x[0] {
		t.Errorf("an operator: engines saw %q and %q", x, y)
	}
	for _, target := range []string{"/generate", "/vertex_generate", "/v1/responses", "//v1/completions", "/v1/completions/"} {
		status, rest := send("reader", "POST", target, `{"model":"m","prompt":"x","bootstrap_host":"evil","sampling_params":{"extra_args":{"kv_transfer_params":"evil"}},"parameters":{"bootstrap_host":"evil"}}`)
		if got := append(a.take(), b.take()...); status != "200 OK" || len(got) != 1 || strings.Contains(got[0], "evil") {
			t.Errorf("%s: %s %s, engines saw %q", target, status, rest, got)
		}
	}
	p.stop()
}

// Whoever announces bodies and does not send them keeps nobody out, nor does who
// sends as much as one may.
func TestHostileBodies(t *testing.T) {
	home := t.TempDir()
	a := newSpy(t, nil)
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0",
		"--body-memory=4MiB", "--body-memory-each=1MiB", "--body-files=32MiB", "--body-dir="+home, "--http-read-timeout=10m")
	hold := func(n int, head, text string) {
		for range n {
			c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
			_, _ = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"+head+"\r\n\r\n"+text)
		}
	}
	served := func(what string) {
		t.Helper()
		for range 20 {
			eventually(t, time.Minute, func() error { // nothing is slow in its first second
				if status, data, _ := ask(url+"/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 10_000)+`"}`); status != http.StatusOK {
					return fmt.Errorf("beside %s: %d %s", what, status, data)
				}
				return nil
			})
		}
	}
	hold(130, "Content-Length: 8388608", "{")
	hold(130, "Transfer-Encoding: chunked", "1\r\n{\r\n")
	served("what is announced")
	hold(20, "Content-Length: 8000000", "{"+strings.Repeat(" ", 900_000))
	served("what is held in memory")
	hold(10, "Content-Length: 8000000", "{"+strings.Repeat(" ", 3_000_000))
	served("what is held in files")
	large := `{"model":"m","prompt":"` + strings.Repeat("y", 7_000_000) + `"}`
	a.take()
	eventually(t, time.Minute, func() error {
		if status, data, _ := ask(url+"/v1/completions", large); status != http.StatusOK {
			return fmt.Errorf("a large body: %d %s", status, data)
		}
		return nil
	})
	if got := a.take(); len(got) != 1 || !strings.HasSuffix(got[0], large) {
		t.Error("the large body is another at the engine")
	}
	left, err := filepath.Glob(filepath.Join(home, "kvatlas-body-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("files are left: %v %v", left, err)
	}
	p.kill()
}

// Requests whose bodies do not come keep no places among those that are answered.
func TestBodiesThatDoNotComeHoldNoPlace(t *testing.T) {
	const most = 20
	a := newSpy(t, nil)
	p, url := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0",
		"--http-max-inflight="+strconv.Itoa(most), "--inflight-share=1", "--http-read-timeout=10m")
	for range most {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
		_, _ = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n{")
	}
	counted := func(want float64, name string, label ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			text, err := get(t.Context(), url+"/metrics")
			if n := sum(text, name, label...); err == nil && n != want {
				err = fmt.Errorf("%s is %v, want %v", name, n, want)
			}
			return err
		})
	}
	counted(most, "kvatlas_router_in_flight")
	eventually(t, time.Minute, func() error { // nothing is slow in its first second
		if status, data, _ := ask(url+"/v1/completions", `{"model":"m","prompt":"x"}`); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, data)
		}
		return nil
	})
	counted(1, "kvatlas_router_requests_total", `outcome="body_too_slow"`)
	p.kill()
}

// A request that two servers could read in two ways is refused and its connection
// closed, and what is no request of this kind too. Engines' redirects lead nowhere,
// and nothing of what engines say is in the log.
func TestHostileProtocol(t *testing.T) {
	home := t.TempDir()
	inner := newSpy(t, nil)
	a := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/completions" {
			return false
		}
		http.Redirect(w, r, inner.url+"/internal", http.StatusTemporaryRedirect)
		return true
	})
	b := newSpy(t, func(w http.ResponseWriter, _ *http.Request) bool {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 the-engines-words\r\n\r\n")
			_ = c.Close()
		}
		return true
	})
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--engines="+a.url+","+b.url, "--model=m", "--admin-listen=127.0.0.1:0",
		"--models-every=200ms", "--load-every=200ms", "--busy-prefill-tokens=1000000", "--log-level=debug")
	const post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
	for text, want := range map[string]string{
		post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                   "400 Bad Request",
		post + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET /sleep HTTP/1.1\r\n": "400 Bad Request",
		"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n":                                                                 "405 Method Not Allowed",
		"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n":                                                                       "405 Method Not Allowed",
		"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n":                 "501 Not Implemented",
		// Nobody has a token here, so nobody is an operator.
		"POST /sleep HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n": "403 Forbidden",
	} {
		if status, rest, closed := raw(t, url, text); status != want || !closed {
			t.Errorf("%q: %s, closed %v: %s", text, status, closed, rest)
		}
	}
	if got := append(a.take(), b.take()...); len(got) != 0 {
		t.Errorf("engines saw %q", got)
	}
	for range 20 {
		ask(url+"/v1/completions", `{"model":"m","prompt":"x"}`)
	}
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), url+"/metrics")
		if err == nil && !strings.Contains(string(text), `kvatlas_router_requests_total{outcome="two_lengths"} 2`) {
			err = fmt.Errorf("two lengths are not counted")
		}
		return err
	})
	p.stop()
	if got := inner.take(); len(got) != 0 {
		t.Errorf("a redirect led to %q", got)
	}
	if text, err := os.ReadFile(p.stderr); err != nil || strings.Contains(string(text), "the-engines-words") || !strings.Contains(string(text), "no HTTP") {
		t.Errorf("%v; the log: %s", err, text)
	}
}

// An engine that asks for a key, closes connections behind answers and reads plain
// bodies only is served through the router all the same.
func TestParticularEngine(t *testing.T) {
	home := t.TempDir()
	a := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Header.Get("Authorization") != "Bearer the-engines-key" || r.Header.Get("Content-Encoding") != "":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v1/completions":
			c, out, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return true
			}
			_, _ = out.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			_ = out.Flush()
			go func() { // reads one more request, and answers nothing
				_, _ = http.ReadRequest(out.Reader)
				_ = c.Close()
			}()
		default:
			return false
		}
		return true
	})
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0", "--engine-token=the-engines-key")
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = io.WriteString(z, `{"model":"m","prompt":"`+strings.Repeat("x", 30<<20)+`"}`)
	_ = z.Close()
	for i := range 6 {
		text, encoding := `{"model":"m","prompt":"x"}`, ""
		if i == 5 {
			text, encoding = body.String(), "gzip"
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Encoding", encoding)
		req.Header.Set("Authorization", "Bearer the-clients")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("request %d: %d %s %v", i, resp.StatusCode, data, err)
		}
		_ = resp.Body.Close()
	}
	if text, err := get(t.Context(), url+"/metrics"); err != nil || strings.Contains(string(text), "kvatlas_router_stale_connections_total 0") {
		t.Errorf("no connection was stale: %v", err)
	}
	p.stop()
	if text, err := os.ReadFile(p.stderr); err != nil || strings.Contains(string(text), "the-engines-key") {
		t.Errorf("%v; the log: %s", err, text)
	}
}
