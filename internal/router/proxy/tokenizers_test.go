package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// Engines that are alike are asked alike, one that is slow or has much to answer less,
// one that fails hardly, and each gets its part again when it is well.
func TestTokenizersChoice(t *testing.T) {
	p := (&tokenizing{settings: breaker.Default(), first: time.Second, least: time.Millisecond}).model(nil)
	engines := map[uint64]*fleet.Engine{}
	for i := range uint64(4) {
		engines[i] = &fleet.Engine{ID: i, URL: "http://h"}
	}
	now := time.Unix(1e9, 0)
	run := func(n int, took func(id uint64) (time.Duration, breaker.Outcome)) (got [4]int) {
		for range n {
			e, k := p.pick(engines, nil, now)
			got[e.ID]++
			d, o := took(e.ID)
			now = now.Add(d)
			p.ended(e, k, o, d, now)
		}
		return got
	}
	well := func(uint64) (time.Duration, breaker.Outcome) { return 3 * time.Millisecond, breaker.Succeeded }
	if got := run(400, well); slices.Min(got[:]) < 50 {
		t.Errorf("alike: %v", got)
	}
	if got := run(400, func(id uint64) (time.Duration, breaker.Outcome) {
		if id == 1 {
			return 300 * time.Millisecond, breaker.Succeeded
		}
		return well(id)
	}); got[1] > 20 || slices.Max(got[:]) > 250 {
		t.Errorf("one is slow: %v", got)
	}
	run(2000, well)
	if got := run(400, well); got[1] < 50 {
		t.Errorf("it is well again: %v", got)
	}
	if got := run(400, func(id uint64) (time.Duration, breaker.Outcome) {
		if id == 2 {
			return time.Millisecond, breaker.Failed
		}
		return well(id)
	}); got[2] > 12 {
		t.Errorf("one fails at once: %v", got)
	}
	busy, _ := p.pick(engines, nil, now)
	for range 20 {
		if e, k := p.pick(engines, nil, now); e == busy && p.of[e].live > 2 {
			t.Fatal("one that is asked already is asked again")
		} else {
			p.ended(e, k, breaker.Neutral, 0, now)
		}
	}
}

// How long one model's engines take says nothing of another's: a fast one's hedge comes
// soon, a slow one's does not ask everything twice, and engines that fail stay known
// however many models there are.
func TestTokenizersOfManyModels(t *testing.T) {
	all := &tokenizing{settings: breaker.Default(), first: time.Second, least: time.Millisecond}
	now, sick := time.Unix(1e9, 0), 0
	type model struct {
		model   fleet.Model
		engines map[uint64]*fleet.Engine
		took    time.Duration
	}
	models := make([]model, 40)
	for i := range models {
		models[i].engines = map[uint64]*fleet.Engine{1: {ID: 1, URL: "http://h"}, 2: {ID: 2, URL: "http://h"}}
		models[i].took = time.Duration(1+i%2*199) * time.Millisecond
	}
	for round := range 100 {
		for i := range models {
			m, o := &models[i], breaker.Succeeded
			t := all.model(&m.model)
			e, k := t.pick(m.engines, nil, now)
			if e.ID == 1 {
				o = breaker.Failed
				if round >= 75 {
					sick++
				}
			}
			now = now.Add(time.Millisecond)
			t.ended(e, k, o, m.took, now)
		}
	}
	if sick > 100 {
		t.Errorf("%d of the last 1,000 went to engines that fail", sick)
	}
	for i := range models {
		if m := &models[i]; all.model(&m.model).hedge() != m.took || len(all.model(&m.model).of) != 2 {
			t.Errorf("model %d, whose engines take %v: another is asked after %v", i, m.took, all.model(&m.model).hedge())
		}
	}
}

// An engine that hangs at /tokenize alone costs a few requests the time in which nearly
// all others are answered, and the others nothing: they do not ask it.
func TestTokenizeHangs(t *testing.T) {
	var hung atomic.Int64
	l := newLab(t, setup{engines: 3, registry: func(i int, w *registry.Worker) {
		if i > 0 {
			return
		}
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/tokenize" {
				hung.Add(1)
				<-r.Context().Done()
				return
			}
			_, _ = io.WriteString(w, `{}`)
		}))
		t.Cleanup(h.Close)
		w.Endpoints.HTTP = h.URL
	}})
	for i := range 200 {
		if status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":"text %d of some length","max_tokens":1}`, i)); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	if failed := l.metric(`kvatlas_router_tokenize_total{from="failed"}`); failed != "0" || hung.Load() == 0 || hung.Load() > 30 {
		t.Errorf("%s texts without tokens; the engine that hangs was asked %d times of 200", failed, hung.Load())
	}
}

// So it is for what clients ask for themselves: an engine that hangs, fails, refuses, or says nothing there holds
// none of them, and is asked seldom. What all engines say is the client's.
func TestClientsTokenizeWhereOneEngineIsSick(t *testing.T) {
	for name, sick := range map[string]http.HandlerFunc{
		"hangs":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"500":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"404":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"nothing": func(http.ResponseWriter, *http.Request) {},
	} {
		for _, path := range tokenPaths() {
			t.Run(name+path, func(t *testing.T) {
				var asked atomic.Int64
				l := newLab(t, setup{engines: 3, registry: func(i int, w *registry.Worker) {
					h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						body, _ := io.ReadAll(r.Body)
						switch {
						case r.URL.Path != path:
							_, _ = io.WriteString(w, `{}`)
						case i == 0:
							asked.Add(1)
							sick(w, r)
						case strings.Contains(string(body), "bad"):
							w.Header().Set("X-Of", "engine")
							w.WriteHeader(http.StatusUnprocessableEntity)
							_, _ = io.WriteString(w, `{"bad":1}`)
						default:
							_, _ = io.WriteString(w, `{"count":1}`)
						}
					}))
					t.Cleanup(h.Close)
					w.Endpoints.HTTP = h.URL
				}})
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				sent := 0
				for ; sent < 100 || asked.Load() == 0; sent++ { // by the times that the others take it comes late, maybe
					resp, err := l.send(ctx, path, fmt.Sprintf(`{"model":"org/model","prompt":"text %d","messages":[],"tokens":[1]}`, sent))
					if err != nil {
						t.Fatalf("request %d: %v", sent, err)
					}
					text, _ := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != 200 || string(text) != `{"count":1}` || resp.Header.Get(headerWorker) == "0" {
						t.Fatalf("request %d: %d %s", sent, resp.StatusCode, text)
					}
				}
				if n := asked.Load(); name != "404" && n > 30 {
					t.Errorf("the sick engine was asked %d times of %d", n, sent)
				}
				if status, text, h := l.post(path, `{"model":"org/model","prompt":"bad","messages":[],"tokens":[1]}`); status != 422 || text != `{"bad":1}` || h.Get("X-Of") != "engine" {
					t.Errorf("%d %s", status, text)
				}
				if l.metric(`kvatlas_router_requests_total{outcome="ok"}`) != strconv.Itoa(sent) || l.metric(`kvatlas_router_requests_total{outcome="engine_422"}`) != "1" {
					t.Error("they are not counted as they ended")
				}
			})
		}
	}
}

// A question at which each engine fails is given back, and speaks against none of them.
func TestAQuestionThatFailsEverywhere(t *testing.T) {
	var asked atomic.Int64
	l := newLab(t, setup{engines: 3, registry: func(_ int, w *registry.Worker) {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			asked.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":"tokens"}`)
		}))
		t.Cleanup(h.Close)
		w.Endpoints.HTTP = h.URL
	}})
	for range 20 {
		if status, text, _ := l.post("/detokenize", `{"model":"org/model","tokens":[4294967295]}`); status != 500 || text != `{"error":"tokens"}` {
			t.Fatalf("%d %s", status, text)
		}
	}
	if n := asked.Load(); n != 40 {
		t.Errorf("%d engines were asked for 20 questions", n)
	}
	known := l.proxy.tokenizing.model(l.model())
	known.mu.Lock()
	defer known.mu.Unlock()
	for e, s := range known.of {
		if !s.breaker.Closed() {
			t.Errorf("engine %d is left out", e.ID)
		}
	}
}

// Of two engines that were asked nothing goes on once one has answered: the request
// that they were asked from goes with its caller.
func TestNoTokenizerIsLeftBehind(t *testing.T) {
	var asked atomic.Int64
	second := make(chan struct{})
	l := newLab(t, setup{engines: 2, registry: func(_ int, w *registry.Worker) {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.URL.Path != "/tokenize":
				_, _ = io.WriteString(w, `{}`)
			case asked.Add(1) == 1:
				<-second
				_, _ = io.WriteString(w, `{"tokens":[1,2,3]}`)
			default:
				close(second)
				<-r.Context().Done()
			}
		}))
		t.Cleanup(h.Close)
		w.Endpoints.HTTP = h.URL
	}})
	q := &call{header: http.Header{}}
	tokens, err := l.proxy.askEngines(t.Context(), l.model(), q.pieces([][]byte{[]byte(`{"prompt":"x"}`)}), q)
	if err != nil || len(tokens) != 3 {
		t.Fatalf("%v, %v", tokens, err)
	}
	known := l.proxy.tokenizing.model(l.model())
	known.mu.Lock()
	defer known.mu.Unlock()
	for e, s := range known.of {
		if s.live != 0 {
			t.Errorf("engine %d is still asked", e.ID)
		}
	}
}

// The settings say when another engine is asked, and when one that fails is left alone.
func TestTokenizersSettings(t *testing.T) {
	engines := map[uint64]*fleet.Engine{0: {ID: 0, URL: "http://h"}, 1: {ID: 1, URL: "http://h"}}
	for failures, left := range map[int]bool{1: true, 0: false} {
		p := (&tokenizing{settings: breaker.Config{Failures: failures, Wait: time.Hour, MaxWait: time.Hour}}).model(nil)
		failed := false
		for range 100 {
			now := time.Unix(1e9, 0)
			e, k := p.pick(engines, nil, now)
			if e.ID == 0 && failed && left {
				t.Fatal("it is asked after its one failure")
			}
			o := breaker.Succeeded
			if e.ID == 0 {
				o, failed = breaker.Failed, true
			}
			p.ended(e, k, o, time.Millisecond, now)
		}
	}
	for hedge, asked := range map[time.Duration]bool{0: false, time.Millisecond: true} {
		l := newLab(t, setup{engines: 2, proxy: func(p *Config) { p.TokenizeTimeout, p.TokenizeHedge = 150*time.Millisecond, hedge },
			registry: func(_ int, w *registry.Worker) {
				h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if r.URL.Path == "/tokenize" {
						<-r.Context().Done()
					}
					_, _ = io.WriteString(w, `{}`)
				}))
				t.Cleanup(h.Close)
				w.Endpoints.HTTP = h.URL
			}})
		for i := range 4 {
			l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":"text %d","max_tokens":1}`, i))
		}
		if hedged := l.metric("kvatlas_router_tokenize_hedged_total") != "0"; hedged != asked {
			t.Errorf("after %v another was asked: %v", hedge, hedged)
		}
	}
}

// What is read of an answer is bounded by the prompts that are looked at, however long the
// body is that goes there.
func TestTokenizeAnswersAreBounded(t *testing.T) {
	for pad, known := range map[int]bool{0: true, 2 << 20: false} {
		l := newLab(t, setup{proxy: func(p *Config) { p.MaxPrompt = 8 }, registry: func(_ int, w *registry.Worker) {
			h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/tokenize" {
					_, _ = io.WriteString(w, `{"prompt":"`+strings.Repeat("x", pad)+`","tokens":[1,2,3]}`)
					return
				}
				_, _ = io.WriteString(w, `{}`)
			}))
			t.Cleanup(h.Close)
			w.Endpoints.HTTP = h.URL
		}})
		l.post("/v1/chat/completions", `{"model":"org/model","messages":[],"max_tokens":1,"image":"`+strings.Repeat("x", 64<<10)+`"}`)
		if failed := l.metric(`kvatlas_router_tokenize_total{from="failed"}`); (failed == "0") != known {
			t.Errorf("an answer of %d bytes: %s failed", pad, failed)
		}
	}
}

// An engine that makes texts without spaces before punctuation, as transformers did where a file says
// nothing of that (clean_up_tokenization_spaces), is found when it comes.
func TestEnginesThatCleanTextsUp(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	e := newKnowing(t, tokentest.Template, true)
	e.cleans.Store(true)
	l := followed(t, dir, 0, e)
	l.compared(1)
	if s := l.proxy.Tokens().Of(space).Status(); s.States["detokenized"] != "disagrees" || s.States["texts"] != "trusted" {
		t.Errorf("%+v", s)
	}
}
