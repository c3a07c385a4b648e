package picker

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
)

// script is a gateway that says what it has to say at once, and then ends the stream.
type script struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc // nil: it has no more to say; else it resets the stream
	says   []*extproc.Request
	picked chan struct{} // closed once it was told where the request goes
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) SendMsg(m any) error {
	if m.(*extproc.Response).Kind == extproc.RequestHeaders { //nolint:forcetypeassert // nothing else is sent
		close(s.picked)
	}
	return nil
}

func (s *script) RecvMsg(m any) error {
	if len(s.says) == 0 {
		if s.cancel == nil {
			return io.EOF
		}
		s.cancel()
		return status.Error(codes.Canceled, "reset")
	}
	if s.says[0].Kind != extproc.RequestHeaders {
		<-s.picked
	}
	*m.(*extproc.Request) = *s.says[0] //nolint:forcetypeassert // nothing else is received
	s.says = s.says[1:]
	return nil
}

// An answer that came whole is no client's going, however slow the handler is in reading it and
// however the gateway ends the stream. One that was cut is.
func TestEndsBeforeItsHandler(t *testing.T) {
	head := &extproc.Request{Kind: extproc.RequestHeaders, End: true, Headers: []extproc.Header{{Name: ":method", Value: "GET"}, {Name: ":path", Value: "/v1/models"}}}
	answer := &extproc.Request{Kind: extproc.ResponseHeaders, Headers: []extproc.Header{{Name: ":status", Value: "200"}}}
	part := &extproc.Request{Kind: extproc.ResponseBody, Body: []byte("a")}
	last := &extproc.Request{Kind: extproc.ResponseBody, Body: []byte("b"), End: true}
	unseen := *head
	unseen.HasModes, unseen.ResponseMode = true, extproc.ModeNone
	for name, c := range map[string]struct {
		says   []*extproc.Request
		resets bool
		gone   bool
	}{
		"closed":              {says: []*extproc.Request{head, answer, part, last}},
		"reset":               {says: []*extproc.Request{head, answer, part, last}, resets: true},
		"its body is unseen":  {says: []*extproc.Request{&unseen, answer}},
		"cut":                 {says: []*extproc.Request{head, answer, part}, resets: true, gone: true},
		"closed in its midst": {says: []*extproc.Request{head, answer, part}, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{cfg: Config{ReadTimeout: time.Minute}}
				gateway := &script{says: c.says, picked: make(chan struct{})}
				gateway.ctx = t.Context()
				if c.resets {
					gateway.ctx, gateway.cancel = context.WithCancel(t.Context())
				}
				s.cfg.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					resp, _, err := w.(proxy.Gateway).HandOn(r, proxy.Picked{Endpoints: []string{"10.0.0.1:8000"}})
					if err != nil {
						t.Error(err)
						return
					}
					text, err := io.ReadAll(resp.Body)
					synctest.Wait() // all that comes of the stream's end is done
					if gone := r.Context().Err() != nil; gone != c.gone || gone != (err != nil) {
						t.Errorf("%q, %v: the client is gone: %v", text, err, gone)
					}
				})
				if err := s.process(gateway); status.Code(err) != codes.OK && !c.resets {
					t.Error(err)
				}
				if s.meters.streams.Load() != 0 {
					t.Error("it is still counted")
				}
			})
		})
	}
}
