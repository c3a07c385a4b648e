package picker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// serving returns a stream of a Server whose requests have so long, and the Server.
func serving(t *testing.T, long time.Duration, handler http.HandlerFunc) (grpc.ClientStream, *Server) {
	t.Helper()
	s, err := New(Config{
		Handler: handler, Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler), Ready: func() bool { return true },
		MaxBody: 1 << 20, MaxHeader: 64 << 10, ReadTimeout: long, MaxInflight: 100, BusyStatus: http.StatusServiceUnavailable,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(extproc.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), s.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+extproc.Service+"/"+extproc.Process)
	if err != nil {
		t.Fatal(err)
	}
	return stream, s
}

func over(t *testing.T, s *Server) {
	t.Helper()
	waittest.Until(t, func() error {
		if n := s.meters.streams.Load(); n != 0 {
			return errors.New("a stream is still open")
		}
		return nil
	})
}

// A stream that says nothing has no more time than a request.
func TestNoHead(t *testing.T) {
	stream, s := serving(t, 50*time.Millisecond, func(http.ResponseWriter, *http.Request) { t.Error("nothing was asked") })
	if err := stream.RecvMsg(new(extproc.Response)); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if over(t, s); s.meters.faults("late").Get() != 1 {
		t.Error("it is not counted")
	}
}

// A gateway that is told no and does not care about it: nothing more is read of it.
func TestRefusedAndGoesOn(t *testing.T) {
	stream, s := serving(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	head := &extproc.Request{Kind: extproc.RequestHeaders, Headers: []extproc.Header{{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/v1/completions"}}}
	if err := stream.SendMsg(head); err != nil {
		t.Fatal(err)
	}
	var m extproc.Response
	if err := stream.RecvMsg(&m); err != nil || m.Kind != extproc.Immediate || m.Status != http.StatusForbidden {
		t.Fatal(err, m)
	}
	over(t, s)
	if err := stream.RecvMsg(new(extproc.Response)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A head of a size that HTTP refuses, too, and what is no message, are counted.
func TestNoMessage(t *testing.T) {
	stream, s := serving(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("nothing was asked") })
	head := &extproc.Request{Kind: extproc.RequestHeaders, Headers: make([]extproc.Header, 100_000)}
	if err := stream.SendMsg(head); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(extproc.Response)); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if over(t, s); s.meters.faults("message").Get() != 1 {
		t.Error("it is not counted")
	}
}

// What says nothing that is known, and what has no bytes.
func TestSaysNothing(t *testing.T) {
	head := &extproc.Request{Kind: extproc.RequestHeaders, Headers: []extproc.Header{{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/v1/completions"}}}
	t.Run("no part of an exchange", func(t *testing.T) {
		stream, s := serving(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		if err := errors.Join(stream.SendMsg(head), stream.SendMsg(new(extproc.Request))); err != nil {
			t.Fatal(err)
		}
		over(t, s)
		if err := stream.RecvMsg(new(extproc.Response)); status.Code(err) != codes.InvalidArgument || s.meters.faults("order").Get() != 1 {
			t.Error(err, "it is not counted")
		}
	})
	t.Run("many parts of a body without a byte", func(t *testing.T) {
		read := make(chan error, 1)
		stream, _ := serving(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
			_, err := bufio.NewReader(r.Body).ReadString('x')
			read <- err
		})
		if err := stream.SendMsg(head); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if err := stream.SendMsg(&extproc.Request{Kind: extproc.RequestBody, Body: []byte{}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.SendMsg(&extproc.Request{Kind: extproc.RequestBody, Body: []byte("x"), End: true}); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
	})
}
