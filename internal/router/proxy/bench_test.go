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
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
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
	return serving(b, fl, log, TokensBytes)
}

// serving returns the URL of a router of the fleet.
func serving(b testing.TB, fl *fleet.Fleet, log *slog.Logger, tokens string) string {
	c := testConfig()
	c.Fleet, c.Metrics, c.Log, c.Tokens, c.MaxBody = fl, obs.NewMetrics(), log, tokens, 1<<20
	p, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	front := newFront(b, p, patience)
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
	racetest.Without(t, "pools forget on purpose under the race detector")
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

// BenchmarkRequest is a chat of 10 KB and a short answer, one after the other: without events, and as
// by default, with a text that is new each time and whose tokens an engine says. Client and engine
// allocate nothing: what is counted is the router's.
func BenchmarkRequest(b *testing.B) {
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("0123456789", 1000) + `"}],"model":"` + modelName + `"}`
	ask := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	text := bytes.LastIndex(ask, []byte("0123456789"))
	direct := "http://" + plainEngine(b, len(body)/bytesPerToken)
	for _, r := range []struct{ name, url string }{{"direct", direct}, {"router", before(b, direct)}, {"tokenized", following(b, direct)}} {
		b.Run(r.name, func(b *testing.B) {
			c, err := new(net.Dialer).DialContext(b.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // nothing is under way
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				strconv.AppendInt(ask[text:text], int64(1e9+n), 10)
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

// plainEngine serves a short answer to whatever it is asked, and so many tokens to /tokenize.
func plainEngine(b *testing.B, tokens int) (address string) {
	ln, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	answer := func(body string) []byte {
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	list := make([]string, tokens)
	for i := range list {
		list[i] = strconv.Itoa(benchToken(i))
	}
	chat, said := answer(`{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":2500,"completion_tokens":8}}`), answer(`{"count":1,"tokens":[`+strings.Join(list, ",")+`]}`)
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				in := bufio.NewReader(c)
				for {
					line, err := in.Peek(len("POST /tokenize"))
					a := chat
					if string(line) == "POST /tokenize" {
						a = said
					}
					if err != nil || whole(in) != nil {
						return
					}
					_, _ = c.Write(a) // else the next read fails
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func benchToken(i int) int { return i * 7919 % 100_003 }

// following returns the URL of a router as it is by default before four engines at one address, of which
// two hold most of a prompt.
func following(b *testing.B, engine string) string {
	set := shard.New(shard.Config{})
	b.Cleanup(set.Close)
	sp := event.Space{Model: modelName, BlockSize: 16}
	index, err := set.Open(sp)
	if err != nil {
		b.Fatal(err)
	}
	tokens := make([]uint32, 2400)
	for i := range tokens {
		tokens[i] = uint32(benchToken(i))
	}
	local, err := blockhash.LocalHashes(nil, tokens, 16, blockhash.Options{})
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	fl := fleet.New(fleet.Config{ID: 1, Route: route.DefaultSettings(), Index: fleet.Events, Set: set, Log: log,
		Decisions: account.New(account.Config{Keep: 1000, Memory: 1 << 24, Rows: 1000, Run: "b"})})
	for id := range uint64(4) {
		w := registry.Worker{ID: id, Model: modelName, BlockSize: 16, Transport: registry.JetStream, Endpoints: registry.Endpoints{HTTP: engine}}
		if err := fl.SetWorker(w, false); err != nil {
			b.Fatal(err)
		}
		if id > 1 {
			continue
		}
		stored := event.Event{Kind: event.Stored, ID: 1, Local: local, Engine: local}
		if _, err := index.ApplyWait(b.Context(), &event.Batch{Space: sp, Worker: id, Events: []event.Event{stored}}); err != nil {
			b.Fatal(err)
		}
	}
	return serving(b, fl, log, TokensEngine)
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
