package query

import (
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvatlas/kvatlas/internal/spans"
)

// A lookup is a part of the trace that its caller says, and of none if that says nothing.
func TestSpanOfALookup(t *testing.T) {
	recorded := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorded))
	s := serveDeps(t, testConfig(t), Deps{Index: twoSpaces(), Tracer: provider.Tracer(spans.Scope)})
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`)
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`, "traceparent", "not one")
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`, "traceparent", "00-"+trace+"-"+parent+"-01")
	s.do(t, "POST", "/v1/find_matches", `{"model":"x","hashes":[1,2]}`, "traceparent", "00-"+trace+"-"+parent+"-01")
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`, "traceparent", "00-"+trace+"-"+parent+"-00") // not to be recorded
	list := recorded.Ended()
	if len(list) != 2 {
		t.Fatalf("%d spans", len(list))
	}
	for i, want := range []map[string]string{{"kvatlas.blocks": "4", "kvatlas.ranks": "4"}, {"error.type": "unknown_model", "http.response.status_code": "404"}} {
		s := list[i]
		if s.Name() != "find_matches" || s.SpanContext().TraceID().String() != trace || s.Parent().SpanID().String() != parent || len(s.Attributes()) != len(want) {
			t.Errorf("%s, %v in %v: %v", s.Name(), s.SpanContext(), s.Parent(), s.Attributes())
		}
		for _, a := range s.Attributes() {
			if got := a.Value.String(); got != want[string(a.Key)] {
				t.Errorf("%s: %s", a.Key, got)
			}
		}
	}
}
