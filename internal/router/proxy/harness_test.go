package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/httpconf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/downstream"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/shard"
)

const (
	patience  = 30 * time.Second
	modelName = "org/model"
	blockSize = 4
)

var space = event.Space{Model: modelName, BlockSize: blockSize}

// engine is a mock engine behind a real listener.
type engine struct {
	*mockapi.Server
	http *httptest.Server
	seen chan http.Header // of the requests to generate
	sick atomic.Bool      // fails health checks
}

// lab is a router in front of mock engines, whose events reach its index.
type lab struct {
	t       *testing.T
	set     *shard.Set
	fleet   *fleet.Fleet
	proxy   *Proxy
	metrics *obs.Metrics
	front   *front
	serving atomic.Int64 // requests that the proxy has not done with
	engines []*engine
}

func testConfig() Config {
	return Config{
		Indexed: true, Tokens: TokensEngine, TokenCache: 1 << 20, TokenizeTimeout: patience, MaxPrompt: 1 << 20,
		TokenizeHedge: 50 * time.Millisecond, TokenizeHedgeLeast: 2 * time.Millisecond, TokenizeBreaker: breaker.Default(),
		Limits:     httpconf.Limits{MaxBody: 1 << 20, MaxInflight: 4096, WriteTimeout: patience},
		BodyMemory: 1 << 30, Selection: true, PassThrough: true,
		Routes: append(Kinds(), "/echo"), Administration: AdminOperators, AdministrationTimeout: patience,
		Retries: 2, RetryShare: 0.1, RetryBurst: 10, RetryWait: time.Millisecond, Retry500: true, DialTimeout: 5 * time.Second, EngineIdle: patience, IdleConns: 1024,
		MetricLabels: 100, QueueOrder: OrderFCFS, QueuePriority: PriorityLower, QueueAge: time.Minute, QueueTimeout: patience, BusyStatus: 529,
		Health: new(edge.Health), ForwardClient: true, SessionHeader: "X-Session-Id", SessionLife: time.Minute, MaxSessions: 100, MaxKept: 100, MaxAsking: 3, Responses: 1 << 20, ResponseBytes: 1 << 16, ResponseLife: time.Minute, AskTimeout: patience,
		Trust: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, WorkerHeader: true,
	}
}

// front is a server as kvrouter has it.
type front struct {
	*downstream.Server
	URL string
}

func newFront(t testing.TB, h http.Handler, write time.Duration) *front {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := downstream.New(downstream.Config{
		Handler: h, ReadTimeout: patience, WriteTimeout: write, IdleTimeout: patience, MaxHeader: 64 << 10,
		Refused: func(string) {}, Log: slog.New(slog.DiscardHandler),
	})
	go s.Serve(ln) //nolint:errcheck // ends with Close
	return &front{s, "http://" + ln.Addr().String()}
}

type setup struct {
	engines  int
	proxy    func(c *Config)
	fleet    func(c *fleet.Config)
	engine   func(i int, c *mockapi.Config)
	registry func(i int, w *registry.Worker)
}

func newLab(t *testing.T, o setup) *lab {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	l := &lab{t: t, set: shard.New(shard.Config{}), metrics: obs.NewMetrics()}
	sp, err := l.set.Open(space)
	if err != nil {
		t.Fatal(err)
	}
	fc := fleet.Config{ID: 1, Route: route.DefaultSettings(), Index: fleet.Events, Set: l.set, Log: log,
		Loras: map[string]string{"lora": modelName}, Decisions: account.New(account.Config{Keep: 1000, Memory: 1 << 24, Rows: 1 << 20, Run: "t"})}
	if o.fleet != nil {
		o.fleet(&fc)
	}
	l.fleet = fleet.New(fc)
	for i := range max(o.engines, 1) {
		c := mockapi.Config{Model: modelName, Loras: []string{"lora"}, Engine: mock.Config{BlockSize: blockSize}, Sink: func(ev *event.Event) {
			if fc.Index == fleet.Approximate {
				return
			}
			b := &event.Batch{Space: space, Worker: uint64(i), Events: []event.Event{*ev}}
			if _, err := sp.ApplyWait(context.Background(), b); err != nil {
				t.Error(err)
			}
		}}
		if o.engine != nil {
			o.engine(i, &c)
		}
		server, err := mockapi.New(c)
		if err != nil {
			t.Fatal(err)
		}
		e := &engine{Server: server, seen: make(chan http.Header, 1<<14)}
		e.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Path != "/tokenize" {
				e.seen <- r.Header.Clone()
			}
			if r.URL.Path == "/health" && e.sick.Load() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			if r.URL.Path == "/echo" {
				_, _ = fmt.Fprintf(w, "%s %s", r.Method, r.URL.RawQuery)
				return
			}
			w.Header().Set("X-Engine", fmt.Sprint(i))
			e.ServeHTTP(w, r)
		}))
		l.engines = append(l.engines, e)
		w := registry.Worker{ID: uint64(i), Model: modelName, BlockSize: blockSize, Transport: registry.JetStream,
			Endpoints: registry.Endpoints{HTTP: e.http.URL}}
		if o.registry != nil {
			o.registry(i, &w)
		}
		if err := l.fleet.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
	}
	pc := testConfig()
	pc.Fleet, pc.Metrics, pc.Log, pc.Decisions = l.fleet, l.metrics, log, fc.Decisions
	if o.proxy != nil {
		o.proxy(&pc)
	}
	if l.proxy, err = New(pc); err != nil {
		t.Fatal(err)
	}
	l.front = newFront(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.serving.Add(1)
		defer l.serving.Add(-1)
		l.proxy.ServeHTTP(w, r)
	}), pc.WriteTimeout)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // of which some may not have been used
		_ = l.front.Shutdown(context.Background())
		l.proxy.Close()
		for _, e := range l.engines {
			e.http.CloseClientConnections()
			e.Close()
			e.http.Close()
		}
		l.set.Close()
	})
	return l
}

func (l *lab) model() *fleet.Model { return l.fleet.Models()[0] }

// post sends a request and returns the whole answer.
func (l *lab) post(path, body string, header ...string) (int, string, http.Header) {
	l.t.Helper()
	resp, err := l.send(l.t.Context(), path, body, header...)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatalf("%s: %v after %q", path, err, data)
	}
	return resp.StatusCode, string(data), resp.Header
}

func (l *lab) send(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.front.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// prove has the workers give a whole answer each.
func (l *lab) prove(workers ...uint64) {
	l.t.Helper()
	router := l.model().Router
	for _, w := range workers {
		id := fmt.Sprint("proof ", w)
		if _, err := router.BestWorker(l.t.Context(), route.Prompt{}, route.Options{RequestID: id, Worker: &w, Watched: true}); err != nil {
			l.t.Fatal(err)
		}
		router.Succeeded(id, route.Whole) // its beginning
		router.Succeeded(id, route.Whole)
		router.Free(id)
	}
}

// idle waits until nothing is booked or running anywhere.
func (l *lab) idle() {
	l.t.Helper()
	l.eventually(func() error {
		if n := l.model().Router.Stats().Live; n != 0 {
			return fmt.Errorf("%d bookings are left", n)
		}
		for _, x := range l.model().Router.Loads() {
			if x.PrefillTokens != 0 || x.DecodeBlocks != 0 || x.Requests != 0 {
				return fmt.Errorf("load is left: %+v", x)
			}
		}
		for i, e := range l.engines {
			if n := e.Live.Load(); n != 0 {
				return fmt.Errorf("engine %d still answers %d requests", i, n)
			}
		}
		if n := l.serving.Load(); n != 0 { // bookings end before what went is counted
			return fmt.Errorf("the proxy still serves %d requests", n)
		}
		return nil
	})
}

func (l *lab) eventually(f func() error) {
	l.t.Helper()
	waittest.Until(l.t, f)
}

// metric returns the value of a metric's line.
func (l *lab) metric(name string) string {
	var b bytes.Buffer
	l.metrics.WritePrometheus(&b)
	for line := range strings.Lines(b.String()) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// streamed returns the text of a streamed answer, and whether it was whole.
func streamed(data string) (text string, done bool) {
	for ev := range strings.SplitSeq(data, "\n\n") {
		payload, ok := strings.CutPrefix(ev, "data: ")
		if !ok {
			continue
		}
		if payload == "[DONE]" {
			return text, true
		}
		var chunk struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(payload), &chunk) == nil && len(chunk.Choices) > 0 {
			text += chunk.Choices[0].Text + chunk.Choices[0].Delta.Content
		}
	}
	return text, false
}
