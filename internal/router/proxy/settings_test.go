package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

const short = `{"model":"org/model","prompt":[1,2,3],"max_tokens":1}`

// stall makes an engine take for ever over each step after the first n.
func stall(n int64) func(int, *mockapi.Config) {
	return func(_ int, c *mockapi.Config) {
		var steps atomic.Int64
		c.Step = func(*mock.Report) time.Duration {
			if steps.Add(1) > n {
				return time.Hour // until it is closed
			}
			return 0
		}
	}
}

// status returns the status and the code of the answer to a short request.
func (l *lab) status() string {
	status, data, _ := l.post("/v1/completions", short)
	_, code, _ := strings.Cut(data, `"code":"`)
	code, _, _ = strings.Cut(code, `"`)
	return strings.TrimSpace(fmt.Sprint(status, " ", code))
}

// beside returns the status of a short request while another is being answered.
func beside(l *lab) string {
	go func() {
		if resp, err := l.send(l.t.Context(), "/v1/completions", short); err == nil {
			_ = resp.Body.Close()
		}
	}()
	l.eventually(func() error {
		if n := l.engines[0].Requests.Load(); n != 1 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	return l.status()
}

// served returns the worker of a request of the session.
func (l *lab) served(session string) string {
	_, _, h := l.post("/v1/completions", short, "X-Session-Id", session)
	return h.Get(headerWorker)
}

// stays tells whether the requests of a session go to one worker.
func stays(l *lab) string {
	first := l.served("a")
	return fmt.Sprint(l.served("a") == first)
}

// busy books so much that the only worker is busy.
func (l *lab) busy() {
	l.t.Helper()
	if _, err := l.model().Router.SetThresholds(route.Thresholds{PrefillTokens: new(int)}); err != nil {
		l.t.Fatal(err)
	}
	if err := l.model().Router.Reserve(route.Reservation{RequestID: "other", Rank: shard.RankID{}, PromptTokens: 9, NewTokens: 9}); err != nil {
		l.t.Fatal(err)
	}
}

// roundRobin makes two engines take turns.
func roundRobin(s *setup) {
	s.engines, s.fleet = 2, func(c *fleet.Config) { c.Route.Mode = "round-robin" }
}

// server makes the only worker's engine answer by f.
func server(t *testing.T, s *setup, f http.HandlerFunc) {
	h := httptest.NewServer(f)
	t.Cleanup(h.Close)
	s.registry = func(_ int, w *registry.Worker) { w.Endpoints.HTTP = h.URL }
}

// Each setting changes what it is a setting of. What the tests of forms, faults,
// headers, busy workers and routes try is not tried again here.
func TestEachSetting(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(c *Config)
		setup       func(t *testing.T, s *setup)
		observe     func(l *lab) string
		before, now string // before "" is not tried
	}{
		{"http-max-inflight", func(c *Config) { c.MaxInflight = 1 }, func(_ *testing.T, s *setup) { s.engine = stall(0); s.engines = 1 },
			beside, "", "529 too_many_in_flight"},
		{"inflight-share", func(c *Config) { c.MaxInflight, c.InflightShare = 2, 0.5 }, func(_ *testing.T, s *setup) { s.engine = stall(0); s.engines = 1 },
			beside, "", "529 client_share"},
		{"body-memory", func(c *Config) { c.BodyMemory = int64(len(short)) - 1 }, nil, (*lab).status, "200", "529 no_room"},
		{"body-files", func(c *Config) { c.BodyMemory, c.BodyFiles = 1, 1<<20 }, nil, (*lab).status, "200", "200"},
		{"body-share", func(c *Config) { c.BodyMemory, c.BodyShare = 2*int64(len(short)), 0.4 }, nil, (*lab).status, "200", "529 client_share"},
		{"busy-status", func(c *Config) { c.BusyStatus = 503 }, nil, func(l *lab) string { l.busy(); return l.status() }, "529 overloaded", "503 overloaded"},
		{"queue-timeout", func(c *Config) { c.Queue, c.QueueTimeout = 1, time.Millisecond }, nil,
			func(l *lab) string { l.busy(); return l.status() }, "", "529 overloaded"},
		{"retries", func(c *Config) { c.Retries = 0 }, dropOnce, (*lab).status, "200", "502 engine_unreachable"},
		{"retry-share", func(c *Config) { c.RetryShare = 0 }, dropOnce, (*lab).status, "200", "502 engine_unreachable"},
		{"retry-burst", func(c *Config) { c.RetryBurst = 0 }, dropOnce, (*lab).status, "200", "502 engine_unreachable"},
		{"retry-500", func(c *Config) { c.Retry500 = false }, func(_ *testing.T, s *setup) {
			var asked atomic.Bool
			s.engines, s.engine = 2, func(_ int, c *mockapi.Config) {
				c.Fault = func(*http.Request) (f mockapi.Fault) {
					if !asked.Swap(true) {
						f.Status = 500
					}
					return f
				}
			}
		}, (*lab).status, "200", "500"},
		{"first-byte-timeout", func(c *Config) { c.FirstByte = time.Millisecond }, func(_ *testing.T, s *setup) { s.engine = stall(0) },
			(*lab).status, "", "504 engine_timeout"},
		{"engine-idle-timeout", func(c *Config) { c.EngineIdle = 20 * time.Millisecond }, func(_ *testing.T, s *setup) { s.engine = stall(1) },
			func(l *lab) string {
				resp, err := l.send(l.t.Context(), "/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":3,"stream":true}`)
				if err != nil {
					return err.Error()
				}
				defer resp.Body.Close() //nolint:errcheck // only read
				data, err := io.ReadAll(resp.Body)
				return fmt.Sprint(strings.Count(string(data), "data:"), " ", err)
			}, "", "1 unexpected EOF"},
		{"http-write-timeout", func(c *Config) { c.WriteTimeout = 50 * time.Millisecond }, func(t *testing.T, s *setup) {
			server(t, s, func(w http.ResponseWriter, _ *http.Request) {
				for range 1 << 10 { // more than sockets hold
					if _, err := w.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			})
		}, func(l *lab) string {
			resp, err := l.send(l.t.Context(), "/v1/completions", short)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close() //nolint:errcheck // never read
			l.idle()
			return l.metric(`kvatlas_router_requests_total{outcome="client_gone"}`)
		}, "", "1"},
		{"session-header", func(c *Config) { c.SessionHeader = "" }, func(_ *testing.T, s *setup) { roundRobin(s) },
			stays, "true", "false"},
		{"session-lifetime", func(c *Config) { c.SessionLife = time.Nanosecond }, func(_ *testing.T, s *setup) { roundRobin(s) },
			stays, "true", "false"},
		{"max-sessions", func(c *Config) { c.MaxSessions = 1 }, func(_ *testing.T, s *setup) {
			s.engines = 3
			s.fleet = func(c *fleet.Config) { c.Route.Mode = "round-robin" }
		},
			func(l *lab) string { a := l.served("a"); l.served("b"); return fmt.Sprint(a == l.served("a")) }, "true", "false"},
		{"forward-client", func(c *Config) { c.ForwardClient = false }, nil,
			func(l *lab) string { l.status(); return (<-l.engines[0].seen).Get("X-Forwarded-For") }, "127.0.0.1", ""},
		{"tokens", func(c *Config) { c.Tokens = TokensNone }, nil, twice, "1 asked, 1 cached, 0 failed", "0 asked, 0 cached, 0 failed"},
		{"token-cache", func(c *Config) { c.TokenCache = 0 }, nil, twice, "1 asked, 1 cached, 0 failed", "2 asked, 0 cached, 0 failed"},
		{"tokenize-timeout", func(c *Config) { c.TokenizeTimeout = time.Millisecond }, func(t *testing.T, s *setup) {
			server(t, s, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					_, _ = io.Copy(io.Discard, r.Body)
					<-r.Context().Done()
				}
			})
		}, twice, "", "0 asked, 0 cached, 2 failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, changed := range []bool{false, true} {
				want := c.before
				if changed {
					want = c.now
				} else if want == "" && c.name != "forward-client" {
					continue
				}
				var s setup
				if c.setup != nil {
					c.setup(t, &s)
				}
				if changed {
					s.proxy = c.change
				}
				if got := c.observe(newLab(t, s)); got != want {
					t.Errorf("changed %v: %q, want %q", changed, got, want)
				}
			}
		})
	}
}

// dropOnce makes the first engine that is asked hang up.
func dropOnce(_ *testing.T, s *setup) {
	var asked atomic.Bool
	s.engines = 2
	s.engine = func(_ int, c *mockapi.Config) {
		c.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{Drop: !asked.Swap(true)} }
	}
}

// twice says the same text twice and returns where its tokens came from.
func twice(l *lab) string {
	for range 2 {
		l.post("/v1/completions", `{"model":"org/model","prompt":"a text of some length","max_tokens":1}`)
	}
	from := func(source string) string { return l.metric(`kvatlas_router_tokenize_total{from="` + source + `"}`) }
	return from("engine") + " asked, " + from("cache") + " cached, " + from("failed") + " failed"
}

// The first of a tenant's to be served is the first to come, or the one with the least
// to compute among those that came at about the same time, or whose client says so.
func TestQueueOrder(t *testing.T) {
	for _, c := range []struct {
		order, priority string
		want            []int
	}{
		{OrderFCFS, PriorityLower, []int{300, 5000, 10, 200000}}, {OrderFCFS, PriorityHigher, []int{5000, 10, 200000, 300}},
		{OrderFCFS, PriorityIgnore, []int{5000, 10, 300, 200000}}, {OrderShortest, PriorityIgnore, []int{10, 300, 5000, 200000}},
	} {
		l := newLab(t, setup{proxy: func(x *Config) { x.QueueOrder, x.QueuePriority, x.Queue = c.order, c.priority, 8 }})
		q := &l.proxy.queue
		arrival := time.Now()
		served := make(chan int)
		for i, tokens := range []int{5000, 10, 300, 200000} {
			one := &call{m: l.model(), arrival: arrival.Add(time.Duration(i) * time.Millisecond)}
			if tokens == 300 {
				one.priority = -1
			}
			w := q.enter(one, tokens)
			go func() {
				if q.wait(t.Context(), w, time.Hour) == nil {
					served <- tokens
				}
			}()
		}
		for _, tokens := range c.want {
			q.wake(l.model())
			if got := <-served; got != tokens {
				t.Errorf("%s, %s: the request of %d tokens is served, want %d", c.order, c.priority, got, tokens)
			}
		}
	}
}

// Requests of one tenant go by the priorities of their objectives, too: not all by that of the last.
func TestQueueGoesByObjectives(t *testing.T) {
	l := newLab(t, setup{proxy: func(x *Config) { x.Queue = 8 }})
	q := &l.proxy.queue
	arrival := time.Now()
	served := make(chan int)
	for i, priority := range []int{0, 5, math.MaxInt32, 1} {
		w := q.enter(&call{m: l.model(), passage: &Passage{Priority: priority}, arrival: arrival.Add(time.Duration(i) * time.Millisecond)}, 10)
		go func() {
			if q.wait(t.Context(), w, time.Hour) == nil {
				served <- priority
			}
		}()
	}
	for _, priority := range []int{math.MaxInt32, 5, 1, 0} {
		q.wake(l.model())
		if got := <-served; got != priority {
			t.Errorf("the request of priority %d is served, want %d", got, priority)
		}
	}
}

// Who enters a queue takes nobody's turn: what its prompt costs is looked up, and no worker chosen.
func TestToEnterAQueueIsNoChoice(t *testing.T) {
	l := newLab(t, setup{engines: 2, proxy: func(x *Config) { x.QueueOrder, x.Queue = OrderShortest, 8 },
		fleet: func(c *fleet.Config) { c.Route.Mode = "round-robin" }})
	q := &l.proxy.queue
	first := q.enter(&call{m: l.model(), arrival: time.Now()}, 1)
	done := make(chan int, 1)
	go func() { // ends with its answer
		status, _, _ := l.post("/v1/completions", `{"model":"org/model","prompt":"a text","max_tokens":1}`)
		done <- status
	}()
	if err := q.wait(t.Context(), first, time.Hour); err != nil { // it is the first, and woken by who comes
		t.Fatal(err)
	}
	l.eventually(func() error {
		if n := q.waiting(l.model()); n != 1 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	if n := l.model().Router.Stats().Chosen; n != 0 {
		t.Errorf("%d workers were chosen for who has entered", n)
	}
	q.leave(first)
	if status := <-done; status != http.StatusOK {
		t.Error(status)
	}
}

// Another router's requests make room, too.
func TestOtherRoutersMakeRoom(t *testing.T) {
	l := newLab(t, setup{proxy: func(x *Config) { x.Queue = 8 }})
	q := &l.proxy.queue
	w := q.enter(&call{m: l.model(), arrival: time.Now()}, 1)
	l.proxy.Relieved(nil)
	if len(w.turn) != 0 {
		t.Error("who waits for a model tries when there is room for another one")
	}
	l.proxy.Relieved(l.model().Router)
	if len(w.turn) != 1 {
		t.Fatal("who waits is not woken")
	}
	q.leave(w)
}

// Nobody sees the end of a prompt whose answer comes as a whole: those that wait are woken when it
// is expected.
func TestAWholeAnswersPromptMakesRoom(t *testing.T) {
	release := make(chan struct{})
	l := newLab(t, setup{proxy: func(x *Config) { x.Queue = 8 }})
	held := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPost && r.URL.Path != "/tokenize" {
			<-release
		}
	}))
	t.Cleanup(held.Close)
	if err := l.fleet.SetWorker(registry.Worker{ID: 0, Model: modelName, BlockSize: blockSize, Transport: registry.JetStream,
		Endpoints: registry.Endpoints{HTTP: held.URL}}, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with its answer
		defer close(done)
		l.post("/v1/completions", `{"model":"org/model","max_tokens":1,"prompt":[`+strings.Repeat("1,", 100_000)+`1]}`) // some seconds
	}()
	l.eventually(func() error {
		if l.model().Router.Stats().Live == 0 {
			return errors.New("it is not there yet")
		}
		return nil
	})
	q := &l.proxy.queue
	w := q.enter(&call{m: l.model(), arrival: time.Now()}, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := q.wait(ctx, w, time.Hour); err != nil {
		t.Errorf("who waits is not woken: %v", err)
	} else {
		q.leave(w)
	}
	close(release)
	<-done
}
