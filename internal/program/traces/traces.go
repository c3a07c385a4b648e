package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/spans"
)

// Sender sends spans. A nil one does nothing.
type Sender struct {
	provider *sdk.TracerProvider
	to       *counted
}

// The transports of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// Open returns what sends the spans of a program, as the environment says; nil if it names
// no endpoint. The error says which variable is wrong.
func Open(ctx context.Context, program string, getenv func(string) string, log *slog.Logger, m *obs.Metrics) (*Sender, error) {
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return nil, nil //nolint:nilnil // it is none
	}
	switch kind := getenv("OTEL_TRACES_EXPORTER"); kind {
	case "", "otlp":
	case "none":
		return nil, nil //nolint:nilnil // it is none
	default:
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not known; give otlp or none", kind)
	}
	named := false
	for _, name := range [...]string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		text := getenv(name)
		if text == "" {
			continue
		}
		named = true
		if u, err := url.Parse(text); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			// Not the text, which may have a password.
			return nil, fmt.Errorf("%s is no URL of a collector; give one such as http://localhost:4318", name)
		}
	}
	if !named {
		return nil, nil //nolint:nilnil // it is none
	}
	var bad complaints
	otel.SetLogger(logr.New(&bad))
	otel.SetErrorHandler(&bad)
	var to sdk.SpanExporter
	var err error
	switch protocol := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), protocolHTTP); protocol {
	case protocolHTTP:
		to, err = otlptracehttp.New(ctx)
	case protocolGRPC:
		to, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is not known; give %s or %s", protocol, protocolHTTP, protocolGRPC)
	}
	if err != nil {
		return nil, fmt.Errorf("sending spans: %w", err)
	}
	of, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(program), semconv.ServiceVersion(obs.ReadVersion().String())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // which has the last word
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("sending spans: %w", err)
	}
	c := newCounted(to, log, m)
	provider := sdk.NewTracerProvider(sdk.WithResource(of), sdk.WithSpanProcessor(ended{c.ended, sdk.NewBatchSpanProcessor(c)}))
	if err := bad.err(); err != nil {
		_ = provider.Shutdown(ctx) // it has sent nothing
		return nil, fmt.Errorf("sending spans: a variable OTEL_… has no value that it may have: %w", err)
	}
	// Here, as the SDK has one for all: of answers that a collector takes in part only.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(c.complain))
	return &Sender{provider, c}, nil
}

// Tracer returns what makes spans; nil if they are not sent.
func (s *Sender) Tracer() trace.Tracer {
	if s == nil {
		return nil
	}
	return s.provider.Tracer(spans.Scope)
}

// flushWithin bounds the sending of the last spans: a collector that is gone keeps no
// program from its end.
const flushWithin = 5 * time.Second

// Close sends what is left, if there is somebody to take it. It returns nil: that spans are
// lost is said, and is no failure of the program.
func (s *Sender) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	within := flushWithin
	if until, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(until)/4) // the rest is for what comes after
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := s.provider.Shutdown(ctx); err != nil {
		s.to.complain(err)
	}
	return nil
}

// counted is an exporter that counts, and says what goes wrong.
type counted struct {
	sdk.SpanExporter
	limit               *obs.Limited
	ended, sent, failed *metrics.Counter
}

func newCounted(to sdk.SpanExporter, log *slog.Logger, m *obs.Metrics) *counted {
	const family, help = "kvatlas_trace_spans_total", "Spans, by outcome: ended, and of these sent to the collector, or failed to be. Those of neither wait, or found the queue full and were dropped."
	return &counted{
		SpanExporter: to, limit: obs.NewLimited(log, time.Second, nil),
		ended: m.Counter(family, help, "outcome", "ended"), sent: m.Counter(family, help, "outcome", "sent"), failed: m.Counter(family, help, "outcome", "failed"),
	}
}

func (c *counted) complain(err error) {
	c.limit.Warn("spans", "spans were not sent; see OTEL_EXPORTER_OTLP_ENDPOINT", slog.Any("error", err))
}

// ExportSpans implements sdk.SpanExporter. What went wrong is said and counted here.
func (c *counted) ExportSpans(ctx context.Context, list []sdk.ReadOnlySpan) error {
	if err := c.SpanExporter.ExportSpans(ctx, list); err != nil {
		c.failed.Add(len(list))
		c.complain(err)
		return nil
	}
	c.sent.Add(len(list))
	return nil
}

// ended counts the spans that are to be sent.
type ended struct {
	count *metrics.Counter
	sdk.SpanProcessor
}

// OnEnd implements sdk.SpanProcessor.
func (e ended) OnEnd(s sdk.ReadOnlySpan) {
	e.count.Inc()
	e.SpanProcessor.OnEnd(s)
}
