package mockapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/event"
)

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec,noctx // a test's own server
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// What an answer says was cached is what its engine has stored before.
func TestUsage(t *testing.T) {
	stored := 0 // the engine's goroutine and, after an answer, this one
	steps := 0
	var mu sync.Mutex
	s, err := New(Config{Model: "m", Engine: mock.Config{BlockSize: 4},
		Sink: func(ev *event.Event) { mu.Lock(); stored += len(ev.Engine); mu.Unlock() },
		Step: func(*mock.Report) time.Duration { mu.Lock(); steps++; mu.Unlock(); return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	defer s.Close()
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":4}`
	for i, cached := range []string{`"cached_tokens":0`, `"cached_tokens":8`} {
		if status, data := post(t, h.URL+"/v1/completions", body); status != 200 || !strings.Contains(data, cached) || !strings.Contains(data, `"completion_tokens":4`) {
			t.Errorf("request %d: %d %s, want %s", i, status, data, cached)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if stored != 3 || steps != 8 {
		t.Errorf("%d blocks stored in %d steps, want 3 in 8", stored, steps)
	}
	for path, bad := range map[string]string{"/v1/completions": `{"prompt":[]}`, "/v1/chat/completions": `{`, "/tokenize": `{"prompt":3}`} {
		if status, data := post(t, h.URL+path, bad); status != 400 {
			t.Errorf("%s %s: %d %s", path, bad, status, data)
		}
	}
	if _, data := post(t, h.URL+"/tokenize", `{"prompt":"abcde"}`); !strings.Contains(data, `"tokens":[1633837924,101]`) {
		t.Errorf("tokens: %s", data)
	}
}

func start(t *testing.T, c Config) (*Server, string) {
	t.Helper()
	c.Model, c.Engine.BlockSize = "m", 4
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		h.CloseClientConnections()
		h.Close()
	})
	return s, h.URL
}

// Ranks have caches of their own; a request goes to the one that it names.
func TestRanks(t *testing.T) {
	_, url := start(t, Config{Ranks: 2})
	ask := func(rank string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions",
			strings.NewReader(`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Data-Parallel-Rank", rank)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, c := range []struct{ rank, want string }{
		{"0", `"cached_tokens":0`}, {"1", `"cached_tokens":0`}, {"1", `"cached_tokens":4`}, {"2", "no such rank"},
	} {
		if data := ask(c.rank); !strings.Contains(data, c.want) {
			t.Errorf("rank %s: %s, want %s", c.rank, data, c.want)
		}
	}
}

// A client that leaves is a request less at the engine, and its load goes away.
func TestAbort(t *testing.T) {
	var steps atomic.Int64
	s, url := start(t, Config{Step: func(*mock.Report) time.Duration { steps.Add(1); return time.Millisecond }})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":60000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it breaks off
	if l := s.ranks[0].load(); l.Running != 1 || l.Blocks == 0 {
		t.Errorf("%+v while it runs", l)
	}
	cancel()
	deadline, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l := s.ranks[0].load(); l != (mock.Load{}) || s.Aborted.Load() != 1; l = s.ranks[0].load() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%+v, %d aborted", l, s.Aborted.Load())
		}
	}
	if n := steps.Load(); n >= 60000 {
		t.Errorf("%d steps: it ran to its end", n)
	}
}

// A prompt goes from a prefill engine to a decode engine in vLLM's way and in
// SGLang's; where the parameters are wrong, the decode engine computes it.
func TestTransfer(t *testing.T) {
	var computed atomic.Int64
	count := func(r *mock.Report) time.Duration { computed.Add(int64(r.Prefill)); return 0 }
	prompt := `"prompt":[1,2,3,4,5,6,7,8,9]`
	t.Run("vllm", func(t *testing.T) {
		_, prefill := start(t, Config{Transfer: TransferVLLM, Prefill: true})
		d, decode := start(t, Config{Transfer: TransferVLLM, Step: count})
		_, data := post(t, prefill+"/v1/completions", `{"model":"m","max_tokens":1,`+prompt+`,"kv_transfer_params":{"do_remote_decode":true}}`)
		var answer struct {
			Params json.RawMessage `json:"kv_transfer_params"`
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || len(answer.Params) == 0 {
			t.Fatalf("%v: %s", err, data)
		}
		body := `{"model":"m","max_tokens":3,` + prompt + `,"kv_transfer_params":` + string(answer.Params) + `}`
		if status, data := post(t, decode+"/v1/completions", body); status != 200 || d.Received.Load() != 1 || computed.Load() != 1 {
			t.Errorf("%d %s; %d received, %d tokens computed", status, data, d.Received.Load(), computed.Load())
		}
		if _, _ = post(t, decode+"/v1/completions", body); d.Lost.Load() != 1 {
			t.Error("a prompt is given away twice")
		}
	})
	t.Run("sglang", func(t *testing.T) {
		_, prefill := start(t, Config{Transfer: TransferSGLang, Prefill: true})
		d, decode := start(t, Config{Transfer: TransferSGLang, Step: count})
		computed.Store(0)
		_, port, _ := strings.Cut(strings.TrimPrefix(prefill, "http://"), ":")
		body := `{"model":"m","max_tokens":3,` + prompt + `,"bootstrap_host":"127.0.0.1","bootstrap_room":18446744073709551615,"bootstrap_port":` + port + `}`
		done := make(chan struct{})
		go func() {
			defer close(done)
			if status, data := post(t, decode+"/v1/completions", body); status != 200 || d.Received.Load() != 1 || computed.Load() != 1 {
				t.Errorf("%d %s; %d received, %d tokens computed", status, data, d.Received.Load(), computed.Load())
			}
		}()
		if status, data := post(t, prefill+"/v1/completions", body); status != 200 {
			t.Errorf("%d %s", status, data)
		}
		<-done
		if status, _ := post(t, prefill+"/v1/completions", `{"model":"m",`+prompt+`}`); status != 400 {
			t.Errorf("a prefill engine answers %d without a bootstrap room", status)
		}
	})
}

// Models and load are told in vLLM's words.
func TestStatus(t *testing.T) {
	_, url := start(t, Config{Loras: []string{"l"}})
	for path, want := range map[string]string{"/v1/models": `"id":"l","object":"model","owned_by":"vllm","parent":"m"`, "/metrics": `vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0`} {
		resp, err := http.Get(url + path) //nolint:noctx // a test's own server
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %s", path, data)
		}
	}
	if status, _ := post(t, url+"/v1/completions", `{"model":"other","prompt":"x"}`); status != 404 {
		t.Errorf("another model: %d", status)
	}
}
