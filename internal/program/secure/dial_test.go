package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// A server that takes connections and says nothing holds none of them for ever: http.Transport dials on when the
// request that wanted one has ended.
func TestHandshakesEnd(t *testing.T) {
	own, err := Dial{CA: securetest.New(t).File}.Open(slog.New(slog.DiscardHandler), "engine")
	if err != nil {
		t.Fatal(err)
	}
	for name, with := range map[string]*reload.Value[tls.Config]{"the usual": nil, "own authorities": own} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan struct{})
				dial := Dialer(func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						defer close(ended)
						_, _ = io.Copy(io.Discard, theirs) // to its end
					}()
					return ours, nil
				})
				transport := new(http.Transport)
				dial.Into(transport, with)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://engine/", nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp, err := transport.RoundTrip(req); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(resp, err)
				}
				select {
				case <-ended:
				case <-time.After(time.Hour):
					t.Error("the connection is there for ever")
				}
			})
		})
	}
}
