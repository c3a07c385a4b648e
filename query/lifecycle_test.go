package query

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func TestHealthFollowsChecksAndDraining(t *testing.T) {
	var mu sync.Mutex
	reason := "17 messages behind"
	s := serve(t, twoSpaces(), testConfig(t), edge.Check{Name: "ingest", Reason: func() string {
		mu.Lock()
		defer mu.Unlock()
		return reason
	}})
	want := func(path string, status int, body string) {
		t.Helper()
		resp, got := s.do(t, "GET", path, "")
		if resp.StatusCode != status || string(got) != body+"\n" {
			t.Errorf("%s: %d %s, want %d %s", path, resp.StatusCode, got, status, body)
		}
	}
	want("/livez", 200, `{"status":"ok"}`)
	want("/readyz", 503, `{"status":"not ready"}`)
	want("/readyz?verbose", 503, `{"status":"not ready","checks":[{"name":"serving","ok":true},{"name":"ingest","ok":false,"reason":"17 messages behind"}]}`)
	mu.Lock()
	reason = ""
	mu.Unlock()
	want("/readyz", 200, `{"status":"ready"}`)
	want("/readyz?verbose", 200, `{"status":"ready","checks":[{"name":"serving","ok":true},{"name":"ingest","ok":true}]}`)
	s.Drain()
	want("/readyz?verbose", 503, `{"status":"not ready","checks":[{"name":"serving","ok":false,"reason":"shutting down"},{"name":"ingest","ok":true}]}`)
	want("/livez", 200, `{"status":"ok"}`)
	if resp, _ := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 || !resp.Close {
		t.Errorf("while draining: %s, connection closed: %v", resp.Status, resp.Close)
	}
	if resp, body := s.do(t, "HEAD", "/livez", ""); resp.StatusCode != 200 || len(body) != 0 {
		t.Errorf("HEAD: %s %q", resp.Status, body)
	}
}

func TestMetricsAndVersion(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`)
	s.do(t, "POST", "/v1/find_matches", `{`)
	_, data := s.do(t, "GET", "/metrics", "")
	for _, want := range []string{
		"# HELP kvatlas_http_requests_total Requests answered, by route and code, the status.\n# TYPE kvatlas_http_requests_total counter\n",
		"# TYPE kvatlas_http_request_duration_seconds histogram\n",
		`kvatlas_http_requests_total{route="find_matches",code="400"} 1`,
		`kvatlas_http_request_duration_seconds_count{route="find_matches"} 2`,
		"kvatlas_http_requests_in_flight 1\n", "kvatlas_http_connections ", "kvatlas_build_info{",
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	_, data = s.do(t, "GET", "/version", "")
	var v obs.Version
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v != obs.ReadVersion() {
		t.Errorf("%v in %s", err, data)
	}
}

func TestAPanicIsOneRequestsProblem(t *testing.T) {
	ix := twoSpaces()
	ix.spaces[2].panic = true
	s := serve(t, ix, testConfig(t))
	resp, data := s.do(t, "POST", "/v1/find_matches", `{"model":"n\"é","hashes":[1]}`)
	if resp.StatusCode != 500 || !bytes.Contains(data, []byte(`"reason":"internal"`)) {
		t.Errorf("%s %s", resp.Status, data)
	}
	if !strings.Contains(s.log.String(), "broken index") || s.counter(`kvatlas_http_refused_total{reason="internal"}`) != "1" {
		t.Errorf("not logged or not counted: %s", s.log)
	}
	if resp, _ := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

func TestSlowQueriesAreLogged(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-slow-query=1ns"))
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, "X-Request-Id", "slow-1")
	if !strings.Contains(s.log.String(), "request_id=slow-1") { // logged before the answer is written
		t.Errorf("not logged: %s", s.log)
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	for _, tc := range []struct{ flag, status, reason string }{
		{"--http-max-connections-per-ip=2", "429", "too_many_connections_of_address"},
		{"--http-max-connections=2", "503", "too_many_connections"},
	} {
		s := serve(t, twoSpaces(), testConfig(t, tc.flag))
		first := s.open(t)
		s.open(t)
		for n := range 3 {
			answer := s.raw(t, "")
			if !strings.HasPrefix(answer, "HTTP/1.1 "+tc.status+" ") || !strings.Contains(answer, `"reason":"`+tc.reason+`"`) {
				t.Errorf("%s: got %q", tc.flag, answer)
			}
			if got := s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)); got != fmt.Sprint(n+1) {
				t.Errorf("counted %s refusals, want %d", got, n+1)
			}
		}
		// A closed connection makes room.
		if _, err := io.WriteString(first, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(first); err != nil { // the server has closed it
			t.Fatal(err)
		}
		waittest.For(t, "it becomes true", func() bool { return s.counter("kvatlas_http_connections") == "1" })
		s.open(t)
	}
}

// open opens a connection on which one request has been answered.
func (s *served) open(t *testing.T) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp.Status)
	}
	return c
}

func TestShutdownClosesIdleConnectionsUnderUse(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	var users sync.WaitGroup
	for range 8 {
		c := s.open(t)
		users.Go(func() {
			for { // until the server closes it
				if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					return
				}
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					return
				}
			}
		})
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	users.Wait()
}

func TestShutdownAnswersWhatIsUnderWay(t *testing.T) {
	ix := twoSpaces()
	entered, release := make(chan bool), make(chan bool)
	s, err := New(testConfig(t), Deps{Index: blockingIndex{ix, entered, release}, Log: slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	answered := make(chan string, 1)
	go func() {
		resp, err := http.Post("http://"+ln.Addr().String()+"/v1/find_matches", "application/json", //nolint:noctx,gosec // loopback
			strings.NewReader(`{"model":"m","hashes":[1]}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		answered <- resp.Status
	}()
	<-entered
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(short); err == nil {
		t.Error("no error though a request is under way")
	}
	close(release)
	if status := <-answered; status != "200 OK" {
		t.Errorf("the request under way got %q", status)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// blockingIndex makes one lookup wait.
type blockingIndex struct {
	*fakeIndex
	entered, release chan bool
}

func (ix blockingIndex) Spaces() []event.Space {
	ix.entered <- true
	<-ix.release
	return ix.fakeIndex.Spaces()
}

// What is left out of Deps has a default, or is asked for.
func TestDepsLeftOut(t *testing.T) {
	if _, err := New(Config{}, Deps{}); err == nil {
		t.Error("a server without an index")
	}
	s, err := New(Config{}, Deps{Index: twoSpaces()})
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	got := httptest.NewRecorder()
	h.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/spaces", nil))
	if got.Code != http.StatusOK {
		t.Errorf("%d %s", got.Code, got.Body)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestServeAfterShutdownReturns(t *testing.T) {
	m := obs.NewMetrics()
	s, err := New(testConfig(t), Deps{Index: twoSpaces(), Log: slog.New(slog.DiscardHandler), Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("the port still listens")
	}
}

func TestNotesAreShownAndDoNotUnready(t *testing.T) {
	asked := 0
	s := serve(t, twoSpaces(), testConfig(t), edge.Check{Name: "memory", Reason: func() string { asked++; return "full" }, Note: true})
	if resp, got := s.do(t, "GET", "/readyz", ""); resp.StatusCode != 200 || asked != 0 {
		t.Errorf("%d %s, a note asked for %d times where nobody sees it", resp.StatusCode, got, asked)
	}
	resp, got := s.do(t, "GET", "/readyz?verbose", "")
	const want = `{"status":"ready","checks":[{"name":"serving","ok":true},{"name":"memory","ok":false,"reason":"full"}]}` + "\n"
	if resp.StatusCode != 200 || string(got) != want {
		t.Errorf("%d %s, want 200 %s", resp.StatusCode, got, want)
	}
}

// The numbers of a start are fields of their own, as documented.
func TestTheProgressOfAStartIsShown(t *testing.T) {
	var starting startup.Progress
	s := serveDeps(t, testConfig(t), Deps{Index: twoSpaces(), Progress: starting.Report})
	want := func(numbers string) {
		t.Helper()
		_, got := s.do(t, "GET", "/readyz?verbose", "")
		if text := `"checks":[{"name":"serving","ok":true}],"progress":` + numbers; !strings.Contains(string(got), text) {
			t.Errorf("%s, want %s", got, text)
		}
	}
	want(`{"phase":"connecting","bytes":0,"bytes_total":0,"blocks":0,"messages":0,"messages_left":0}`)
	starting.Begin(startup.Restoring)
	starting.Read(5, 40)
	starting.Loaded(3)
	want(`{"phase":"restoring","bytes":5,"bytes_total":40,"blocks":3,"messages":0,"messages_left":0,"seconds_left":`)
}
