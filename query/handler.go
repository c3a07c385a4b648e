package query

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"

	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// handlerConns is how many connections a Handler keeps to its server.
const handlerConns = 16

// Handler returns the routes for another server's port. Requests go through the
// process's memory to this Server, so that who may ask, limits and streamed answers
// are the same as at its own port; TLS is the other's. It ends with Shutdown.
func (s *Server) Handler() http.Handler {
	ln := fasthttputil.NewInmemoryListener()
	go func() { // ends with Shutdown
		if err := s.serve(ln, func(ln net.Listener) net.Listener { return ln }); err != nil {
			s.limit.Warn("handler", "the routes of the index are no longer answered", slog.Any("error", err))
		}
	}()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "index" },
		Transport: &http.Transport{
			DialContext:         func(context.Context, string, string) (net.Conn, error) { return ln.Dial() },
			MaxIdleConnsPerHost: handlerConns, DisableCompression: true,
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			p := edge.Refuse(http.StatusServiceUnavailable, "request", edge.NotReady, "the index is being closed")
			if large := new(http.MaxBytesError); errors.As(err, &large) {
				p = s.bodyTooLarge()
			}
			s.obs.refused(p.Reason)
			edge.Write(w, p.Status, edge.TypeJSON, p.JSON())
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Refused there, it would be so while it is on its way.
		if r.ContentLength > s.cfg.MaxBody {
			proxy.ErrorHandler(w, r, &http.MaxBytesError{Limit: s.cfg.MaxBody})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
		proxy.ServeHTTP(w, r)
	})
}
