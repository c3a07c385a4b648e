package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

const long = "the quick brown fox jumps over the lazy dog and runs away from all of them"

// Every form of prompt is answered as the engine answers, and a prompt that
// comes again goes to where it is cached; what the engine reports is as
// predicted.
func TestForms(t *testing.T) {
	chat := "user: " + long + "\n"
	tokens := strings.ReplaceAll(strings.Trim(fmt.Sprint(mockapi.Tokens(long)), "[]"), " ", ",")
	for _, c := range []struct{ name, path, body, prompt string }{
		{"text", "/v1/completions", `{"model":"org/model","max_tokens":9,"prompt":"` + long + `"`, long},
		{"tokens", "/v1/completions", `{"model":"org/model","max_tokens":9,"prompt":[` + tokens + `]`, long},
		{"chat", "/v1/chat/completions", `{"model":"org/model","max_tokens":9,"messages":[{"role":"user","content":"` + long + `"}]`, chat},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, setup{engines: 3})
			want := mockapi.Text(mockapi.Tokens(c.prompt), 9)
			var first string
			for i, tail := range []string{`}`, `}`, `,"stream":true}`, `,"stream":true,"stream_options":{"include_usage":true}}`} {
				status, data, header := l.post(c.path, c.body+tail)
				checkPost(t, c.path, c.body+tail, status, data, header)
				text, done := streamed(data)
				if i < 2 {
					text, done = data, strings.Contains(data, want)
				}
				if status != 200 || !done || !strings.Contains(text, want) {
					t.Fatalf("request %d: %d %s\nwant %q", i, status, data, want)
				}
				if i == 0 {
					first = header.Get(headerWorker)
				} else if got := header.Get(headerWorker); got != first {
					t.Errorf("request %d went to worker %s, the prompt is cached on %s", i, got, first)
				}
			}
			l.idle()
			labels := `{model="org/model",block_size="4",group="",worker="` + first + `",dp_rank="0"}`
			l.eventually(func() error {
				n, over := l.metric("kvatlas_router_predictions_total"+labels), l.metric("kvatlas_router_predictions_wrong"+labels)
				if n != "3" || over != "0" {
					return fmt.Errorf("%s predictions compared, wrong: %s", n, over)
				}
				return nil
			})
			predicted := l.metric("kvatlas_router_predicted_cached_tokens_total" + labels)
			if reported := l.metric("kvatlas_router_reported_cached_tokens_total" + labels); predicted != reported || predicted == "0" {
				t.Errorf("%s tokens predicted, %s reported", predicted, reported)
			}
		})
	}
}

// The first token reaches the client before the engine makes the second, and
// ends the booking's prefill.
func TestStreamsAtOnce(t *testing.T) {
	steps := make(chan struct{})
	l := newLab(t, setup{engine: func(_ int, c *mockapi.Config) {
		c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
	}})
	body := `{"model":"org/model","prompt":[1,2,3,4,5],"max_tokens":3,"stream":true}`
	got := make(chan *http.Response, 1)
	go func() {
		resp, err := l.send(t.Context(), "/v1/completions", body)
		if err != nil {
			t.Error(err)
		}
		got <- resp
	}()
	l.eventually(func() error {
		if x := l.model().Router.Loads()[0]; x.PrefillTokens != 5 || x.Requests != 1 || x.OutputLeft != 3 {
			return fmt.Errorf("not booked: %+v", x)
		}
		return nil
	})
	steps <- struct{}{}
	resp := <-got
	if resp == nil {
		t.FailNow()
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "data: {") {
			t.Fatalf("token %d: %q %v", i, line, err)
		}
		if _, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if x := l.model().Router.Loads()[0]; i < 2 && (x.PrefillTokens != 0 || x.Requests != 1) {
			t.Errorf("after token %d: %+v", i, x)
		}
		if i < 2 {
			steps <- struct{}{}
		}
	}
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("%q %v", rest, err)
	}
	l.idle()
}

// A client that goes away ends its booking and its request at the engine, in a
// stream and before the first byte, also on a connection that has had answers.
func TestDisconnect(t *testing.T) {
	for _, tokens := range []int{0, 1} {
		const before = 2
		steps := make(chan struct{}, before)
		l := newLab(t, setup{engine: func(_ int, c *mockapi.Config) {
			c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
		}})
		t.Cleanup(func() { close(steps) }) // before the lab's: the engine goes on
		for range before {
			steps <- struct{}{}
			if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5],"max_tokens":1}`); status != 200 {
				t.Fatal(status, data)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		if tokens > 0 {
			steps <- struct{}{}
		}
		go func() {
			defer close(ended)
			resp, err := l.send(ctx, "/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5],"max_tokens":3,"stream":true}`)
			if err == nil {
				_, _ = bufio.NewReader(resp.Body).ReadString('\n')
				cancel()
				_ = resp.Body.Close()
			}
		}()
		l.eventually(func() error {
			if n := l.engines[0].Requests.Load(); n != before+1 {
				return fmt.Errorf("%d requests at the engine", n)
			}
			return nil
		})
		if tokens == 0 {
			cancel()
		}
		<-ended
		l.idle()
		if n := l.metric(`kvatlas_router_requests_total{outcome="client_gone"}`); n != "1" {
			t.Errorf("%d tokens: client_gone %q", tokens, n)
		}
		cancel()
	}
}

// An engine that fails before the first byte is tried no more for the request;
// one that breaks off is not covered up.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name         string
		fault        mockapi.Fault
		status       int
		why, retries string
	}{
		{"drop", mockapi.Fault{Drop: true}, 200, "unreachable", "1"},
		{"503", mockapi.Fault{Status: 503}, 200, "status_5xx", "1"},
		{"500", mockapi.Fault{Status: 500}, 200, "status_500", "1"},
		{"429", mockapi.Fault{Status: 429}, 200, "full", "1"},
		{"501", mockapi.Fault{Status: 501}, 200, "refused", "1"},
		{"400", mockapi.Fault{Status: 400}, 400, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Bool
			l := newLab(t, setup{engines: 2, engine: func(_ int, m *mockapi.Config) {
				m.Fault = func(*http.Request) (f mockapi.Fault) {
					if !asked.Swap(true) {
						f = c.fault
					}
					return f
				}
			}})
			// As tokens: no connection has been used to ask for them, and may be stale.
			status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":3}`)
			if status != c.status {
				t.Errorf("%d %s", status, data)
			}
			if n := l.metric(`kvatlas_router_retries_total{reason="` + c.why + `"}`); n != c.retries {
				t.Errorf("%s retries, want %s", n, c.retries)
			}
			l.idle()
		})
	}
	t.Run("break off", func(t *testing.T) {
		l := newLab(t, setup{engines: 2, engine: func(_ int, m *mockapi.Config) {
			m.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{BreakAfter: 2} }
		}})
		l.prove(0, 1)
		resp, err := l.send(t.Context(), "/v1/completions", `{"model":"org/model","prompt":"`+long+`","max_tokens":9,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		data, err := io.ReadAll(resp.Body)
		if text, done := streamed(string(data)); err == nil || done || text != mockapi.Text(mockapi.Tokens(long), 9)[:len(text)] || text == "" {
			t.Errorf("%q, %v: want the beginning of the answer and an error", data, err)
		}
		l.idle()
		if n := l.engines[0].Requests.Load() + l.engines[1].Requests.Load(); n != 1 {
			t.Errorf("%d requests, want no retry after the first byte", n)
		}
	})
}

// When nobody answers, retries end at their number and at their share.
func TestRetryLimits(t *testing.T) {
	l := newLab(t, setup{engines: 5, fleet: func(c *fleet.Config) { c.Route.LeftOutShare = 0 }, engine: func(_ int, m *mockapi.Config) {
		m.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{Status: 503} }
	}})
	const requests, burst = 200, 10
	for range requests {
		if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3]}`); status != 503 {
			t.Fatalf("%d %s", status, data)
		}
	}
	tried := int64(0)
	for _, e := range l.engines {
		tried += e.Requests.Load()
	}
	if retries := tried - requests; retries != burst+requests/10 && retries != burst+requests/10-1 {
		t.Errorf("%d retries of %d requests, want %d at once and a tenth", retries, requests, burst)
	}
	l.idle()
}

// An engine that cannot be reached gets no requests after some failures, and
// gets them again when it answers its health check.
func TestHealth(t *testing.T) {
	l := newLab(t, setup{engines: 2})
	url := l.engines[0].http.URL
	w := registry.Worker{ID: 0, Model: modelName, BlockSize: blockSize, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:1"}}
	if err := l.fleet.SetWorker(w, false); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":1}`); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	left := func() string { return l.model().Router.Loads()[0].Left.String() }
	client := &http.Client{}
	for range 3 {
		l.fleet.Probe(t.Context(), client, "/health", time.Second)
	}
	if left() != route.Dead.String() || l.model().Engine(0).Healthy() {
		t.Errorf("the dead engine is %s", left())
	}
	if w.Endpoints.HTTP = url; l.fleet.SetWorker(w, false) != nil || left() != route.Eligible.String() {
		t.Errorf("a new address begins anew: %s", left())
	}
	e := l.model().Engine(0)
	l.engines[0].sick.Store(true)
	for range 3 {
		l.fleet.Probe(t.Context(), client, "/health", patience)
	}
	if l.engines[0].sick.Store(false); e.Healthy() || l.fleet.Probe(t.Context(), client, "/health", patience) != 1 || !e.Healthy() {
		t.Error("the engine answers and is not taken back")
	}
	if err := l.fleet.SetWorker(w, true); err != nil || left() != route.Draining.String() {
		t.Errorf("drained by its operator: %s %v", left(), err)
	}
	if l.fleet.Probe(t.Context(), client, "/health", patience) != 0 || left() != route.Draining.String() {
		t.Error("a health check ends what an operator began")
	}
}

// All busy is an answer of its own; with a queue requests wait.
func TestBusy(t *testing.T) {
	zero := 0
	busy := func(c *fleet.Config) { c.Route.Busy.PrefillTokens = &zero }
	for _, queue := range []int{0, 8} {
		steps := make(chan struct{}, 100)
		l := newLab(t, setup{fleet: busy, proxy: func(c *Config) { c.Queue = queue }, engine: func(_ int, c *mockapi.Config) {
			c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
		}})
		// A stream: of a whole answer the prompt counts as computed when it should be.
		const body = `{"model":"org/model","prompt":[1,2,3,4,5],"max_tokens":1,"stream":true}`
		answers := make(chan int, 2)
		ask := func() {
			status, _, _ := l.post("/v1/completions", body)
			answers <- status
		}
		go ask()
		l.eventually(func() error {
			if l.model().Router.Stats().Live == 0 {
				return fmt.Errorf("not booked")
			}
			return nil
		})
		if queue == 0 {
			status, data, header := l.post("/v1/completions", body)
			if status != 529 || !strings.Contains(data, `"code":"overloaded"`) || header.Get("Retry-After") == "" {
				t.Errorf("%d %s", status, data)
			}
		} else {
			go ask()
			l.eventually(func() error {
				if !l.proxy.queue.busy(l.model()) {
					return fmt.Errorf("nobody waits")
				}
				return nil
			})
		}
		close(steps)
		for range 1 + queue/8 {
			if status := <-answers; status != 200 {
				t.Errorf("queue %d: %d", queue, status)
			}
		}
		l.idle()
	}
}

// With a queue a request waits behind a long prompt that is computed, though its worker would
// take it, and goes on without its first token once its time is up.
func TestLate(t *testing.T) {
	for _, patience := range []time.Duration{time.Minute, 100 * time.Millisecond} {
		steps := make(chan struct{}, 100)
		l := newLab(t, setup{proxy: func(c *Config) { c.Queue, c.QueueOrder, c.QueueTimeout = 8, OrderShortest, patience }, engine: func(_ int, c *mockapi.Config) {
			c.Engine.Blocks = 1 << 18
			c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
		}})
		end := sync.OnceFunc(func() { close(steps) })
		t.Cleanup(end)
		long := `{"model":"org/model","prompt":[1` + strings.Repeat(",2", 400_000) + `],"max_tokens":1,"stream":true}`
		answers := make(chan int, 3)
		ask := func(body string) {
			status, _, _ := l.post("/v1/completions", body)
			answers <- status
		}
		live := func(n int) {
			l.eventually(func() error {
				if live := l.model().Router.Stats().Live; live != n {
					return fmt.Errorf("%d are booked, want %d", live, n)
				}
				return nil
			})
		}
		go ask(long)
		live(1)
		for range 2 { // the second one comes while the first waits
			go ask(`{"model":"org/model","prompt":[1,2,3,4,5],"max_tokens":1,"stream":true}`)
		}
		if patience == time.Minute {
			l.eventually(func() error {
				if n := l.proxy.queue.waiting(l.model()); n != 2 {
					return fmt.Errorf("%d wait, want 2", n)
				}
				return nil
			})
			live(1)
		} else {
			live(3)
		}
		end()
		for range 3 {
			if status := <-answers; status != 200 {
				t.Errorf("patience %v: %d", patience, status)
			}
		}
		l.idle()
	}
}

// Requests that may use a busy worker only hold nobody up who may use another one, whether that
// worker takes nothing or would serve them better later.
func TestWhoMayUseSomeWorkersHoldsNobodyUp(t *testing.T) {
	for _, threshold := range []bool{true, false} {
		for _, n := range []int{1, 5} {
			none := 0
			steps := make(chan struct{})
			l := newLab(t, setup{engines: 2, fleet: func(c *fleet.Config) {
				if threshold {
					c.Route.Busy.PrefillTokens = &none
				}
			}, proxy: func(c *Config) { c.Queue, c.QueueOrder = 64, OrderShortest }, engine: func(i int, c *mockapi.Config) {
				c.Engine.Blocks = 1 << 18
				if i == 0 {
					c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
				}
			}})
			end := sync.OnceFunc(func() { close(steps) })
			t.Cleanup(end)
			answers := make(chan string, n+2)
			ask := func(who, prompt string, headers ...string) {
				l.post("/v1/completions", `{"model":"org/model","prompt":[1`+prompt+`],"max_tokens":1,"stream":true}`, headers...)
				answers <- who
			}
			go ask("long", strings.Repeat(",2", 400_000), headerWorker, "0")
			l.eventually(func() error {
				if live := l.model().Router.Stats().Live; live != 1 {
					return fmt.Errorf("%d are booked, want 1", live)
				}
				return nil
			})
			for range n {
				go ask("narrow", ",2,3,4,5", headerAllowed, "0")
			}
			l.eventually(func() error {
				if waiting := l.proxy.queue.waiting(l.model()); waiting != n {
					return fmt.Errorf("%d wait, want %d", waiting, n)
				}
				return nil
			})
			go ask("any", ",2,3,4,5")
			if who := <-answers; who != "any" {
				t.Errorf("%s has its answer first", who)
			}
			end()
			for range n + 1 {
				<-answers
			}
			l.idle()
		}
	}
}

// Trusted callers choose; nobody's choice reaches an engine; trace headers do.
func TestHeaders(t *testing.T) {
	l := newLab(t, setup{engines: 3, engine: func(_ int, c *mockapi.Config) { c.Ranks = 2 }, registry: func(_ int, w *registry.Worker) { w.Ranks = []uint32{0, 1} }})
	const body = `{"model":"org/model","prompt":[1,2,3],"max_tokens":1}`
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for i := range 6 {
		status, data, header := l.post("/v1/completions", body, headerWorker, fmt.Sprint(i%3), headerRank, fmt.Sprint(i/3), "traceparent", parent,
			headerEngineRank, "7", "Authorization", "Bearer x")
		if status != 200 || header.Get(headerWorker) != fmt.Sprint(i%3) || header.Get(headerRank) != fmt.Sprint(i/3) {
			t.Fatalf("%d %s %v", status, data, header)
		}
		seen := <-l.engines[i%3].seen
		for name := range seen {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("the engine sees %s", name)
			}
		}
		if seen.Get("Traceparent") != parent || seen.Get(headerEngineRank) != fmt.Sprint(i/3) || seen.Get("Authorization") != "Bearer x" {
			t.Errorf("the engine sees %v", seen)
		}
	}
	for path, body := range map[string]string{ // the same header for each API: sglang#38729
		"/v1/chat/completions": `"messages":[{"role":"user","content":"x"}]`, "/v1/messages": `"max_tokens":1,"messages":[{"role":"user","content":"x"}]`,
		"/v1/responses": `"input":"x"`,
	} {
		if status, data, _ := l.post(path, `{"model":"org/model",`+body+`}`, headerWorker, "1", headerRank, "1"); status != 200 {
			t.Fatalf("%s: %d %s", path, status, data)
		}
		if rank := (<-l.engines[1].seen).Get(headerEngineRank); rank != "1" {
			t.Errorf("%s: the engine is told rank %q", path, rank)
		}
	}
	if status, _, _ := l.post("/v1/completions", body, headerWorker, "0", "X-Forwarded-For", "10.0.0.1, 10.0.0.2"); status == 200 {
		if got := (<-l.engines[0].seen).Get("X-Forwarded-For"); got != "10.0.0.1, 10.0.0.2, 127.0.0.1" {
			t.Errorf("the client is %q", got)
		}
	}
	for _, h := range []string{headerWorker, headerRank, headerWeight, headerTemperature, headerAllowed, headerExcluded, headerOutput, headerFirst, headerToken} {
		if status, data, _ := l.post("/v1/completions", body, h, "x,y"); status != 400 || !strings.Contains(data, h) {
			t.Errorf("%s: %d %s", h, status, data)
		}
	}
	if o, err := options(http.Header{headerFirst: {"500ms"}, headerToken: {"0"}}); err != nil || o.FirstToken == nil || *o.FirstToken != 500*time.Millisecond || o.Token == nil || *o.Token != 0 {
		t.Errorf("targets: %v %v %v", o.FirstToken, o.Token, err)
	}
	if o, err := options(http.Header{headerFirst: {"-1ms"}}); err == nil {
		t.Errorf("a target of %v is taken", *o.FirstToken)
	}
	_, _, header := l.post("/v1/completions", body, headerAllowed, "1, 2", headerExcluded, "2")
	if header.Get(headerWorker) != "1" {
		t.Errorf("went to worker %s", header.Get(headerWorker))
	}
	stranger := newLab(t, setup{proxy: func(c *Config) { c.Trust = nil; c.WorkerHeader = false }})
	status, data, header := stranger.post("/v1/completions", body, headerWorker, "no number")
	if status != 200 || header.Get(headerWorker) != "" {
		t.Errorf("a stranger's header: %d %s %v", status, data, header)
	}
	if seen := <-stranger.engines[0].seen; seen.Get(headerWorker) != "" {
		t.Error("a stranger's header reaches the engine")
	}
}

// Requests of a session stay on their worker, unless that may serve them no more.
func TestSession(t *testing.T) {
	l := newLab(t, setup{engines: 4, fleet: func(c *fleet.Config) { c.Route.Mode = "round-robin" }})
	where := func(session string) string {
		_, _, h := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":1}`, "X-Session-Id", session)
		return h.Get(headerWorker)
	}
	a, b := where("a"), where("b")
	if a == b {
		t.Fatal("round-robin gives both the same worker")
	}
	for range 5 {
		if got := where("a"); got != a {
			t.Errorf("session a went to %s after %s", got, a)
		}
	}
	var id uint64
	if _, err := fmt.Sscan(a, &id); err != nil {
		t.Fatal(err)
	}
	if err := l.model().Router.Drain(id, true); err != nil {
		t.Fatal(err)
	}
	moved := where("a")
	if moved == a || where("a") != moved {
		t.Errorf("after its worker is drained session a went to %s", moved)
	}
}

// Refusals have OpenAI's form, and other routes reach an engine.
func TestRoutes(t *testing.T) {
	l := newLab(t, setup{engines: 1})
	for _, c := range []struct {
		path, body string
		status     int
		part       string
	}{
		{"/v1/completions", `{"model":"x","prompt":"a"}`, 404, `"code":"model_not_found"`},
		{"/v1/completions", `{"prompt":"a"}`, 400, `"code":"missing_model"`},
		{"/v1/completions", `{"model":"org/model"`, 400, `"code":"malformed_json"`},
		{"/v1/completions", `{"model":"org/model","prompt":"` + strings.Repeat("x", 2<<20) + `"}`, 413, `"code":"body_too_large"`},
		{"/v1/completions", `{"model":"org/model","prompt":["a b c d","x"],"max_tokens":2}`, 400, `error`}, // the mock takes one
		{"/v1/completions", `{"model":"lora","prompt":"a b c d","max_tokens":2,"cache_salt":"s"}`, 200, `"model":"lora"`},
		{"/v1/completions", `{"model":"org/model","prompt":[1,2],"max_tokens":1e1}`, 400, `"code":400`}, // the mock's own word
		{"/v1/completions", `{"model":"org/model","prompt":[1,2],"max_tokens":99999999999999999999}`, 400, `"code":400`},
		{"/echo?a=b%2Fc", `anything`, 200, "POST a=b%2Fc"},
		{"/v1/select", `{"model_name":"org/model","token_ids":[1,2,3,4]}`, 200, `"worker_id":0`},
		{"/busy_threshold", `{"model":"org/model"}`, 200, `null`},
	} {
		status, data, header := l.post(c.path, c.body)
		checkPost(t, c.path, c.body, status, data, header)
		if status != c.status || !strings.Contains(data, c.part) {
			t.Errorf("%s %.60s: %d %s, want %d with %s", c.path, c.body, status, data, c.status, c.part)
		}
	}
	for path, part := range map[string]string{
		"/v1/models": `"id":"lora"`, "/livez": `"ok"`, "/readyz": "ready", "/version": "go", "/metrics": "kvatlas_router_first_byte_seconds_bucket",
		"/v1/loads": `"worker_id":0`,
	} {
		resp, err := http.Get(l.front.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(data), part) {
			t.Errorf("%s: %d %.300s", path, resp.StatusCode, data)
		}
	}
	l.idle()
	closed := newLab(t, setup{proxy: func(c *Config) { c.PassThrough, c.Selection = false, false }})
	for _, path := range []string{"/echo", "/v1/select"} {
		if status, data, _ := closed.post(path, `{}`); status != 404 {
			t.Errorf("%s: %d %s", path, status, data)
		}
	}
}

// Without events, chunks of bytes stand for blocks and choices for caches.
func TestApproximate(t *testing.T) {
	l := newLab(t, setup{engines: 4,
		// Mode kv, as to auto the times of engines that take no time are chance.
		fleet: func(c *fleet.Config) { c.Index, c.Route.Mode = fleet.Approximate, "kv" }, proxy: func(c *Config) { c.Tokens = TokensBytes }})
	first := map[string]string{}
	for range 4 {
		for _, prompt := range []string{long, "another " + long, "a third " + long} {
			_, _, h := l.post("/v1/completions", `{"model":"org/model","max_tokens":2,"prompt":"`+prompt+`"}`)
			if got := h.Get(headerWorker); first[prompt] == "" {
				first[prompt] = got
			} else if got != first[prompt] {
				t.Errorf("%q went to %s after %s", prompt, got, first[prompt])
			}
		}
	}
	if n := l.metric(`kvatlas_router_tokenize_total{from="engine"}`); n != "0" {
		t.Errorf("%s texts were tokenized", n)
	}
}

// An adapter that an engine lists is a model of its own, and goes only to engines
// that have it.
func TestLearnedAdapter(t *testing.T) {
	l := newLab(t, setup{engines: 3, engine: func(i int, c *mockapi.Config) {
		if i == 2 {
			c.Loras = []string{"learned"}
		}
	}})
	body := `{"model":"learned","prompt":[1,2,3,4,5,6,7,8],"max_tokens":2}`
	if status, _, _ := l.post("/v1/completions", body); status != 404 {
		t.Errorf("before it is listed: %d", status)
	}
	if n := l.fleet.AskModels(t.Context(), &http.Client{}, patience); n != 3 {
		t.Fatalf("%d engines list their models", n)
	}
	for range 5 {
		if status, data, h := l.post("/v1/completions", body); status != 200 || h.Get(headerWorker) != "2" {
			t.Errorf("%d %s from worker %s", status, data, h.Get(headerWorker))
		}
	}
	if status, _, _ := l.post("/v1/completions", body, headerAllowed, "0,1"); status != 503 {
		t.Errorf("on workers without it: %d", status)
	}
	l.idle()
}

// What an engine says of its load, which others may have brought, keeps requests
// away from it.
func TestReportedLoad(t *testing.T) {
	l := newLab(t, setup{engine: func(_ int, c *mockapi.Config) {
		c.Step = func(*mock.Report) time.Duration { return time.Hour } // until it is closed
		c.Engine.Blocks = 10
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := http.Post(l.engines[0].http.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":2}`))
		if err == nil {
			_ = resp.Body.Close()
		}
	}()
	threshold := func(part string) {
		t.Helper()
		if status, data, _ := l.post("/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":`+part+`}`); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	threshold("0.1")
	l.eventually(func() error { // the request is on its way to the engine
		if n := l.fleet.AskLoad(t.Context(), &http.Client{}, "/metrics", patience); n != 1 {
			return fmt.Errorf("%d ranks report", n)
		}
		if left := l.model().Router.Loads()[0].Left; left != route.BusyDecodeBlocks {
			return fmt.Errorf("the rank is %v", left)
		}
		return nil
	})
	if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1]}`); status != 529 || !strings.Contains(data, "busy_decode_blocks") {
		t.Errorf("%d %s", status, data)
	}
	threshold("0.5")
	if left := l.model().Router.Loads()[0].Left; left != route.Eligible {
		t.Errorf("below the threshold the rank is %v", left)
	}
	l.engines[0].Close()
	<-done
}
