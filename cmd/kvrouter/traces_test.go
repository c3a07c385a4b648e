package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/otlptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

const (
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan   = "00f067aa0ba902b7"
	clientParent = "00-" + clientTrace + "-" + clientSpan + "-01"
)

// parents is an engine that notes which spans it is asked within.
type parents struct {
	sync.Mutex
	by map[string][]string // by path, parent and state
}

func (p *parents) engine(t *testing.T, c mockapi.Config) string {
	t.Helper()
	behind, err := url.Parse(engine(t, c))
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(behind)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Lock()
		p.by[r.URL.Path] = append(p.by[r.URL.Path], r.Header.Get("traceparent")+" "+r.Header.Get("tracestate"))
		p.Unlock()
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func (p *parents) of(path string) []string {
	p.Lock()
	defer p.Unlock()
	return slices.Clone(p.by[path])
}

// askTraced asks for a completion within the client's span.
func askTraced(t *testing.T, url, parent, body string) http.Header {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", parent)
	req.Header.Set("tracestate", "of=client")
	req.Header.Set("X-Request-Id", "its-name")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // a client that leaves is another story
		t.Fatal(err)
	}
	return resp.Header
}

// The spans of a request are its client's, say where it went and what was to be found there,
// and nothing of what was said; the engine is asked within one of them; and the decision
// names the trace.
func TestSpans(t *testing.T) {
	for _, protocol := range []string{"", "http/protobuf"} {
		collector := otlptest.Start(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		t.Setenv("OTEL_SERVICE_NAME", "front")
		p, access := &parents{by: map[string][]string{}}, filepath.Join(t.TempDir(), "access")
		url, stop := start(t, "--nats=none", "--kv-events=false", "--engines="+p.engine(t, mockapi.Config{})+","+p.engine(t, mockapi.Config{}), "--model=m", "--block-size=4", "--mode=kv",
			"--access-log="+access)
		const said = "a prompt of some length that is said twice, and is longer than four blocks of bytes"
		for n := range 2 {
			askTraced(t, url, clientParent, `{"model":"m","max_tokens":4,"stream":true,"stream_options":{"include_usage":true},"prompt":"`+said+`"}`)
			waittest.Until(t, func() error { // what is counted when a request is over
				if _, text, _ := ask(http.MethodGet, url+"/v1/decisions", ""); strings.Count(text, `"trace_id":"`+clientTrace+`"`) != n+1 {
					return errors.New("decisions without their trace: " + text)
				}
				return nil
			})
		}
		askTraced(t, url, "00-"+clientTrace+"-"+clientSpan+"-00", `{"model":"m","max_tokens":4,"prompt":"not to be recorded"}`)
		stop() // sends what is left
		if log, err := os.ReadFile(access); err != nil || strings.Count(string(log), `"trace_id":"`+clientTrace+`"`) != 2 || strings.Count(string(log), "its-name") != 3 {
			t.Errorf("%v: the access log has not the traces of the two that are recorded: %s", err, log)
		}
		byName := map[string][]otlptest.Span{}
		list := collector.Spans()
		slices.SortFunc(list, func(a, b otlptest.Span) int { return cmp.Compare(a.Begin, b.Begin) })
		for _, s := range list {
			byName[s.Name] = append(byName[s.Name], s)
			if s.Trace != clientTrace || s.Service != "front" || s.Begin > s.End || s.Failed != "" {
				t.Errorf("%+v", s)
			}
		}
		const request = "POST /v1/completions"
		for name, parent := range map[string]string{request: "", "tokens": request, "lookup": request, "choice": request, "engine": request, "prefill": "engine", "decode": "engine"} {
			if len(byName[name]) != 2 {
				t.Fatalf("%d spans %s: %+v", len(byName[name]), name, byName)
			}
			for i, s := range byName[name] {
				if want := clientSpan; parent == "" && s.Parent != want || parent != "" && s.Parent != byName[parent][i].ID {
					t.Errorf("%s is within %s", name, s.Parent)
				}
			}
		}
		first, second := byName[request][0], byName[request][1]
		if first.Kind != "SPAN_KIND_SERVER" || byName["engine"][0].Kind != "SPAN_KIND_CLIENT" {
			t.Errorf("%s and %s", first.Kind, byName["engine"][0].Kind)
		}
		want := map[string]string{
			"kvatlas.worker_id": first.Is["kvatlas.worker_id"], "kvatlas.dp_rank": "0", "kvatlas.prompt_tokens": second.Is["kvatlas.prompt_tokens"], "kvatlas.outcome": "ok",
			"http.response.status_code": "200", "gen_ai.request.model": "m", "kvatlas.request_id": "its-name", "kvatlas.attempts": "1", "gen_ai.usage.output_tokens": "4",
		}
		for key, value := range want {
			if second.Is[key] != value || value == "" {
				t.Errorf("%s is %q, want %q", key, second.Is[key], value)
			}
		}
		for _, key := range []string{"kvatlas.reachable_tokens", "kvatlas.selected_tokens", "kvatlas.actual_tokens"} {
			if first.Is[key] != "0" || len(second.Is[key]) < 2 {
				t.Errorf("%s: %q, then %q", key, first.Is[key], second.Is[key])
			}
		}
		if c := byName["choice"][1].Is; c["kvatlas.selected_tokens"] == "0" || c["kvatlas.worker_id"] == "" || c["kvatlas.decision_id"] == "" {
			t.Errorf("choice: %v", c)
		}
		asked := p.of("/v1/completions")
		for i, id := range []string{byName["engine"][0].ID, byName["engine"][1].ID} {
			if asked[i] != "00-"+clientTrace+"-"+id+"-01 of=client" {
				t.Errorf("the engine was asked within %s, want %s", asked[i], id)
			}
		}
		if last := asked[2]; !strings.HasPrefix(last, "00-"+clientTrace) || !strings.HasSuffix(last, "-00 of=client") {
			t.Errorf("what is not recorded: %s", last)
		}
		if raw := collector.Raw(); slices.ContainsFunc([]string{"prompt of some", "not to be", mockapi.Text(mockapi.Tokens(said), 4)}, func(text string) bool { return strings.Contains(string(raw), text) }) {
			t.Error("what was said is in the spans")
		}
	}
}

// Without an endpoint nothing is recorded, and what the client says is passed on as it came.
func TestWithoutSpans(t *testing.T) {
	collector := otlptest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	p := &parents{by: map[string][]string{}}
	url, stop := start(t, "--nats=none", "--kv-events=false", "--engines="+p.engine(t, mockapi.Config{}), "--model=m", "--block-size=4")
	askTraced(t, url, clientParent, `{"model":"m","max_tokens":4,"prompt":"x"}`)
	stop()
	if got := p.of("/v1/completions"); len(got) != 1 || got[0] != clientParent+" of=client" || len(collector.Spans()) > 0 {
		t.Errorf("%v, %v", got, collector.Spans())
	}
}

// A collector that never answers keeps neither requests nor the end from their course; and
// what a variable says that cannot be is refused.
func TestSpansWithoutCollector(t *testing.T) {
	hung := make(chan struct{})
	deaf := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	defer deaf.Close()
	defer close(hung)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", deaf.URL+"/v1/traces")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000") // ms: the end is not by that
	url, stop := start(t, "--nats=none", "--kv-events=false", "--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4", "--stop-timeout=1s")
	askTraced(t, url, clientParent, `{"model":"m","max_tokens":4,"prompt":"x"}`)
	waittest.Ends(t, "a router whose collector never answers", stop)
	for name, value := range map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_TRACES_EXPORTER": "zipkin"} {
		t.Setenv(name, value)
		c, err := read(t, "--nats=none", "--kv-events=false")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		// The endpoint is not repeated: there may be a password in it.
		quoted := name != "OTEL_EXPORTER_OTLP_ENDPOINT"
		if err := run(ctx, c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), value) != quoted {
			t.Errorf("%s: %v", name, err)
		}
		t.Setenv(name, "")
	}
}
