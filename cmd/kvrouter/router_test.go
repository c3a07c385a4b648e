package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// start runs a router until the test ends and returns its URL when it is ready,
// and what stops it.
func start(t *testing.T, args ...string) (url string, stop func()) {
	t.Helper()
	return startLogged(t, slog.New(slog.DiscardHandler), args...)
}

func startLogged(t *testing.T, log *slog.Logger, args ...string) (url string, stop func()) {
	t.Helper()
	url, stop = startUnready(t, log, args...)
	waittest.Until(t, func() error {
		if status, text, _ := ask(http.MethodGet, url+"/readyz", ""); status != 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	return url, stop
}

// startUnready returns as soon as the router listens.
func startUnready(t *testing.T, log *slog.Logger, args ...string) (url string, stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "address")
	c, err := read(t, append([]string{"--http-listen=127.0.0.1:0", "--address-file=" + file, "--discover-every=20ms", "--worker-header"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, c, log) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		// A router without time to stop says that it cut answers off.
		if err := <-done; err != nil && !slices.Contains(args, "--stop-timeout=0s") {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	waittest.Until(t, func() error {
		data, err := os.ReadFile(file)
		if err != nil || len(data) == 0 {
			return errors.Join(errors.New("no address yet"), err)
		}
		url = "http://" + strings.TrimSpace(string(data))
		return nil
	})
	return url, stop
}

func ask(method, url, body string) (int, string, http.Header) {
	req, err := http.NewRequest(method, url, strings.NewReader(body)) //nolint:noctx // ends with the server
	if err != nil {
		return 0, err.Error(), nil
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(data), resp.Header
}

func engine(t *testing.T, c mockapi.Config) string {
	t.Helper()
	c.Model, c.Engine = "m", mock.Config{BlockSize: 4}
	e, err := mockapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(e)
	t.Cleanup(func() { e.Close(); s.Close() })
	return s.URL
}

// Without a broker, engines are those of the settings. An answer may take longer
// than a request may take to arrive. Mode kv, as auto would spare a worker whose
// last answer is just ending.
func TestWithoutNATS(t *testing.T) {
	slow := mockapi.Config{Step: func(*mock.Report) time.Duration { return 120 * time.Millisecond }}
	url, stop := start(t, "--nats=none", "--kv-events=false", "--mode=kv", "--engines="+engine(t, slow)+","+engine(t, slow), "--model=m", "--block-size=4",
		"--http-read-timeout=100ms", "--health-every=50ms")
	prompt := "a prompt of some length that is said twice, and is longer than four blocks of bytes"
	var first string
	for range 2 {
		status, text, header := ask("POST", url+"/v1/completions", `{"model":"m","max_tokens":4,"prompt":"`+prompt+`"}`)
		if status != 200 || !strings.Contains(text, mockapi.Text(mockapi.Tokens(prompt), 4)) {
			t.Fatalf("%d %s", status, text)
		}
		if got := header.Get("X-Kvatlas-Worker"); first == "" {
			first = got
		} else if got != first {
			t.Errorf("the prompt went to worker %s after %s", got, first)
		}
	}
	if status, text, _ := ask("GET", url+"/v1/models", ""); status != 200 || !strings.Contains(text, `"id":"m"`) {
		t.Errorf("%d %s", status, text)
	}
	stop()
	if status, _, _ := ask("GET", url+"/livez", ""); status != 0 {
		t.Error("it still answers")
	}
}

// Two routers on one broker: workers register, their events fill both indexes,
// what one places the other counts, and a worker that leaves is forgotten.
func TestFleetOverNATS(t *testing.T) {
	dir := t.TempDir()
	a, _ := start(t, "--data-dir="+dir, "--replica=a", "--queue-timeout=10m")
	b, _ := start(t, "--data-dir="+dir, "--replica=b", "--queue-timeout=10m")
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	br, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = br.Close() }) // the server may have gone first
	var workers []*registry.Announcement
	for i := range uint64(3) {
		pub, err := publish.Open(ctx, publish.Config{Conn: br.Conn(), Namespace: "default", Worker: i, Log: log,
			Space: event.Space{Model: "m", BlockSize: 4}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pub.Close(context.Background()) }) //nolint:usetesting // t's context has ended
		url := engine(t, mockapi.Config{Sink: func(ev *event.Event) {
			if err := pub.Publish(context.Background(), *ev); err != nil {
				t.Error(err)
			}
		}})
		w, err := registry.Register(ctx, registry.Worker{ID: i, Model: "m", BlockSize: 4, Transport: registry.JetStream, TotalBlocks: 1000,
			Endpoints: registry.Endpoints{HTTP: url}}, registry.AnnounceConfig{Conn: br.Conn(), Log: log})
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	loads := func(url string) (list []struct {
		Worker   uint64 `json:"worker_id"`
		Requests int    `json:"active_requests"`
	}) {
		_, text, _ := ask("GET", url+"/v1/loads", "")
		_ = json.Unmarshal([]byte(text), &list) // an empty list fails the test
		return list
	}
	for _, url := range []string{a, b} {
		waittest.Until(t, func() error {
			if n := len(loads(url)); n != 3 {
				return fmt.Errorf("%d workers", n)
			}
			return nil
		})
	}
	prompt := "a prompt of some length that is said twice"
	status, text, header := ask("POST", a+"/v1/completions", `{"model":"m","max_tokens":4,"prompt":"`+prompt+`"}`)
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	where := header.Get("X-Kvatlas-Worker")
	tokens := strings.ReplaceAll(strings.Trim(fmt.Sprint(mockapi.Tokens(prompt)), "[]"), " ", ",")
	for _, url := range []string{a, b} { // the other router knows it from the events alone
		waittest.Until(t, func() error {
			status, text, _ := ask("POST", url+"/v1/select", `{"model_name":"m","token_ids":[`+tokens+`]}`)
			if status != 200 || !strings.Contains(text, `"worker_id":`+where) || !strings.Contains(text, `"longest_matched":8,`) {
				return fmt.Errorf("%d %s, want worker %s", status, text, where)
			}
			return nil
		})
	}
	status, text, _ = ask("POST", a+"/v1/select_and_reserve", `{"selection_id":"x","model_name":"m","worker_id":1,"token_ids":[1,2,3,4]}`)
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	requests := func(url string, want int) {
		t.Helper()
		waittest.Until(t, func() error {
			for _, l := range loads(url) {
				if l.Worker == 1 && l.Requests == want {
					return nil
				}
			}
			return fmt.Errorf("%+v, want %d requests on worker 1", loads(url), want)
		})
	}
	requests(b, 1)
	othersMakeRoom(t, a, b)
	if err := workers[0].Close(ctx); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		if n := len(loads(b)); n != 2 {
			return fmt.Errorf("%d workers after one left", n)
		}
		return nil
	})
	for _, w := range workers[1:] {
		t.Cleanup(func() { _ = w.Close(context.Background()) }) //nolint:usetesting // t's context has ended
	}
}

// othersMakeRoom: a request that waits at router b, as router a has given each of the workers 0 to 2
// much to compute, tries again when it hears that one of a's other requests is over: at once, and
// not only when it looks for itself, which it does 20 times a second.
func othersMakeRoom(t *testing.T, a, b string) {
	t.Helper()
	reserve := func(id string, worker, tokens int) {
		t.Helper()
		list := strings.Repeat("7,", tokens-1) + "7"
		if status, text, _ := ask("POST", a+"/v1/select_and_reserve", fmt.Sprintf(`{"selection_id":%q,"model_name":"m","worker_id":%d,"token_ids":[%s]}`, id, worker, list)); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	free := func(id string) {
		t.Helper()
		if status, text, _ := ask("DELETE", a+"/v1/reservations/"+id, ""); status/100 != 2 {
			t.Fatalf("%d %s", status, text)
		}
	}
	count := func(name string) (n int) {
		_, text, _ := ask("GET", b+"/metrics", "")
		_, text, _ = strings.Cut(text, name+`{model="m",block_size="4",group=""} `)
		_, _ = fmt.Sscan(text, &n) // 0 fails the test
		return n
	}
	heard := func(want int) { // one is the caller's, six are the long ones and those before them
		t.Helper()
		waittest.Until(t, func() error {
			if n := count("kvatlas_router_live_bookings"); n != want {
				return fmt.Errorf("%d bookings, want %d", n, want)
			}
			return nil
		})
	}
	tries := func() int { return count("kvatlas_router_put_off_total") }
	const times = 40
	round := func() error {
		for i := range times {
			reserve(fmt.Sprint("short-", i), 1, 4)
		}
		for w := range 3 { // the long one is not the first there, which could be taken to be almost computed by now
			reserve(fmt.Sprint("first-", w), w, 4)
			reserve(fmt.Sprint("long-", w), w, 100_000)
		}
		heard(7 + times)
		before := tries()
		done := make(chan string, 1)
		go func() {
			status, text, _ := ask("POST", b+"/v1/completions", `{"model":"m","max_tokens":1,"prompt":[9,8,7,6,5,4,3,2]}`)
			done <- fmt.Sprint(status, " ", text)
		}()
		waittest.For(t, "it waits or is done", func() bool { return tries() > before || len(done) > 0 })
		began := time.Now()
		before = tries()
		for i := range times {
			free(fmt.Sprint("short-", i))
		}
		heard(7)
		took, n := time.Since(began), tries()-before
		for w := range 3 {
			free(fmt.Sprint("first-", w))
			free(fmt.Sprint("long-", w))
		}
		if text := <-done; !strings.HasPrefix(text, "200 ") {
			t.Fatal(text)
		}
		if looked := int(took / (50 * time.Millisecond)); n-looked < 4 { // not each: several are heard at once
			return fmt.Errorf("in %v it tried %d times, and would have %d of itself", took, n, looked)
		}
		return nil
	}
	waittest.Until(t, round) // a machine with much to do has a round's ends heard at once, or places the request before them
}
