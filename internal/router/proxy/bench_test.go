package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// between runs f with the URL of an engine and with that of a router before it.
func between(b *testing.B, engine http.HandlerFunc, f func(b *testing.B, url string)) {
	direct, router := fronted(b, engine)
	b.Run("direct", func(b *testing.B) { f(b, direct) })
	b.Run("router", func(b *testing.B) { f(b, router) })
}

// fronted returns the URL of an engine and of a router before it.
func fronted(b testing.TB, engine http.HandlerFunc) (direct, router string) {
	server := httptest.NewServer(engine)
	b.Cleanup(server.Close)
	return server.URL, before(b, server.URL)
}

// before returns the URL of a router before an engine.
func before(b testing.TB, engine string) string {
	set := shard.New(shard.Config{})
	b.Cleanup(set.Close)
	log := slog.New(slog.DiscardHandler)
	fl := fleet.New(fleet.Config{ID: 1, Route: route.DefaultSettings(), Index: fleet.Approximate, Set: set, Log: log})
	if err := fl.SetWorker(registry.Worker{Model: modelName, BlockSize: 16, Endpoints: registry.Endpoints{HTTP: engine}}, false); err != nil {
		b.Fatal(err)
	}
	c := testConfig()
	c.Fleet, c.Metrics, c.Log, c.Tokens, c.MaxBody = fl, obs.NewMetrics(), log, TokensBytes, 1<<20
	p, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	front := newFront(b, p)
	b.Cleanup(func() { _ = front.Close() })
	return front.URL
}

func post(b testing.TB, url, body string) *http.Response {
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body)) //nolint:noctx // a benchmark's own server
	if err != nil {
		b.Fatal(err)
	}
	return resp
}

// What a request allocates does not grow with its body: what holds that is used again.
func TestAllocationsDoNotGrowWithBodies(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget on purpose under the race detector")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which empties pools
	direct, router := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"choices":[{}]}`)
	})
	each := func(url string, size int) int {
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("0123456789", size/10) + `"}],"model":"` + modelName + `"}`
		const warm, n = 20, 100
		var before, after runtime.MemStats
		for i := range warm + n {
			if i == warm {
				runtime.ReadMemStats(&before)
			}
			resp := post(t, url, body)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status, err)
			}
			_ = resp.Body.Close()
		}
		runtime.ReadMemStats(&after)
		return int(after.TotalAlloc-before.TotalAlloc) / n
	}
	const short, long = 5_000, 60_000
	// Client and engine do of themselves.
	if grows := each(router, long) - each(router, short) - (each(direct, long) - each(direct, short)); grows > 4_000 {
		t.Errorf("a request with a body of 60 KB allocates %d bytes more than one of 5 KB", grows)
	}
}

// BenchmarkRequest is a chat of 10 KB and a short answer, one after the other. Client and
// engine allocate nothing: what is counted is the router's.
func BenchmarkRequest(b *testing.B) {
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("0123456789", 1000) + `"}],"model":"` + modelName + `"}`
	ask := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	const said = `{"choices":[{}]}`
	engine, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close() //nolint:errcheck // it has done its work
	go func() {          // ends with the listener
		for {
			c, err := engine.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
				for in := bufio.NewReader(c); whole(in) == nil; {
					_, _ = c.Write(answer) // else the next read fails
				}
			}()
		}
	}()
	direct := "http://" + engine.Addr().String()
	for name, url := range map[string]string{"direct": direct, "router": before(b, direct)} {
		b.Run(name, func(b *testing.B) {
			c, err := new(net.Dialer).DialContext(b.Context(), "tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // nothing is under way
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(ask); err != nil {
					b.Fatal(err)
				}
				if err := whole(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// whole reads a message to its end.
func whole(in *bufio.Reader) error {
	for length := 0; ; {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			_, err = in.Discard(length)
			return err
		}
		if digits, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length = number(digits)
		}
	}
}

// BenchmarkToken is one chunk of a stream, from the engine's write to the client's
// read: the next one is written when it has arrived.
func BenchmarkToken(b *testing.B) {
	next := make(chan bool)
	between(b, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for <-next {
			_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":" word"}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	}, func(b *testing.B, url string) {
		go func() { next <- true }()
		resp := post(b, url, `{"messages":[],"model":"`+modelName+`","stream":true}`)
		lines := bufio.NewReader(resp.Body)
		read := func() {
			for range 2 {
				if _, err := lines.ReadSlice('\n'); err != nil {
					b.Fatal(err)
				}
			}
		}
		read()
		b.ReportAllocs()
		for b.Loop() {
			next <- true
			read()
		}
		next <- false
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	})
}
