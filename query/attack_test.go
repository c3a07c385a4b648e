package query

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

const postFind = "POST /v1/find_matches HTTP/1.1\r\nHost: localhost\r\n"

// dial opens a connection that the test closes.
func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// stillAnswers asks on an open connection, which is another client's.
func stillAnswers(t *testing.T, c net.Conn) {
	t.Helper()
	const body = `{"model":"m","hashes":[1]}`
	if _, err := fmt.Fprintf(c, postFind+"Content-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatalf("another client gets %s %s, %v", resp.Status, data, err)
	}
}

// TestIdleConnections opens five times as many connections as there may be:
// those beyond are told so and closed, and whoever had one before is served.
func TestIdleConnections(t *testing.T) {
	const most, all = 100, 500
	s := serve(t, twoSpaces(), testConfig(t, fmt.Sprintf("--http-max-connections=%d", most)))
	client := s.open(t)
	refused := 0
	for i := range all {
		c := s.dial(t)
		if i < most-1 {
			continue
		}
		answer, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(answer), "HTTP/1.1 503 ") {
			refused++
		}
		if i%100 == 0 {
			stillAnswers(t, client)
		}
	}
	if refused != all-most+1 {
		t.Errorf("%d connections are refused, want %d", refused, all-most+1)
	}
	stillAnswers(t, client)
}

// TestDeclaredLengthsTakeNoMoreThanTheLimit lets many clients announce the
// largest body and send one byte of it.
func TestDeclaredLengthsTakeNoMoreThanTheLimit(t *testing.T) {
	const clients, body = 100, 256 << 10
	s := serve(t, twoSpaces(), testConfig(t, "--http-max-body=256KiB"))
	client := s.open(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range clients {
		if _, err := fmt.Fprintf(s.dial(t), postFind+"Content-Length: %d\r\n\r\n{", body); err != nil {
			t.Fatal(err)
		}
	}
	stillAnswers(t, client)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 2*clients*body {
		t.Errorf("%d bytes are held for %d clients", used, clients)
	}
	if answer := s.raw(t, fmt.Sprintf(postFind+"Content-Length: %d\r\n\r\n{", body+1)); !strings.HasPrefix(answer, "HTTP/1.1 413 ") {
		t.Errorf("a body over the limit: %q", answer)
	}
}

// TestOddRequests sends what no client sends by accident.
func TestOddRequests(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-read-timeout=2s"))
	client := s.open(t)
	const behind = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" // which is no request: its connection has ended
	deep := `{"model_name":"m","x":` + strings.Repeat(`[`, 10000) + strings.Repeat(`]`, 10000) + `,"block_hashes":[1]}`
	for name, c := range map[string]struct{ request, status string }{
		"two equal lengths":     {postFind + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "400"},
		"two lengths":           {postFind + "Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}", "400"},
		"negative length":       {postFind + "Content-Length: -1\r\n\r\n{}", "400"},
		"length in words":       {postFind + "Content-Length: two\r\n\r\n{}", "400"},
		"length beyond 64 bits": {postFind + "Content-Length: 99999999999999999999999\r\n\r\n{}", "4"},
		"chunk of all memory":   {postFind + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}", "4"},
		"no encoding":           {postFind + "Transfer-Encoding: identity\r\n\r\n" + behind, "400"},
		"a folded length":       {postFind + "Content-Length:\r\n 2\r\n\r\n{}" + behind, "400"},
		"a folded encoding":     {postFind + "X: y\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}" + behind, "400"},
		"deep JSON":             {fmt.Sprintf("POST /query_by_hash HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(deep), deep), "400"},
		"endless header":        {"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 9000), "431"},
		"endless line":          {"GET /" + strings.Repeat("x", 9000), "431"},
		"TLS":                   {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
		"HTTP/2":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "4"},
		"no bytes but zeros":    {strings.Repeat("\x00", 100) + "\r\n\r\n", "400"},
	} {
		answer := s.raw(t, c.request)
		if answer == "" { // closed with bytes that nobody read, the answer is lost to the reset
			continue
		}
		if !strings.HasPrefix(answer, "HTTP/1.1 "+c.status) || strings.Count(answer, "X-Request-Id") != 1 {
			t.Errorf("%s: answered %.200q, want %s", name, answer, c.status)
		}
		stillAnswers(t, client)
	}
}

// TestBombsTakeNoMemory sends bodies that are small until they are opened.
func TestBombsTakeNoMemory(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-max-decompressed=1MiB"))
	// A zstd frame that asks for a window of 1 GiB: magic, descriptor, window.
	window := "\x28\xb5\x2f\xfd\x00\xa0\x01\x00\x00"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, data := s.do(t, "POST", "/v1/find_matches", window, "Content-Encoding", "zstd")
	runtime.ReadMemStats(&after)
	if resp.StatusCode != 413 && resp.StatusCode != 400 {
		t.Errorf("%s %s", resp.Status, data)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("%d bytes for a frame of %d", used, len(window))
	}
}

// TestClientsThatLeave ask for large answers and go away in the middle, or
// before. What they had is given back.
func TestClientsThatLeave(t *testing.T) {
	ix := new(fakeIndex)
	sp := ix.add(event.Space{Model: "m", BlockSize: 2})
	for i := range uint64(20_000) {
		sp.ranks = append(sp.ranks, fakeRank{RankID: shard.RankID{Worker: i}, chain: []uint64{1}})
	}
	s := serve(t, ix, testConfig(t))
	const body = `{"model":"m","hashes":[1]}`
	for i := range 40 {
		c := s.dial(t)
		if _, err := fmt.Fprintf(c, postFind+"Content-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	waittest.For(t, "it becomes true", func() bool {
		return s.counter("kvatlas_http_connections") == "0" && s.counter("kvatlas_http_requests_in_flight") == "0"
	})
	if resp, _ := s.do(t, "GET", "/livez", ""); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// TestRequestsAtOnceAreBounded has one request under way, which is all that
// may be: the next is refused, and health is still told.
func TestRequestsAtOnceAreBounded(t *testing.T) {
	entered, release := make(chan bool), make(chan bool)
	m := obs.NewMetrics()
	s, err := New(testConfig(t, "--http-max-inflight=1"), Deps{Index: blockingIndex{twoSpaces(), entered, release}, Log: slog.New(slog.DiscardHandler), Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string) (int, string) {
		var ctx fasthttp.RequestCtx
		ctx.Request.SetRequestURI(path)
		ctx.Request.Header.SetMethod(method)
		ctx.Request.SetBodyString(`{"model":"m","hashes":[1]}`)
		s.handle(&ctx)
		return ctx.Response.StatusCode(), string(ctx.Response.Body())
	}
	first := make(chan int, 1)
	go func() {
		status, _ := ask("POST", "/v1/find_matches")
		first <- status
	}()
	<-entered
	if status, body := ask("POST", "/v1/find_matches"); status != 503 || !strings.Contains(body, `"too_many_requests"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := ask("GET", "/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	close(release)
	if status := <-first; status != 200 {
		t.Errorf("the request under way: %d", status)
	}
}

// FuzzIndexer reads bodies of /query and /query_by_hash.
func FuzzIndexer(f *testing.F) {
	for _, body := range []string{
		`{"token_ids":[1,2],"model_name":"m","routing_group":"g","lora_name":null}`, `{"block_hashes":[-1,18446744073709551615],"model_name":"m","x":{"y":[1]}}`,
		`{"model":"m","block_size":16,"seq_hashes":["1"],"instance_id":"a","tenant_id":"t"}`, `{"model":"m","block_hash":[1],"block_size":1024,"instance_id":7}`,
	} {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, byHash bool) {
		var r findRequest
		_, p := r.parseIndexer(body, byHash, 100)
		if p == nil && (!json.Valid(body) || len(r.hashes) > 100 || len(r.tokens) > 100 || len(r.model) > maxName || (r.has&fieldHashes != 0) != byHash) {
			t.Fatalf("%q is taken: %+v", body, r)
		}
		if p != nil && (p.Status != 400 || p.Field == "" || p.Message == "") {
			t.Fatalf("%q: %+v", body, p)
		}
	})
}

// FuzzBinary reads requests of the binary form.
func FuzzBinary(f *testing.F) {
	f.Add("model=m", []byte("12345678"))
	f.Add("model=m&elements=token_ids&block_size=16&lora_name=%41", []byte("1234"))
	f.Add("model=m&group=&max_blocks=1&early_exit=true&tree_sizes=false", []byte{})
	f.Fuzz(func(t *testing.T, query string, body []byte) {
		var args fasthttp.Args
		args.Parse(query)
		var r findRequest
		p := r.parseBinary(&args, body, 100)
		if p == nil && 8*len(r.hashes)+4*len(r.tokens) != len(body) {
			t.Fatalf("%q: %d hashes and %d tokens of %d bytes", query, len(r.hashes), len(r.tokens), len(body))
		}
		if p != nil && (p.Status != 400 || p.Field == "" || p.Message == "") {
			t.Fatalf("%q: %+v", query, p)
		}
	})
}
