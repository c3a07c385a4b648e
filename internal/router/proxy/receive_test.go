package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/registry"
)

// dial opens a connection to the front and sends the text.
func (l *lab) dial(text string) net.Conn {
	l.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(l.front.URL, "http://"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		l.t.Fatal(err)
	}
	return c
}

// answerOn returns the next answer's status and code.
func answerOn(t *testing.T, c net.Conn) string {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	_, code, _ := strings.Cut(string(data), `"code":"`)
	code, _, _ = strings.Cut(code, `"`)
	return fmt.Sprint(resp.StatusCode, " ", code)
}

// Room is taken by bytes that came, not by those that are announced.
func TestAnnouncedBytesTakeNoRoom(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.MaxBody, c.BodyMemory, c.BodyShare = 8<<20, 32<<20, 0.5 }})
	for range 130 {
		l.dial("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n{")
	}
	l.eventually(func() error {
		if n := l.metric("kvatlas_router_bodies_arriving"); n != "130" {
			return fmt.Errorf("%s bodies are arriving", n)
		}
		return nil
	})
	for range 20 {
		if got := l.status(); got != "200" {
			t.Fatal(got)
		}
	}
}

// Bodies that hold room and do not come on make it for those that do.
func TestSlowBodiesAreDropped(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.BodyMemory = 200 << 10 }})
	var slow []net.Conn
	for range 6 {
		slow = append(slow, l.dial("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 65000\r\n\r\n{"+strings.Repeat(" ", 20_000)))
	}
	l.eventually(func() error {
		if n := l.metric(`kvatlas_router_body_bytes{place="memory"}`); n != "196608" {
			return fmt.Errorf("%s bytes in memory", n)
		}
		return nil
	})
	body := strings.Replace(short, "{", "{"+strings.Repeat(" ", 50_000), 1)
	l.eventually(func() error { // nothing is slow in its first second
		if status, data, _ := l.post("/v1/completions", body); status != 200 {
			return fmt.Errorf("%d %s", status, data)
		}
		return nil
	})
	dropped := 0
	for _, c := range slow[:6] {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		switch got := answerOn(t, c); {
		case got == "408 body_too_slow":
			dropped++
		case !strings.Contains(got, "timeout"):
			t.Error(got)
		}
	}
	if n := l.metric(`kvatlas_router_requests_total{outcome="body_too_slow"}`); dropped < 2 || dropped == 6 || n != fmt.Sprint(dropped) {
		t.Errorf("%d of 6 are dropped, counted %s", dropped, n)
	}
}

// What one client holds beyond its share is refused to it, and others are served.
func TestClientsHaveAShare(t *testing.T) {
	const tokens = "[{name: a, token: reader-a-0123456789abcdef, role: reader}, {name: b, token: reader-b-0123456789abcdef, role: reader}]"
	l := newLab(t, setup{proxy: func(c *Config) { c.BodyMemory, c.BodyShare, c.Access = 100<<10, 0.5, access(t, tokens) }})
	const head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer reader-a-0123456789abcdef\r\nContent-Length: "
	l.dial(head + "33000\r\n\r\n{" + strings.Repeat(" ", 20_000))
	l.eventually(func() error {
		if n := l.metric(`kvatlas_router_body_bytes{place="memory"}`); n != "32768" {
			return fmt.Errorf("%s bytes in memory", n)
		}
		return nil
	})
	for who, want := range map[string]string{"a": "529 client_share", "b": "200 "} {
		body := strings.Replace(short, "{", "{"+strings.Repeat(" ", 40_000), 1)
		got := answerOn(t, l.dial(strings.Replace(head, "-a-", "-"+who+"-", 1)+fmt.Sprint(len(body))+"\r\n\r\n"+body))
		if got != want {
			t.Errorf("%s: %s, want %s", who, got, want)
		}
	}
}

// A body in a file reaches engines as it came, again and again, and in parts with
// what the router adds.
func TestBodiesInFiles(t *testing.T) {
	files := func(c *Config) { c.BodyEach, c.BodyFiles, c.BodyDir = 1<<10, 1<<30, t.TempDir() }
	var s setup
	dropOnce(t, &s)
	s.proxy = files
	l := newLab(t, s)
	for range 3 {
		long := `{"model":"org/model","max_tokens":1,"prompt":[` + strings.TrimSuffix(strings.Repeat("17,", 60_000), ",") + `],"bootstrap_host":"h"}`
		if status, data, _ := l.post("/v1/completions", long); status != 200 || !strings.Contains(data, `"prompt_tokens":60000`) {
			t.Fatalf("%d %.300s", status, data)
		}
	}
	if n := l.metric(`kvatlas_router_retries_total{reason="unreachable"}`); n != "1" {
		t.Errorf("%s retries", n)
	}
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		l := newLab(t, setup{engines: 2, proxy: files,
			engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = way, i == 0 },
			registry: func(i int, w *registry.Worker) {
				w.KVTransfer, w.Role = registry.KVTransfer(way), []registry.Role{registry.Prefill, registry.Decode}[i]
				w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
			}})
		body := `{"model":"org/model","max_tokens":3,"prompt":"` + strings.Repeat("a long prompt ", 10_000) + `"}`
		if status, data, header := l.post("/v1/completions", body); status != 200 || header.Get(headerPrefill) != "0" {
			t.Errorf("%s: %d %.300s", way, status, data)
		}
		l.idle()
		if n := l.engines[1].Received.Load(); n != 1 {
			t.Errorf("%s: %d prompts are received", way, n)
		}
		l.eventually(func() error { // http.Transport may hold one for a moment
			if n := l.metric(`kvatlas_router_body_bytes{place="files"}`); n != "0" {
				return fmt.Errorf("%s bytes are left in files", n)
			}
			return nil
		})
	}
}

// Bodies that are compressed reach engines plain, and obey the same limit whatever
// they grow to.
func TestCompressedBodies(t *testing.T) {
	s, seen := spied(t, 1, nil)
	l := newLab(t, s)
	pack := func(how, text string) string {
		var b bytes.Buffer
		var w io.WriteCloser = gzip.NewWriter(&b)
		if how == "zstd" {
			var err error
			if w, err = zstd.NewWriter(&b, zstd.WithWindowSize(16<<20), zstd.WithSingleSegment(false)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	long := `{"model":"org/model","prompt":"` + strings.Repeat("long ", 50_000) + `"}`
	bomb := `{"model":"org/model","prompt":"` + strings.Repeat(" ", 20<<20) + `"}`
	for range 2 { // decoders are used again
		for _, c := range []struct{ how, body, want string }{
			{"gzip", pack("gzip", short), "200 " + short}, {"GZIP", pack("gzip", long), "200 " + long}, {"x-gzip", pack("gzip", short) + pack("gzip", " "), "200 " + short + " "},
			{"identity", short, "200 " + short}, {"", short, "200 " + short},
			{"gzip", pack("gzip", bomb), "413 body_too_large"}, {"zstd", pack("zstd", bomb), "400 malformed_encoding"},
			{"gzip", short, "400 malformed_encoding"}, {"gzip", pack("gzip", long)[:100], "400 malformed_encoding"}, {"gzip", "", "400 malformed_json"},
			{"zstd", short, "400 malformed_encoding"}, {"br", short, "415 unsupported_encoding"}, {"gzip, gzip", pack("gzip", short), "415 unsupported_encoding"},
			{"gzip", pack("gzip", pack("gzip", short)), "400 malformed_json"},
		} {
			status, data, header := l.post("/v1/completions", c.body, "Content-Encoding", c.how)
			got := seen.take()
			code, text, _ := strings.Cut(c.want, " ")
			switch {
			case fmt.Sprint(status) != code:
			case status != 200 && strings.Contains(data, `"`+text+`"`) && len(got) == 0 && (status == 415) == (header.Get("Accept-Encoding") != ""):
				continue
			case status == 200 && len(got) == 1 && got[0] == "0 POST /v1/completions "+strings.TrimSpace(text):
				continue
			}
			t.Errorf("%s of %d bytes: %d %.100s, want %.50s; engines saw %.100q", c.how, len(c.body), status, data, c.want, got)
		}
	}
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, long)
	_ = w.Close()
	if status, data, _ := l.post("/v1/completions", b.String(), "Content-Encoding", "zstd"); status != 200 || len(seen.take()) != 1 {
		t.Errorf("zstd: %d %s", status, data)
	}
	l.eventually(func() error {
		if n := l.metric(`kvatlas_router_body_bytes{place="memory"}`); n != "0" {
			return fmt.Errorf("%s bytes are left", n)
		}
		return nil
	})
}
