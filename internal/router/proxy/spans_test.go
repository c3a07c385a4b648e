package proxy

import (
	"net/http"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route"
)

// recorder has a lab's proxy record all spans.
func recorder(t *testing.T) (*tracetest.SpanRecorder, func(c *Config)) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	p := sdk.NewTracerProvider(sdk.WithSpanProcessor(r))
	t.Cleanup(func() { _ = p.Shutdown(t.Context()) })
	return r, func(c *Config) { c.Tracer = p.Tracer(spans.Scope) }
}

// Where two engines do a request's parts, each is asked within the span of its part, and
// both spans are the request's.
func TestSpansOfPair(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		recorded, trace := recorder(t)
		l := pools(t, way, nil, trace)
		if status, text, _ := l.post("/v1/completions", `{"max_tokens":5,"prompt":"a prompt of some length","model":"org/model"}`); status != http.StatusOK {
			t.Fatal(status, text)
		}
		l.idle()
		at := map[string]sdk.ReadOnlySpan{}
		for _, s := range recorded.Ended() {
			at[s.Name()] = s
		}
		var heads []http.Header
		for _, e := range l.engines {
			if len(e.seen) > 0 {
				heads = append(heads, <-e.seen)
			}
		}
		for i, name := range []string{"prefill", "decode"} { // as the first engines are for prefill
			s, request := at[name], at["POST /v1/completions"]
			if s == nil || request == nil || len(heads) != 2 {
				t.Fatalf("%s: %v, %d engines asked", way, at, len(heads))
			}
			if s.Parent().SpanID() != request.SpanContext().SpanID() {
				t.Errorf("%s: the parent of %s is %v", way, name, s.Parent())
			}
			if got, want := heads[i].Get("Traceparent"), "00-"+s.SpanContext().TraceID().String()+"-"+s.SpanContext().SpanID().String()+"-01"; got != want {
				t.Errorf("%s: %s was asked within %s, want %s", way, name, got, want)
			}
		}
	}
}

// Without a tracer a request's spans cost no memory.
func TestSpansThatAreNotKept(t *testing.T) {
	q, r := new(call), new(http.Request)
	r = r.WithContext(t.Context())
	p := new(Proxy)
	pair := new(route.Pair)
	if n := testing.AllocsPerRun(100, func() {
		if p.traced(r, q) != r {
			t.Fatal("another request")
		}
		ctx, s := spans.Start(r.Context(), "tokens")
		s.End()
		q.traceChoice(pair)
		ctx, a := askEngine(ctx, 0, &pair.Decode)
		spans.Inject(ctx, http.Header(nil))
		a.end(q, nil)
		q.endTrace()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
