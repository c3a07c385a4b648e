package traces

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

type grpcReceiver struct {
	collector.UnimplementedTraceServiceServer
	names chan string
}

func (r *grpcReceiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range q.GetResourceSpans() {
		for _, s := range of.GetScopeSpans() {
			for _, s := range s.GetSpans() {
				r.names <- s.GetName()
			}
		}
	}
	return new(collector.ExportTraceServiceResponse), nil
}

// Spans go by gRPC, too; and what is sent and what is not is counted.
func TestGRPC(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &grpcReceiver{names: make(chan string, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(ln) }() // ends with Stop
	defer server.Stop()
	for _, url := range []string{"http://" + ln.Addr().String(), "http://127.0.0.1:1"} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "500") // ms
		s, err := Open(t.Context(), "p", os.Getenv, slog.New(slog.DiscardHandler), obs.NewSet())
		if err != nil {
			t.Fatal(err)
		}
		_, one := s.Tracer().Start(t.Context(), "one")
		one.End()
		ctx, cancel := context.WithTimeout(t.Context(), 8*flushWithin/5) // of which the sending has a part
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		sent, failed := s.to.sent.Get(), s.to.failed.Get()
		if good := url[len("http://"):] == ln.Addr().String(); s.to.ended.Get() != 1 || good != (sent == 1) || good == (failed == 1) {
			t.Errorf("%s: %d ended, %d sent, %d failed", url, s.to.ended.Get(), sent, failed)
		}
	}
	if name := <-r.names; name != "one" {
		t.Error(name)
	}
}

// Nothing is sent unless the environment says where to.
func TestOff(t *testing.T) {
	for _, env := range []map[string]string{
		{}, {"OTEL_SERVICE_NAME": "x"}, {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
		{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"},
	} {
		s, err := Open(t.Context(), "p", func(name string) string { return env[name] }, nil, nil)
		if s != nil || err != nil || s.Tracer() != nil || s.Close(t.Context()) != nil {
			t.Errorf("%v: %v, %v", env, s, err)
		}
	}
}

// A value that cannot be read is refused, with no credentials in the error: the SDK goes on
// without it, and writes it to stderr.
func TestWrongValues(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":         "Bearer s3cret",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS":  "authorization=s3cret%zz",
		"OTEL_EXPORTER_OTLP_ENDPOINT":        "user:s3cret@collector:4318",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:s3cret@coll ector",
		"OTEL_EXPORTER_OTLP_TIMEOUT":         "soon",
		"OTEL_EXPORTER_OTLP_CERTIFICATE":     "/there/is/none.pem",
		"OTEL_TRACES_SAMPLER":                "some",
	} {
		for _, protocol := range []string{protocolHTTP, protocolGRPC} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
				t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
				t.Setenv(name, value)
				s, err := Open(t.Context(), "p", os.Getenv, slog.New(slog.DiscardHandler), obs.NewSet())
				if err == nil || !strings.Contains(err.Error(), "OTEL_") || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("refused with %v", err)
				}
				_ = s.Close(t.Context())
			})
		}
	}
}
