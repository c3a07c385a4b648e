package proxy

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

// The spans of a request: tokens, queue, and for each engine that is asked one by the name
// of its part; lookup and choice are package route's. Without Config.Tracer there are none,
// and what a client says of its trace is passed on as it came.

// traced begins the request's span, within its client's.
func (p *Proxy) traced(r *http.Request, q *call) *http.Request {
	if p.cfg.Tracer == nil {
		return r
	}
	name := r.Method
	if q.split { // else the path is the client's, and there may be any number
		name += " " + r.URL.Path
	}
	ctx, s := spans.Serve(r.Context(), p.cfg.Tracer, r.Header.Get(spans.Parent), r.Header.Get(spans.State), name, q.arrival)
	if q.span = s; s.On() {
		s.Set(attribute.String("http.request.method", r.Method), attribute.String("kvatlas.request_id", q.name[0]))
		if q.split {
			s.Set(attribute.String("http.route", r.URL.Path))
		}
	}
	return r.WithContext(ctx)
}

// tracedPrompt is prompt, as a part of the trace.
func (p *Proxy) tracedPrompt(ctx context.Context, q *call) (prompt route.Prompt, known bool) {
	ctx, s := spans.Start(ctx, "tokens")
	defer s.End()
	prompt, known = p.prompt(ctx, q.m, q)
	if s.On() {
		s.Set(attribute.Int("kvatlas.prompt_tokens", prompt.Size()), attribute.Bool("kvatlas.tokens_known", known))
	}
	return prompt, known
}

// traceChoice says of the request where it goes, and what was to be found there.
func (q *call) traceChoice(pair *route.Pair) {
	if !q.span.On() {
		return
	}
	a := pair.Decode.Account
	if pair.Prefill != nil {
		a = pair.Prefill.Account
		q.span.Set(spans.Worker("kvatlas.prefill_worker_id", pair.Prefill.Worker))
	}
	q.span.Set(spans.Worker("kvatlas.worker_id", pair.Decode.Worker), attribute.Int("kvatlas.dp_rank", int(pair.Decode.DPRank)))
	q.span.Set(route.SpanFigures(&a)...)
}

// traceFound says of it what its engine found cached.
func (q *call) traceFound(a *route.Account) {
	if !q.span.On() {
		return
	}
	q.span.Set(route.SpanFigures(&a.Choice)...)
	q.span.Set(attribute.Int("kvatlas.actual_tokens", a.Actual))
	if a.Miss != account.NoMiss {
		q.span.Set(attribute.String("kvatlas.not_found", a.Miss.String()))
	}
}

// endTrace ends the request's span with what became of it.
func (q *call) endTrace() {
	if !q.span.On() {
		return
	}
	t := &q.tally
	q.span.Set(attribute.String("kvatlas.outcome", t.outcome), attribute.Int("kvatlas.attempts", t.attempts))
	if q.m != nil {
		q.span.Set(attribute.String("gen_ai.request.model", q.m.Space.Model), attribute.String("kvatlas.routing_group", q.m.Group))
	}
	if t.status > 0 {
		q.span.Set(attribute.Int("http.response.status_code", t.status))
	}
	if t.output > 0 {
		q.span.Set(attribute.Int("gen_ai.usage.output_tokens", t.output))
	}
	if t.outcome != "ok" && (t.status == 0 || t.status == http.StatusOK || t.status >= 500) { // else it is its client's fault
		q.span.Fail(t.outcome)
	}
	q.span.End()
}

// asked is the span of a request to an engine.
type asked struct {
	spans.Span
	whole bool // one engine does both parts
	since time.Time
}

// askEngine begins it.
func askEngine(ctx context.Context, stage route.Stage, best *route.Answer) (context.Context, asked) {
	name := "engine"
	if stage != route.Whole {
		name = stage.String()
	}
	ctx, s := spans.Ask(ctx, name)
	a := asked{Span: s, whole: stage == route.Whole}
	if s.On() {
		a.since = time.Now()
		s.Set(spans.Worker("kvatlas.worker_id", best.Worker), attribute.Int("kvatlas.dp_rank", int(best.DPRank)))
	}
	return ctx, a
}

// end ends it with the answer's end, or with why there was none to pass on. Where one engine
// does both parts, the first token divides them.
func (a asked) end(q *call, no *failure) {
	if !a.On() {
		return
	}
	switch first := q.tally.first; {
	case no != nil:
		a.fail(no)
	case first > 0:
		began, ended := q.arrival.Add(first), time.Now()
		a.Set(attribute.Float64("kvatlas.first_token_ms", float64(began.Sub(a.since))/float64(time.Millisecond)))
		if a.whole {
			a.Past(route.PrefillStage.String(), a.since, began)
			a.Past(route.DecodeStage.String(), began, ended)
		}
	}
	if no == nil && q.tally.outcome != "ok" {
		a.Fail(q.tally.outcome)
	}
	a.End()
}

// fail says why another engine is asked, or that none is.
func (a asked) fail(no *failure) {
	switch {
	case no.retry != "":
		a.Fail(no.retry)
	case no.refusal != nil:
		a.Fail(no.reason)
	}
}

// endPrefill ends that of a prefill worker.
func (a asked) endPrefill(err error) {
	if err != nil {
		a.Fail("prefill_failed") // the reason may have the engine's address in it: it is in the log
	}
	a.End()
}
