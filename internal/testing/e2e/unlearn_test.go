package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
)

// timedFleet is engines whose steps take as long as is said of each, in front of them the
// router with its default settings, and how many chats each engine got since it was asked.
func timedFleet(t *testing.T, engines int, step func(engine int) time.Duration) (url string, got func() []int64) {
	t.Helper()
	counts := make([]atomic.Int64, engines)
	var urls []string
	for i := range engines {
		s, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 16}, Step: func(*mock.Report) time.Duration { return step(i) }})
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/chat/completions" {
				counts[i].Add(1)
			}
			s.ServeHTTP(w, r)
		}))
		t.Cleanup(func() { h.CloseClientConnections(); s.Close(); h.Close() })
		urls = append(urls, h.URL)
	}
	_, url = startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--model", "m", "--engines", strings.Join(urls, ","))
	return url, func() []int64 {
		all := make([]int64, engines)
		for i := range counts {
			all[i] = counts[i].Swap(0)
		}
		return all
	}
}

// An engine that was slow for 60 chats, and is left alone for that as one at a time finds
// others idle, is well again and gets its part again. A busy machine makes steps longer too, by
// less than the slow engine's are, and a request that tries this one may happen to be slow.
func TestSlowEngineIsTriedAgain(t *testing.T) {
	const usual, slowly = time.Millisecond, 100 * time.Millisecond
	var first atomic.Int64 // step of the first engine
	first.Store(int64(usual))
	url, got := timedFleet(t, 4, func(engine int) time.Duration {
		if engine == 0 {
			return time.Duration(first.Load())
		}
		return usual
	})
	ask := func(what string, clients, n int) int64 {
		t.Helper()
		if failed, why := chats(url, clients, n, true); failed > 0 {
			t.Fatalf("%s: %d chats failed: %s", what, failed, why)
		}
		all := got()
		t.Logf("%s: %v", what, all)
		return all[0]
	}
	ask("all well", 6, 200)
	first.Store(int64(slowly))
	ask("one is slow", 6, 60)
	if n := ask("it stays slow", 1, 200); n > 30 {
		t.Errorf("a slow engine of four got %d of 200 chats", n)
	}
	first.Store(int64(usual))
	for asked := 0; ; asked += 100 {
		if asked == 3000 {
			t.Fatal("of 3,000 chats an engine of four that is well again got a tenth of no hundred")
		}
		if ask("it is well again", 1, 100) >= 10 {
			break
		}
	}
}

// Engines that are all ten times faster than the router takes engines to be are all used.
func TestFasterThanTheFirstGuess(t *testing.T) {
	url, got := timedFleet(t, 8, func(int) time.Duration { return 600 * time.Microsecond })
	if failed, why := chats(url, 4, 400, true); failed > 0 {
		t.Fatalf("%d chats failed: %s", failed, why)
	}
	all := got()
	for _, n := range all {
		if n < 20 || n > 120 {
			t.Errorf("eight engines alike got %v of 400 chats", all)
			break
		}
	}
}

// Answers that come as a whole do not count as prompts to compute until they end: of a
// worker with four of them and one with twelve streams new requests choose the first, once
// its prompts should be computed.
func TestWholeAnswersAreDecoded(t *testing.T) {
	release := make(chan struct{})
	var begun [2]atomic.Int64
	var told atomic.Int64 // streams whose first token has come through the router
	var urls []string
	for i := range begun {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "hold on") {
				if strings.Contains(string(body), `"stream":true`) {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, `data: {"choices":[{"text":"x"}]}`+"\n\n")
					_ = http.NewResponseController(w).Flush()
				}
				begun[i].Add(1)
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
			_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
		}))
		t.Cleanup(h.Close)
		urls = append(urls, h.URL)
	}
	_, url := startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--trust", "127.0.0.1", "--model", "m", "--engines", strings.Join(urls, ","))
	var held sync.WaitGroup
	defer held.Wait()
	defer close(release)
	hold := func(n int, worker string, stream bool, words int) {
		for i := range n {
			held.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(fmt.Sprintf(
					`{"model":"m","stream":%v,"max_tokens":500,"prompt":"%s hold on %d%s"}`, stream, worker, i, strings.Repeat(" and on", words))))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X-Kvatlas-Worker", worker)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err == nil && stream {
					told.Add(1)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			})
		}
	}
	hold(4, "0", false, 100)
	hold(12, "1", true, 400)
	eventually(t, time.Minute, func() error {
		// Before the router knows that the streams have begun it takes them for prompts, and chooses the other one for that.
		if a, b := begun[0].Load(), told.Load(); a != 4 || b != 12 {
			return fmt.Errorf("%d requests have arrived, and %d streams begun", a, b)
		}
		return nil
	})
	next := 0
	chosen := func() string { // is asked for without a request that would teach the router anything
		next++
		status, data, _ := ask(url+"/v1/select", fmt.Sprintf(`{"model_name":"m","token_ids":[%d%s]}`, next, strings.Repeat(",1", 31)))
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, data)
		}
		_, worker, _ := strings.Cut(data, `"worker_id":`)
		worker, _, _ = strings.Cut(worker, ",")
		return worker
	}
	eventually(t, 30*time.Second, func() error { // when that is depends on how fast the streams' prompts seemed to be
		for n := range 20 {
			if worker := chosen(); worker != "0" {
				return fmt.Errorf("after %d requests to the worker with four whole answers one goes to worker %s, with twelve streams", n, worker)
			}
		}
		return nil
	})
}
