package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.IdleConns == 0 {
		cfg.IdleConns = 100
	}
	cfg.DialTimeout = waittest.Patience
	c := New(cfg)
	t.Cleanup(c.Close)
	return c
}

func ask(ctx context.Context, c http.RoundTripper, method, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Body, req.ContentLength = NewBody(body), int64(len(body))
	}
	return c.RoundTrip(req)
}

func (c *Client) count() (idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, list := range c.idle {
		idle += len(list)
	}
	return idle
}

// Requests and answers of all sizes and forms come through unchanged, over as few
// connections as are in use at once.
func TestForms(t *testing.T) {
	var conns atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header()["X-Got"] = append([]string{r.Method, r.URL.RequestURI(), r.Host}, r.Header["X-Many"]...)
		switch {
		case r.URL.Path == "/none":
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/hints":
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = w.Write(data)
		case r.URL.Path == "/close":
			w.Header().Set("Connection", "close")
			_, _ = w.Write(data)
		case len(data)%2 == 0: // chunked
			for len(data) > 0 {
				n := min(len(data), 1000)
				_, _ = w.Write(data[:n])
				_ = http.NewResponseController(w).Flush()
				data = data[n:]
			}
		default:
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c := client(t, Config{})
	for i, path := range []string{"/", "/a%2Fb?x=1&y=%20", "/none", "/hints", "/"} {
		for _, size := range []int{0, 1, 2, 999, 1000, smallBody, smallBody + 1, 100_000, 700_001} {
			data := make([]byte, size)
			for j := range data {
				data[j] = byte(j>>8 + j*i)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header["X-Many"] = []string{"a", "b, c"}
			req.Header["Content-Length"] = []string{"7"} // the client's; not of this connection
			req.Header["Transfer-Encoding"] = []string{"chunked"}
			if size > 0 || i == 0 {
				req.Body, req.ContentLength = NewBody(data), int64(size)
			}
			resp, err := c.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s %d: %v", path, size, err)
			}
			got, err := io.ReadAll(resp.Body)
			if path == "/none" {
				data = nil
			}
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: sent %d bytes, got %d back: %v", path, len(data), len(got), err)
			}
			want := fmt.Sprint([]string{"POST", path, strings.TrimPrefix(server.URL, "http://"), "a", "b, c"})
			if got := fmt.Sprint(resp.Header["X-Got"]); got != want {
				t.Errorf("it got %s, want %s", got, want)
			}
			if _, err := resp.Body.Read(make([]byte, 1)); err != io.EOF || resp.Body.Close() != nil {
				t.Errorf("after the end: %v", err)
			}
		}
	}
	if n := conns.Load(); n != 2 || c.count() != 1 { // one for long bodies
		t.Errorf("%d connections for one request at a time, %d idle", n, c.count())
	}
	resp, err := ask(t.Context(), c, http.MethodHead, server.URL+"/", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); err != nil || len(data) != 0 || conns.Load() != 2 {
		t.Errorf("HEAD: %q %v", data, err)
	}
	if resp, err = ask(t.Context(), c, http.MethodPost, server.URL+"/close", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "x" || c.count() != 0 {
		t.Errorf("%q %v; %d idle after a close", data, err, c.count())
	}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			resp, err := ask(t.Context(), c, http.MethodPost, server.URL+"/", []byte("data"))
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "data" {
				t.Errorf("%q %v", data, err)
			}
		})
	}
	all.Wait()
	if n := c.count(); n == 0 || n > 100 {
		t.Errorf("%d idle connections, at most 100 are kept", n)
	}
}

// raw serves connections with whatever f writes, once the head of a request has
// come.
func raw(t *testing.T, f func(n net.Conn)) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() { // ends with the listener
		for {
			n, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer n.Close() //nolint:errcheck // a test's
				if _, err := http.ReadRequest(bufio.NewReader(n)); err == nil {
					f(n)
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

// What an engine may answer, well or badly formed, is taken as http.Transport
// takes it: the same answer or an error where that has one.
func TestLikeTransport(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, text := range []string{
		ok + "Content-Length: 2\r\n\r\nab", ok + "Content-Length: 2\r\n\r\na", ok + "Content-Length: 2\r\n\r\nabc", ok + "\r\nto the end",
		ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", ok + "Transfer-Encoding: chunked\r\n\r\nx\r\nab\r\n",
		ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n", ok + "Transfer-Encoding: gzip\r\n\r\nab", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na",
		"HTTP/1.1 204 None\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 1\r\n\r\na", "HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n",
		"HTTP/1.1 503 Busy\r\nContent-Length: 1\r\nRetry-After: 3\r\n\r\nx", "", "x", "HTTP/1.1", "HTTP/1.1 abc\r\n\r\n", ok, ok + "a: b", ok + "no colon\r\n\r\n", ok + "Content-Length: -1\r\n\r\n",
		ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", ok + "X: " + strings.Repeat("x", 30<<10) + "\r\nContent-Length: 1\r\n\r\na",
		ok + "X: " + strings.Repeat("x", 200<<10) + "\r\nContent-Length: 1\r\n\r\na",
	} {
		url := raw(t, func(n net.Conn) { _, _ = io.WriteString(n, text) })
		take := func(c http.RoundTripper) (s string) {
			resp, err := ask(t.Context(), c, http.MethodGet, url, nil)
			if err != nil {
				return "error"
			}
			defer resp.Body.Close() //nolint:errcheck // read
			data, err := io.ReadAll(resp.Body)
			return fmt.Sprint(resp.StatusCode, resp.Header, resp.ContentLength, len(data), string(data[:min(len(data), 99)]), err)
		}
		other := &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}
		if got, want := take(client(t, Config{})), take(other); got != want {
			t.Errorf("%.80q:\n%.300s\nwant\n%.300s", text, got, want)
		}
		other.CloseIdleConnections()
	}
	for _, text := range []string{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "HTTP/1.1 050 No\r\nContent-Length: 1\r\n\r\na" + ok + "\r\n"} {
		for _, size := range []int{0, 1, largeBody + 1} {
			url := raw(t, func(n net.Conn) { _, _ = io.WriteString(n, text) })
			if resp, err := ask(t.Context(), client(t, Config{}), http.MethodPost, url, make([]byte, size)); err == nil {
				t.Errorf("%q to %d bytes is an answer: %d %v", text, size, resp.StatusCode, resp.Body.Close())
			}
		}
	}
	if _, err := ask(t.Context(), client(t, Config{}), http.MethodPost, "http://127.0.0.1:1", []byte("x")); err == nil {
		t.Error("nobody listens and answers")
	}
}

// The end of the context ends the wait for the head and the body, at the engine
// too; an answer that does not begin in time is told from others.
func TestInterrupted(t *testing.T) {
	gone := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // for the end of the connection to be seen
		if r.URL.Path == "/end" {
			return
		}
		if r.URL.Path == "/begin" {
			_, _ = io.WriteString(w, "data")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	defer server.Close()
	c := client(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := ask(ctx, c, http.MethodPost, server.URL+"/begin", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the body goes on or ends well: %v", err)
	}
	<-gone
	ctx, cancel = context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := ask(ctx, c, http.MethodPost, server.URL+"/wait", []byte("x")) //nolint:bodyclose // there is none
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if resp, err = ask(t.Context(), c, http.MethodPost, server.URL+"/begin", []byte("x")); err != nil || resp.Body.Close() != nil { // in the middle
		t.Fatal(err)
	}
	<-gone
	if resp, err = ask(t.Context(), c, http.MethodPost, server.URL+"/end", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil || c.count() != 1 {
		t.Fatalf("no connection is kept, in whose making the next one's time could end: %v", err)
	}
	hasty, done := context.WithTimeout(t.Context(), time.Millisecond)
	defer done()
	if _, err := ask(hasty, c, http.MethodPost, server.URL+"/wait", []byte("x")); !errors.Is(err, context.DeadlineExceeded) { //nolint:bodyclose // there is none
		t.Errorf("an answer that does not begin: %v", err)
	}
	if c.count() != 0 {
		t.Error("an interrupted connection is kept")
	}
}

// A connection that the engine has closed, or on which it says something unasked,
// is not used again; the request goes over a new one.
func TestStale(t *testing.T) {
	for name, after := range map[string]func(n net.Conn){
		"closed": func(n net.Conn) { _ = n.Close() },
		"speaks": func(n net.Conn) { _, _ = io.WriteString(n, "HTTP/1.1 408 Timeout\r\n\r\n") },
	} {
		said := make(chan struct{}, 2)
		url := raw(t, func(n net.Conn) {
			_, _ = io.WriteString(n, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
			said <- struct{}{}
			after(n)
			_, _ = io.Copy(io.Discard, n)
		})
		c := client(t, Config{})
		for range 2 {
			resp, err := ask(t.Context(), c, http.MethodPost, url, []byte("x"))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "a" {
				t.Errorf("%s: %q %v", name, data, err)
			}
			<-said
			waittest.Until(t, func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, list := range c.idle {
					if len(list) > 0 && list[0].alive() {
						return errors.New("it still looks open")
					}
				}
				return nil
			})
		}
	}
}

// An engine that refuses a body before it has come is heard, whether it closes the
// connection or leaves the body unread.
func TestEarlyAnswer(t *testing.T) {
	over := make(chan struct{})
	defer close(over)
	for _, size := range []int{1000, smallBody + 1, largeBody, 4 << 20} {
		for _, closes := range []bool{true, false} {
			url := raw(t, func(n net.Conn) {
				head := "HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\n"
				if closes {
					head += "Connection: close\r\n"
				}
				_, _ = io.WriteString(n, head+"\r\nx")
				if closes {
					_, _ = io.Copy(io.Discard, n) // or the answer may be lost with the connection
				} else {
					<-over
				}
			})
			c := client(t, Config{})
			resp, err := ask(t.Context(), c, http.MethodPost, url, make([]byte, size))
			if err != nil || resp.StatusCode != 413 {
				t.Fatal(size, closes, err)
			}
			if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "x" || closes && c.count() != 0 {
				t.Errorf("%d bytes: %q %v, %d idle", size, data, err, c.count())
			}
			_ = resp.Body.Close()
		}
	}
}

// Idle connections go when their time is over, and at the end; https and bodies
// of other types go another way.
func TestIdleAndOther(t *testing.T) {
	before := runtime.NumGoroutine()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	server, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	c := client(t, Config{IdleTimeout: time.Millisecond})
	c.other.TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // httptest's
	for _, url := range []string{server.URL, secure.URL} {
		resp, err := ask(t.Context(), c, http.MethodPost, url, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "x" {
			t.Errorf("%q %v", data, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "abc" || resp.Body.Close() != nil {
		t.Errorf("%q %v", data, err)
	}
	waittest.Until(t, func() error {
		if n := c.count(); n != 0 {
			return fmt.Errorf("%d idle", n)
		}
		return nil
	})
	c.Close()
	server.Close()
	secure.Close()
	waittest.Until(t, func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// Engines close idle connections whenever they like. A request that went on one goes
// again, once, on a new one; one whose new connection dies, or of whose answer there
// is a byte, does not.
func TestStaleConnections(t *testing.T) {
	for _, size := range []int{0, 100, smallBody + 1, 100_000} {
		var conns, requests atomic.Int64
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() { // ends with the listener
			for {
				n, err := ln.Accept()
				if err != nil {
					return
				}
				conns.Add(1)
				go func() { // one answer, and then none
					defer n.Close() //nolint:errcheck // it is over
					in := bufio.NewReader(n)
					for i := range 2 {
						req, err := http.ReadRequest(in)
						if err != nil {
							return
						}
						data, err := io.ReadAll(req.Body)
						requests.Add(1)
						switch {
						case err != nil || len(data) != size || req.Header.Get("X-Fate") == "die" || i == 1 && req.Header.Get("X-Fate") == "":
							return
						case req.Header.Get("X-Fate") == "half" && i == 1:
							_, _ = io.WriteString(n, "HTTP/1.1 2")
							return
						}
						_, _ = io.WriteString(n, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					}
				}()
			}
		}()
		stale := 0
		c := client(t, Config{Stale: func() { stale++ }})
		begin := func(fate string) (*http.Response, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if size > 0 {
				req.Body, req.ContentLength = NewBody(make([]byte, size)), int64(size)
			}
			if fate != "" {
				req.Header.Set("X-Fate", fate)
			}
			return c.RoundTrip(req)
		}
		send := func(fate string) error {
			resp, err := begin(fate)
			if err != nil {
				return err
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			data, err := io.ReadAll(resp.Body)
			if err == nil && string(data) != "ok" {
				err = fmt.Errorf("%q", data)
			}
			return err
		}
		for i := range 4 {
			if err := send(""); err != nil {
				t.Fatalf("%d bytes, request %d: %v", size, i, err)
			}
		}
		if conns.Load() != 4 || requests.Load() != 7 || size <= largeBody && stale != 3 {
			t.Errorf("%d bytes: %d connections, %d requests, %d stale", size, conns.Load(), requests.Load(), stale)
		}
		if err := send("half"); err == nil || requests.Load() != 8 {
			t.Errorf("%d bytes, a byte of the answer: %v after %d requests", size, err, requests.Load())
		}
		if err := send("die"); err == nil || requests.Load() != 9 {
			t.Errorf("%d bytes, a new connection: %v after %d requests", size, err, requests.Load())
		}
		// Where one old connection has died the others are as old.
		var open []*http.Response
		for range 3 {
			resp, err := begin("")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		for _, resp := range open {
			_, _ = io.Copy(io.Discard, resp.Body) // it is idle then
			_ = resp.Body.Close()
		}
		if err := send(""); err != nil {
			t.Errorf("%d bytes, of several old connections: %v", size, err)
		}
	}
}

// What an engine says when it gives up waiting for a request (408, and the end of the
// connection) may cross the next request: that goes again, on a new connection. A 408 to the
// first request of a connection, or of an engine that keeps the connection, is an answer.
func TestTimeoutsThatCrossARequest(t *testing.T) {
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
	for name, c := range map[string]struct {
		answers [][]string // of each connection, one after another
		want    []int
		stale   int
	}{
		"crossed":                {[][]string{{whole, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"}, {whole}}, []int{200, 200}, 1},
		"crossed, and no length": {[][]string{{whole, "HTTP/1.0 408 Request Time-out\r\n\r\n<html>"}, {whole}}, []int{200, 200}, 1},
		"both connections":       {[][]string{{whole, "HTTP/1.1 408 A\r\nConnection: close\r\n\r\n"}, {"HTTP/1.1 408 A\r\nConnection: close\r\n\r\n"}}, []int{200, 408}, 1},
		"the first":              {[][]string{{"HTTP/1.1 408 A\r\nConnection: close\r\n\r\n"}}, []int{408}, 0},
		"the connection stays":   {[][]string{{whole, "HTTP/1.1 408 A\r\nContent-Length: 0\r\n\r\n"}}, []int{200, 408}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var next atomic.Int64
			url := raw(t, func(n net.Conn) {
				i := int(next.Add(1)) - 1
				if i >= len(c.answers) {
					return
				}
				in := bufio.NewReader(n)
				for k, answer := range c.answers[i] {
					if k > 0 { // raw has read the first request
						if _, err := http.ReadRequest(in); err != nil {
							return
						}
					}
					_, _ = io.WriteString(n, answer)
				}
			})
			stale := 0
			cl := client(t, Config{Stale: func() { stale++ }})
			for i, want := range c.want {
				resp, err := ask(t.Context(), cl, http.MethodPost, url, nil)
				if err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode != want {
					t.Errorf("request %d: %d", i, resp.StatusCode)
				}
				_ = resp.Body.Close()
			}
			if stale != c.stale {
				t.Errorf("%d stale", stale)
			}
		})
	}
}

// So it is where http.Transport sends the request, with its whole body.
func TestTimeoutsThatCrossARequestOfTransport(t *testing.T) {
	type nth struct{}
	for name, c := range map[string]struct {
		tls    bool
		length int
	}{
		"https": {true, 10}, "https without a body": {true, 0}, "a long body": {false, largeBody + 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Context().Value(nth{}).(*atomic.Int64).Add(1) == 2 { //nolint:forcetypeassert // of the test
					w.Header().Set("Connection", "close")
					w.WriteHeader(http.StatusRequestTimeout)
					return
				}
				_, _ = fmt.Fprint(w, len(body))
			}))
			s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
				return context.WithValue(ctx, nth{}, new(atomic.Int64))
			}
			var cfg Config
			stale := 0
			cfg.Stale = func() { stale++ }
			if c.tls {
				s.StartTLS()
				trusts := s.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // it is one
				var err error
				if cfg.TLS, err = reload.Open(slog.New(slog.DiscardHandler), time.Now, func() (*tls.Config, error) { return trusts, nil }); err != nil {
					t.Fatal(err)
				}
			} else {
				s.Start()
			}
			t.Cleanup(s.Close)
			cl := client(t, cfg)
			var body []byte
			if c.length > 0 {
				body = make([]byte, c.length)
			}
			for i := range 2 {
				resp, err := ask(t.Context(), cl, http.MethodPost, s.URL, body)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != 200 || string(text) != fmt.Sprint(c.length) {
					t.Errorf("request %d: %d %s", i, resp.StatusCode, text)
				}
			}
			if stale != 1 {
				t.Errorf("%d stale", stale)
			}
		})
	}
}

// What was idle for longer than it may be is not used.
func TestOldConnectionsAreNotUsed(t *testing.T) {
	var conns atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c := client(t, Config{IdleTimeout: time.Hour})
	for range 3 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		c.mu.Lock()
		for _, list := range c.idle {
			list[0].since = list[0].since.Add(-2 * time.Hour)
		}
		c.mu.Unlock()
	}
	if n := conns.Load(); n != 3 {
		t.Errorf("%d connections for 3 requests, hours apart", n)
	}
}
