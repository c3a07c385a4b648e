package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
)

// sickEngines are three engines, of which the first does with chats what sick says.
func sickEngines(t *testing.T, sick http.HandlerFunc) (urls []string) {
	t.Helper()
	for i := range 3 {
		s, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 16},
			Step: func(*mock.Report) time.Duration { return 2 * time.Millisecond }})
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if i == 0 && strings.HasPrefix(r.URL.Path, "/v1/chat") {
				sick(w, r)
				return
			}
			s.ServeHTTP(w, r)
		}))
		t.Cleanup(func() { h.CloseClientConnections(); s.Close(); h.Close() })
		urls = append(urls, h.URL)
	}
	return urls
}

// sickFleet is these with the router in front of them.
func sickFleet(t *testing.T, sick http.HandlerFunc, flags ...string) (url string) {
	t.Helper()
	_, url = startRouter(t, t.TempDir(), append([]string{"--nats", "none", "--kv-events=false", "--model", "m", "--engines", strings.Join(sickEngines(t, sick), ",")}, flags...)...)
	return url
}

// atOnce is how many chats are asked at once, unless it is said.
const atOnce = 24

// questions is how many were asked.
var questions atomic.Int64

// chats asks so many chats, some at once and none twice, as what is cached would say where they
// go, and returns how many failed, and with what.
func chats(url string, clients, n int, stream bool) (failed int64, why string) {
	var all sync.WaitGroup
	var next, bad atomic.Int64
	var mu sync.Mutex
	reasons := map[string]int{}
	for range clients {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				status, data, _ := ask(url+"/v1/chat/completions", fmt.Sprintf(
					`{"model":"m","max_tokens":3,"stream":%v,"messages":[{"role":"user","content":"question %d of some length, which nobody has asked"}]}`, stream, questions.Add(1)))
				if status != http.StatusOK || !strings.Contains(data, `"choices":[{`) || stream && !strings.HasSuffix(data, "data: [DONE]\n\n") {
					bad.Add(1)
					mu.Lock()
					reasons[fmt.Sprintf("%d %.200s", status, data)]++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return bad.Load(), fmt.Sprint(reasons)
}

// An engine that answers at once, but not as it should, looks idle; its health check is
// well. Of 600 clients six at most see that it is there, and none of the next 300.
func TestSickEngine(t *testing.T) {
	refuses := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", status) }
	}
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, text)
		}
	}
	for name, sick := range map[string]http.HandlerFunc{
		"500": refuses(500), "429": refuses(429), "503": refuses(503), "404": refuses(404),
		"200 and no choices":       says(`data: {"choices":[]}` + "\n\ndata: [DONE]\n\n"),
		"200 and a token":          says(`data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"), // of eight under way
		"200, a token and a reset": breaksOff,                                                                // as above
		"200 and nothing":          says(""), "200 and an end": says("data: [DONE]\n\n"), "200 and an error": says(`data: {"error":{"code":500}}` + "\n\ndata: [DONE]\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			url := sickFleet(t, sick)
			if failed, why := chats(url, atOnce, 600, name != "429" && name != "503"); failed > 6 {
				t.Errorf("%d of 600 chats failed: %s", failed, why)
			} else if failed > 0 {
				t.Logf("%d of 600 chats failed: %s", failed, why)
			}
			if failed, why := chats(url, atOnce, 300, false); failed > 0 {
				t.Errorf("%d of the next 300 chats failed: %s", failed, why)
			}
			text, err := get(t.Context(), url+"/metrics")
			if err != nil || sum(text, "kvatlas_router_left_out_total") < 1 || sum(text, "kvatlas_router_retries_total") < 1 {
				t.Errorf("the metrics do not tell of it: %v", err)
			}
		})
	}
}

// breaksOff begins a stream well, and resets it.
func breaksOff(w http.ResponseWriter, r *http.Request) {
	begins("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n", w, r)
	panic(http.ErrAbortHandler)
}

// begins begins a stream.
func begins(text string, w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else a server does not see that its client is gone
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// An engine that takes streams and never answers, or says nothing behind a comment or a first token, keeps those
// that it has for as long as it is given, and gets few others. No client sees it.
func TestSilentEngine(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "a comment": ": ping\n\n", "a token": "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n"} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			url := sickFleet(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if _, _ = io.Copy(io.Discard, r.Body); text != "" {
					begins(text, w, r)
				}
				<-r.Context().Done()
			}, "--overdue-after", "300ms")
			if failed, why := chats(url, atOnce, 200, true); failed > 0 {
				t.Errorf("%d of 200 streams failed: %s", failed, why)
			}
			first := asked.Load()
			if failed, why := chats(url, atOnce, 200, true); failed > 0 {
				t.Errorf("%d of the next 200 streams failed: %s", failed, why)
			}
			// Where a machine is slow its first trials come before the others' answers: a third of the first is its part.
			if n := asked.Load() - first; first == 0 || first > 2*atOnce || n > 8 {
				t.Errorf("the silent engine was sent %d streams of the first 200 and %d of the next", first, n)
			}
		})
	}
}

// One that takes whole answers and never gives them is asked by the router itself. When it does not answer that either, and
// another engine does, those that wait there go to others, and no more are sent until it answers. No client
// sees it. One that answers such a question may be at work on long answers: it keeps what it has, and gets few others.
func TestSilentEngineOfWholeAnswers(t *testing.T) {
	for name, answers := range map[string]bool{"nothing": false, "questions only": true} {
		t.Run(name, func(t *testing.T) {
			var asked, questions, well atomic.Int64
			within := "1m"
			if answers {
				within = "3s"
			}
			url := sickFleet(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if well.Load() > 0 {
					asked.Add(1)
					_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`)
					return
				}
				if strings.Contains(string(body), "question") {
					asked.Add(1)
				} else if questions.Add(1); answers {
					_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"x"},"finish_reason":"length"}]}`)
					return
				}
				<-r.Context().Done()
			}, "--overdue-after", "400ms", "--first-byte-timeout", within, "--breaker-max-wait", "1s")
			failed, why := chats(url, 8, 200, false)
			first := asked.Load()
			if first == 0 || first > 12 || questions.Load() == 0 {
				t.Errorf("the silent engine was sent %d of the first 200 chats, and %d questions", first, questions.Load())
			}
			more, what := chats(url, 8, 200, false)
			if n := asked.Load() - first; !answers && (failed+more > 0 || n > 2) || answers && failed+more > first+n {
				t.Errorf("%d of 200 chats failed, %s, and %d of the next, of which %d were sent to the silent engine: %s", failed, why, more, n, what)
			}
			if answers {
				return
			}
			text, err := get(t.Context(), url+"/metrics")
			if err != nil || !strings.Contains(string(text), `state="silent"} 1`) || !strings.Contains(string(text), `kvatlas_router_retries_total{reason="overdue"}`) {
				t.Errorf("the metrics do not tell of it: %v", err)
			}
			well.Store(1)
			asked.Store(0)
			eventually(t, time.Minute, func() error {
				if failed, why := chats(url, 8, 8, false); failed > 0 {
					t.Fatal(why)
				}
				if asked.Load() < 3 {
					return errors.New("it is well, and gets no chats")
				}
				return nil
			})
		})
	}
}

// A request at which every engine fails, or that none will have, is tried at two, its client gets the
// engine's own answer, and nobody is left out for it.
func TestRequestThatFailsEverywhere(t *testing.T) {
	var asked atomic.Int64
	var urls []string
	for range 4 {
		s, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 16}, Fault: func(r *http.Request) (f mockapi.Fault) {
			if bad := r.Header.Get("X-Bad"); bad != "" {
				asked.Add(1)
				f.Status, _ = strconv.Atoi(bad)
			}
			return f
		}})
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(s)
		t.Cleanup(func() { h.Close(); s.Close() })
		urls = append(urls, h.URL)
	}
	_, url := startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--model", "m", "--engines", strings.Join(urls, ","))
	for i := range 40 {
		bad := []int{http.StatusInternalServerError, http.StatusNotFound}[i%2]
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"bad"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Bad", strconv.Itoa(bad))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != bad {
			t.Fatal(resp.Status)
		}
	}
	if n := asked.Load(); n != 80 {
		t.Errorf("40 requests were tried %d times", n)
	}
	text, err := get(t.Context(), url+"/metrics")
	if err != nil || sum(text, "kvatlas_router_left_out_total") != 0 {
		t.Errorf("engines were left out: %v", err)
	}
	if failed, why := chats(url, atOnce, 100, false); failed > 0 {
		t.Errorf("%d chats failed after it: %s", failed, why)
	}
}

// An engine that hangs at /tokenize only is no longer asked there, and gets chats as ever.
func TestEngineThatDoesNotTokenize(t *testing.T) {
	var urls []string
	var chatted, hung atomic.Int64
	for i := range 3 {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.URL.Path != "/tokenize":
				if i == 0 && r.Method == http.MethodPost {
					chatted.Add(1)
				}
				_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
			case i == 0:
				hung.Add(1)
				<-r.Context().Done()
			default:
				_, _ = io.WriteString(w, `{"tokens":[1,2,3,4]}`)
			}
		}))
		t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
		urls = append(urls, h.URL)
	}
	_, url := startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--tokens", "engine", "--model", "m", "--engines", strings.Join(urls, ","))
	for i := range 60 {
		if status, text, _ := ask(url+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"question %d, which nobody has asked"}`, i)); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	if hung.Load() > 6 || chatted.Load() < 5 {
		t.Errorf("%d of 60 requests are asked of it in vain, and %d go to the engine", hung.Load(), chatted.Load())
	}
}

// Of two routers the one that leaves an engine out tells the other, which then asks it no more than may probe it.
func TestSicknessIsTold(t *testing.T) {
	var asked atomic.Int64
	engines := strings.Join(sickEngines(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "{}", http.StatusInternalServerError)
	}), ",")
	nats := natstest.Start(t).URL("router")
	var urls []string
	for _, wait := range []string{"100ms", "1h"} { // the first probes, and tells what comes of that, again and again
		_, url := startRouter(t, t.TempDir(), "--nats", nats, "--kv-events=false", "--model", "m", "--engines", engines, "--breaker-wait", wait, "--breaker-max-wait", wait)
		urls = append(urls, url)
	}
	// Who has heard of a request that the other one has is met by it.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, urls[0]+"/v1/chat/completions",
			strings.NewReader(`{"model":"m","max_tokens":100000,"stream":true,"messages":[{"role":"user","content":"long"}]}`))
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), urls[1]+"/metrics")
		if err == nil && sum(text, "kvatlas_router_live_bookings") != 1 {
			err = errors.New("it has not heard of the other router's request")
		}
		return err
	})
	cancel()
	<-ended
	const word = `reason="told"} 1`
	eventually(t, time.Minute, func() error {
		if failed, why := chats(urls[0], atOnce, atOnce, false); failed > 6 {
			t.Fatalf("%d chats failed: %s", failed, why)
		}
		text, err := get(t.Context(), urls[1]+"/metrics")
		if err == nil && !strings.Contains(string(text), word) {
			err = errors.New("the other router has not heard of it")
		}
		return err
	})
	asked.Store(0) // the first asks nobody any more
	if failed, why := chats(urls[1], atOnce, 100, false); failed > 0 {
		t.Errorf("%d of the other router's chats failed: %s", failed, why)
	}
	if n := asked.Load(); n > 2 {
		t.Errorf("the other router sent the sick engine %d chats", n)
	}
}
