package spans

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Scope names who tells the spans.
const Scope = "github.com/kvatlas/kvatlas"

// Span is a part of a trace that is recorded. The zero value is none.
type Span struct{ of trace.Span }

// Of returns the span that ctx is within.
func Of(ctx context.Context) Span { return recorded(trace.SpanFromContext(ctx)) }

func recorded(s trace.Span) Span {
	if s.IsRecording() {
		return Span{s}
	}
	return Span{}
}

// On reports whether it is recorded. Ask before attributes are made, which costs memory.
func (s Span) On() bool { return s.of != nil }

// TraceID returns the trace's id as it is written; "" of none.
func (s Span) TraceID() string {
	if s.of == nil {
		return ""
	}
	return s.of.SpanContext().TraceID().String()
}

// Set adds what the span is to say.
func (s Span) Set(what ...attribute.KeyValue) {
	if s.of != nil {
		s.of.SetAttributes(what...)
	}
}

// Fail says that it was in vain, with why.
func (s Span) Fail(why string) {
	if s.of != nil {
		s.of.SetStatus(codes.Error, why)
	}
}

// End ends it.
func (s Span) End() {
	if s.of != nil {
		s.of.End()
	}
}

// Past tells a part of it that is over.
func (s Span) Past(name string, from, to time.Time, what ...attribute.KeyValue) {
	if s.of == nil {
		return
	}
	_, part := s.of.TracerProvider().Tracer(Scope).Start(trace.ContextWithSpan(context.Background(), s.of), name,
		trace.WithTimestamp(from), trace.WithAttributes(what...))
	part.End(trace.WithTimestamp(to))
}

// Start begins a part of the span that ctx is within. It must be ended.
func Start(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindInternal)
}

// Ask begins the part that is a request to another server, which Inject tells of it.
func Ask(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindClient)
}

func start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	whole := Of(ctx)
	if whole.of == nil {
		return ctx, whole
	}
	ctx, part := whole.of.TracerProvider().Tracer(Scope).Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, recorded(part)
}

// The headers of W3C Trace Context.
const (
	Parent = "traceparent"
	State  = "tracestate"
)

// Serve begins the span of a request that a server got at a time, within its client's if its
// headers say one. The context says of which trace it is where it is not recorded, too.
func Serve(ctx context.Context, tracer trace.Tracer, parent, state, name string, at time.Time) (context.Context, Span) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Parent: parent, State: state})
	ctx, s := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))
	return ctx, recorded(s)
}

// Header is a request's, of net/http or of fasthttp.
type Header interface {
	Set(name, value string)
	Del(name string)
}

// Inject has a request say that it is of the span that ctx is within, in place of what the
// client said. Without one it leaves it as it is.
func Inject(ctx context.Context, to Header) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	to.Del(State) // of the client, whether it is to be read or not
	said := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, said)
	for name, value := range said {
		to.Set(name, value)
	}
}

// Worker is an id as an attribute: half of them are too large for a number there.
func Worker(key string, id uint64) attribute.KeyValue {
	return attribute.String(key, strconv.FormatUint(id, 10))
}

// Says reports whether the text of a traceparent says a span.
func Says(parent string) bool {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{Parent: parent})).IsValid()
}
