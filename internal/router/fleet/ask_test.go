package fleet

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

// Loads are read from what vLLM, SGLang and others export; what is no load, or no
// number, is passed over.
func TestParseLoad(t *testing.T) {
	const text = `# HELP vllm:kv_cache_usage_perc 1 is all.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a,b}=\"x"} 0.25
vllm:kv_cache_usage_perc{ model_name="m", engine="1", } 0.5 1700000000000
vllm:num_requests_running{engine="7"} 3
vllm:gpu_cache_usage_perc{engine="2"} 1e-1
sglang:token_usage{dp_rank="3",tp_rank="0"} 0.75
sglang:token_usage{dp_rank="3",tp_rank="1"} 0.8
kvatlas_engine_prefill_tokens 12
kvatlas_engine_active_blocks{engine="4"} 5
kvatlas_engine_active_blocks{engine="x"} 5
kvatlas_engine_active_blocks{engine="5} 5
kvatlas_engine_active_blocks{engine="5"}
kvatlas_engine_active_blocks{engine="5"} NaN
kvatlas_engine_active_blocks{engine="5"} -1
kvatlas_engine_active_blocks{engine="5"} +Inf
kvatlas_engine_active_blocks{
kvatlas_engine_active_blocks`
	want := map[uint32]route.Report{
		0: {CacheUsage: 0.25}, 1: {CacheUsage: 0.5}, 2: {CacheUsage: 0.1}, 3: {CacheUsage: 0.8},
		noRank: {PrefillTokens: 12}, 4: {ActiveBlocks: 5},
	}
	if got := parseLoad([]byte(text)); !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Engines are asked for their load only where a threshold goes by it, and for
// their adapters always; an engine that does not answer keeps what it had.
func TestAsk(t *testing.T) {
	asked := make(chan string, 100)
	models := `{"data":[{"id":"m","parent":null},{"id":"called-l1"},{"id":"l1","parent":"m"},{"id":"l2","parent":"m"}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "vllm:kv_cache_usage_perc{engine=\"2\"} 0.9\nvllm:kv_cache_usage_perc{engine=\"9\"} 0.9\n")
		case "/v1/models":
			_, _ = io.WriteString(w, models)
		}
	}))
	defer server.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.ReplaceAll(models, "l1", "l3"))
	}))
	f := New(Config{Route: route.DefaultSettings(), Loras: map[string]string{"fixed": "m"}, Aliases: map[string]string{"gpt": "m", "other": "l2", "dangling": "x"}, Log: slog.New(slog.DiscardHandler)})
	for i, url := range []string{server.URL, other.URL} {
		w := worker(uint64(i), "m", "")
		if w.Endpoints.HTTP = url; i == 1 {
			w.Ranks = []uint32{0}
		}
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
	}
	m := f.Models()[0]
	client := &http.Client{}
	if n := f.AskLoad(t.Context(), client, "/metrics", time.Minute); n != 0 || len(asked) != 0 {
		t.Errorf("%d ranks asked without a threshold", n)
	}
	half := 0.5
	if _, err := m.Router.SetThresholds(route.Thresholds{DecodeFraction: &half}); err != nil {
		t.Fatal(err)
	}
	if n := f.AskLoad(t.Context(), client, "/metrics", time.Minute); n != 1 {
		t.Errorf("%d ranks reported, want 1 that is registered", n)
	}
	if l := m.Router.Loads(); l[0].Left != route.BusyDecodeBlocks || l[1].Left != route.Eligible {
		t.Errorf("%+v", l)
	}

	if n := f.AskModels(t.Context(), client, time.Minute); n != 2 {
		t.Errorf("%d engines named their models", n)
	}
	if got := f.Names(); !slices.Equal(got, []string{"called-l1", "called-l3", "fixed", "gpt", "l1", "l2", "l3", "m", "other"}) {
		t.Errorf("names %v", got)
	}
	for name, want := range map[string][]uint64{"l1": {0}, "l2": nil, "l3": {1}, "fixed": nil} {
		if got, lora := f.Lookup(name, ""); got != m || lora != name || !slices.Equal(m.LoraWorkers(name), want) {
			t.Errorf("%s is of %v at %v, want %v", name, lora, m.LoraWorkers(name), want)
		}
	}
	for name, want := range map[string]string{"gpt": "", "other": "l2", "called-l1": "", "m": ""} {
		if got, lora := f.Lookup(name, ""); got != m || lora != want {
			t.Errorf("%s is adapter %q of %v", name, lora, got)
		}
	}
	if got := m.NameWorkers("called-l3"); !slices.Equal(got, []uint64{1}) || m.NameWorkers("m") != nil {
		t.Errorf("a name of one engine's is known to %v", got)
	}
	other.Close()
	models = `{"data":[]}`
	if n := f.AskModels(t.Context(), client, time.Minute); n != 1 || !slices.Equal(m.LoraWorkers("l2"), []uint64{1}) {
		t.Errorf("%d answered; l2 is at %v", n, m.LoraWorkers("l2"))
	}
	w := worker(1, "m", "")
	f.RemoveWorker(w.Key())
	if got, _ := f.Lookup("l2", ""); got != nil {
		t.Error("an adapter outlives its last worker")
	}
	w.Endpoints.HTTP, w.Lora = "http://h", "registered"
	if err := f.SetWorker(w, false); err != nil {
		t.Fatal(err)
	}
	if got, lora := f.Lookup("registered", ""); got != m || lora != "registered" {
		t.Error("an adapter that is registered is not found")
	}
	for _, bad := range []string{"", "x", `{"data":{}}`} {
		if names, ok := parseModels([]byte(bad)); ok {
			t.Errorf("%q lists %v", bad, names)
		}
	}
}

// A model's length is what all its engines say of late; of one that does not answer, or says
// another, it is not known.
func TestMaxLength(t *testing.T) {
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	said := [2]atomic.Pointer[string]{}
	for i := range said {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, *said[i].Load()) }))
		t.Cleanup(server.Close)
		w := worker(uint64(i), "m", "")
		w.Endpoints.HTTP = server.URL
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
	}
	const long = `{"data":[{"id":"m","max_model_len":4096},{"id":"l","parent":"m"},{"id":"also-m","max_model_len":4096}]}`
	m := f.Models()[0]
	for _, c := range []struct {
		one, two string
		want     int
	}{
		{long, long, 4096}, {long, `{"data":[{"id":"m","max_model_len":2048}]}`, 0}, {long, `{"data":[{"id":"m"}]}`, 0}, {long, `no`, 0},
		{long, `{"data":[{"id":"m","max_model_len":4096},{"id":"n","max_model_len":1}]}`, 0}, {long, `{"data":[{"id":"m","max_model_len":-1}]}`, 0}, {long, long, 4096},
	} {
		said[0].Store(&c.one)
		said[1].Store(&c.two)
		if f.AskModels(t.Context(), http.DefaultClient, time.Minute); m.MaxLength() != c.want {
			t.Errorf("%s and %s: %d, want %d", c.one, c.two, m.MaxLength(), c.want)
		}
	}
	w := worker(1, "m", "")
	w.Endpoints.HTTP, w.Incarnation = m.Engine(1).URL, 7
	if err := f.SetWorker(w, false); err != nil || m.MaxLength() != 0 {
		t.Errorf("an engine that was started anew is said to take %d tokens: %v", m.MaxLength(), err)
	}
}

// The way from a prefill worker, and whether there is one, follow what is
// registered.
func TestSplit(t *testing.T) {
	f := New(Config{Route: route.DefaultSettings(), Transfer: registry.TransferSGLang, Log: slog.New(slog.DiscardHandler)})
	set := func(change func(w *registry.Worker)) *Engine {
		t.Helper()
		w := worker(1, "m", "")
		change(&w)
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
		return f.Models()[0].Engine(1)
	}
	if e := set(func(*registry.Worker) {}); e.Prefill || f.Models()[0].Split() {
		t.Error("an aggregated worker is a prefill worker")
	}
	e := set(func(w *registry.Worker) { w.Role = registry.Prefill })
	if !e.Prefill || e.Transfer != registry.TransferSGLang || e.Bootstrap != "h:8998" || !f.Models()[0].Split() {
		t.Errorf("%+v", e)
	}
	e = set(func(w *registry.Worker) {
		w.Role, w.KVTransfer, w.Endpoints.Bootstrap = registry.Prefill, registry.TransferVLLM, "b:1"
	})
	if e.Transfer != registry.TransferVLLM || e.Bootstrap != "b:1" {
		t.Errorf("%+v", e)
	}
	f.RemoveWorker(registry.Key{Space: f.Models()[0].Space, Worker: 1})
	if f.Models()[0].Split() {
		t.Error("the last prefill worker has left and is waited for")
	}
}

// That an engine is not well is logged with the reason, as a certificate that is another host's shows
// nowhere else before a request comes; without a word of what the engine says.
func TestWhyAnEngineIsNotWell(t *testing.T) {
	const words = "said-by-the-engine"
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	go func() { // ends with the listener
		for {
			c, err := raw.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4<<10)) // else its end may come before what it says
			_, _ = io.WriteString(c, words+" "+words+"\r\n\r\n")
			_ = c.Close()
		}
	}()
	sick := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, words, http.StatusServiceUnavailable) }
	plain, secured := httptest.NewServer(http.HandlerFunc(sick)), httptest.NewUnstartedServer(http.HandlerFunc(sick))
	secured.Config.ErrorLog = log.New(io.Discard, "", 0)
	secured.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secured.Close)
	for url, want := range map[string]string{plain.URL: "status 503", secured.URL: "certificate", "http://" + raw.Addr().String(): "no HTTP"} {
		var text bytes.Buffer
		f := New(Config{Route: route.DefaultSettings(), Unhealthy: 1, Log: slog.New(slog.NewTextHandler(&text, nil))})
		w := worker(1, "m", "")
		w.Endpoints.HTTP = url
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
		n := f.Probe(t.Context(), NewClient(nil), "/health", time.Minute)
		if n != 1 || !strings.Contains(text.String(), want) || strings.Contains(text.String(), words) {
			t.Errorf("%d changes, want %q: %s", n, want, &text)
		}
	}
}

// Who is being asked is waited for: a router that starts is not ready before.
func TestWhoIsBeingAskedIsWaitedFor(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write([]byte(`{"data":[{"id":"sql","parent":"m"}]}`)) // the fleet reads all
	}))
	defer s.Close()
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	w := worker(1, "m", "")
	w.Endpoints.HTTP = s.URL
	if err := f.SetWorker(w, false); err != nil {
		t.Fatal(err)
	}
	var other sync.WaitGroup
	other.Go(func() { f.AskNew(t.Context(), s.Client(), time.Minute) })
	<-asked
	time.AfterFunc(50*time.Millisecond, func() { close(answer) })
	f.AskNew(t.Context(), s.Client(), time.Minute)
	if !f.Models()[0].loras.has("sql") {
		t.Error("what it serves is not known")
	}
	other.Wait()
}

// Who has come is asked at once, and once: also who has been started anew, and who was not asked in time.
func TestWhoComesIsAsked(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"data":[]}`)) // the fleet reads all
	}))
	defer s.Close()
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	w := worker(1, "m", "")
	w.Endpoints.HTTP = s.URL
	past, cancel := context.WithCancel(t.Context())
	cancel()
	for i, c := range []struct {
		life uint64
		ctx  context.Context
		told bool
		want int32
	}{{0, past, true, 0}, {0, t.Context(), true, 1}, {0, t.Context(), false, 1}, {7, t.Context(), true, 2}, {7, t.Context(), false, 2}} {
		w.Incarnation = c.life
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
		if told := len(f.Came()) == 1; told != c.told {
			t.Errorf("step %d: told %v, want %v", i, told, c.told)
		}
		for len(f.Came()) > 0 {
			<-f.Came()
		}
		if f.AskNew(c.ctx, s.Client(), time.Minute); asked.Load() != c.want {
			t.Errorf("step %d: asked %d times, want %d", i, asked.Load(), c.want)
		}
		if i == 0 && len(f.Came()) != 1 {
			t.Error("nobody is told of who could not be asked in time")
		}
	}
}
