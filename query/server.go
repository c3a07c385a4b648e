package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/shard"
)

// Deps is what a Server needs from the rest of the program.
type Deps struct {
	Index Index
	// Registry returns what knows the workers that are registered, and takes
	// registrations over HTTP; nil while it does not know them yet. Without it
	// there are no such routes.
	Registry func() Registry
	// Streams returns how the reading of events stands, of every rank that
	// publishes; nil: nothing is read.
	Streams func() []Stream
	// At says how far events are read; nil: dumps do not say it.
	At At
	// Access says who may ask; nil: everybody, on loopback.
	Access  *secure.Access
	Log     *slog.Logger // nil: slog.Default()
	Metrics *obs.Metrics // nil: those of this Server alone
	Tracer  trace.Tracer // nil: no spans
	Checks  []edge.Check // conditions of readiness
	// Progress says how far the program's start is; nil: nobody does.
	Progress func() startup.Report
	// Behind says why the index is not to be asked; "" if it is. While it says
	// something requests are refused; nil: they are answered as far as it knows.
	Behind func() string
	// Share is the part of the fleet that the Index has, which answers name.
	Share stream.Share
	// Shares are asked instead of Index; nil: there are none.
	Shares *shares.Shares
	// Stale returns the ranks of which the Index lacks events; nil: none are known.
	Stale func() map[event.Space]map[shard.RankID]bool
}

// SetConsole has the server answer below /console/ with the pages, unless p is nil. It is
// called before Serve.
func (s *Server) SetConsole(p edge.Pages) { s.console = p }

// Server answers queries over HTTP.
type Server struct {
	cfg     Config
	deps    Deps
	whole   atomic.Pointer[view]
	dumps   *dumps
	table   *table
	inflate *inflater
	hosts   *secure.Names
	limit   *obs.Limited
	obs     *observer
	about   edge.About
	http    *fasthttp.Server
	finds   sync.Pool // of *finder

	gate gate

	console edge.Pages // nil: there is none

	mu struct {
		sync.Mutex
		listeners []*secure.Limited // that Serve was called with
		down      bool              // Shutdown was called
	}
}

// maxKept is how many elements of scratch memory a finder keeps for the next
// request; larger ones are left to the garbage collector.
const maxKept = 1 << 16

// New returns a Server that is not serving yet. Without any settings it has those
// that Declare gives.
func New(cfg Config, d Deps) (*Server, error) {
	if cfg == (Config{}) {
		cfg.Declare(conf.New("", ""))
	}
	inflate, err := newInflater(cfg.MaxDecompressed)
	if err != nil {
		return nil, err
	}
	if d.Index == nil && d.Shares == nil {
		return nil, errors.New("query: no index given")
	}
	d.Access, d.Log = cmp.Or(d.Access, new(secure.Access)), cmp.Or(d.Log, slog.Default())
	if d.Metrics == nil {
		d.Metrics = obs.NewMetrics()
	}
	t := newTable()
	s := &Server{
		cfg: cfg, deps: d, dumps: newDumps(d.Metrics), table: t, inflate: inflate, hosts: d.Access.Names(cfg.Listen),
		limit: obs.NewLimited(d.Log, time.Second, nil),
		obs:   newObserver(d.Metrics, t),
		about: edge.About{Health: &edge.Health{Checks: d.Checks, Progress: d.Progress}, Metrics: d.Metrics},
		gate:  gate{behind: d.Behind},
	}
	s.about.OpenAPI = s.openAPI
	s.finds.New = func() any { return new(finder) }
	s.http = &fasthttp.Server{
		Handler:      s.handle,
		ErrorHandler: s.handleBroken,

		MaxRequestBodySize: int(cfg.MaxBody),
		ReadBufferSize:     int(cfg.MaxHeader),
		ReadTimeout:        cfg.ReadTimeout,
		WriteTimeout:       cfg.WriteTimeout,
		IdleTimeout:        cfg.IdleTimeout,
		Concurrency:        2 * cfg.MaxConnections, // the listener's limit is the smaller one
		MaxRequestsPerConn: cfg.MaxRequestsPerConn,

		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true, // no route takes forms, whose parts go to files
		NoDefaultServerHeader:        true,
		SecureErrorLogMessage:        true, // headers hold tokens
		Logger:                       httpLog{s.limit},
	}
	d.Metrics.Gauge("kvatlas_http_connections", "Open connections.", func() float64 { return float64(s.connections()) })
	return s, nil
}

// connections returns how many connections count against the limit.
func (s *Server) connections() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ln := range s.mu.listeners {
		n += ln.Connections()
	}
	return n
}

// Listen opens the listener of the configured address.
func (s *Server) Listen(ctx context.Context) (net.Listener, error) {
	return s.deps.Access.Listen(ctx, s.cfg.Listen, "http-listen")
}

// Serve answers requests from ln until Shutdown, which makes it return nil.
func (s *Server) Serve(ln net.Listener) error {
	return s.serve(ln, func(ln net.Listener) net.Listener { return s.deps.Access.TLS(ln) })
}

// serve does so; wrap is for what the limits have let in.
func (s *Server) serve(ln net.Listener, wrap func(net.Listener) net.Listener) error {
	limited := s.limited(ln)
	s.mu.Lock()
	s.mu.listeners = append(s.mu.listeners, limited)
	down := s.mu.down
	s.mu.Unlock()
	if down { // Shutdown came first
		return limited.Close()
	}
	if err := s.http.Serve(wrap(limited)); err != nil {
		return fmt.Errorf("serving HTTP on %s: %w", ln.Addr(), err)
	}
	return nil
}

// Drain makes /readyz fail from now on, so that load balancers send new
// requests elsewhere, while requests are still answered; each answer closes its
// connection.
func (s *Server) Drain() { s.about.Health.Drain() }

// Shutdown stops accepting connections, waits until the requests under way are
// answered and closes the connections. If ctx ends first it returns an error,
// and connections may still be open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.mu.Lock()
	s.mu.down = true
	listeners := s.mu.listeners
	s.mu.Unlock()
	defer func() {
		// A listener that Serve was about to serve is not yet fasthttp's to close.
		for _, ln := range listeners {
			_ = ln.Close()
		}
	}()
	if err := s.http.ShutdownWithContext(ctx); err != nil {
		return fmt.Errorf("closing HTTP: %d connections still open: %w", s.http.GetOpenConnectionsCount(), err)
	}
	return nil
}

// handleBroken answers what fasthttp could not read as a request. fasthttp
// closes the connection after it.
func (s *Server) handleBroken(ctx *fasthttp.RequestCtx, err error) {
	p := edge.Refuse(fasthttp.StatusBadRequest, "request", edge.MalformedRequest, "not a well-formed HTTP/1.1 request")
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = s.bodyTooLarge()
	case errors.As(err, &small):
		p = edge.Refuse(fasthttp.StatusRequestHeaderFieldsTooLarge, "header", edge.HeaderTooLarge,
			fmt.Sprintf("request line and headers are larger than %d bytes (--http-max-header)", s.cfg.MaxHeader))
	case errors.As(err, &timeout) && timeout.Timeout():
		p = edge.Refuse(fasthttp.StatusRequestTimeout, "request", edge.Timeout,
			fmt.Sprintf("the request did not arrive within %v (--http-read-timeout)", s.cfg.ReadTimeout))
	}
	s.setRequestID(ctx)
	// fasthttp's own is the last answer's, or the TLS handshake's, and over where a request was waited for.
	_ = ctx.Conn().SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout)) // else the write fails
	s.refuse(ctx, s.table.none(), p)
	s.obs.answered(s.table.none(), p.Status, 0)
}

func (s *Server) bodyTooLarge() *edge.Problem {
	return edge.Refuse(fasthttp.StatusRequestEntityTooLarge, "body", edge.BodyTooLarge,
		fmt.Sprintf("the body is larger than %d bytes (--http-max-body)", s.cfg.MaxBody))
}

// httpLog passes what fasthttp itself has to say to the log, once a second at
// most.
type httpLog struct{ log *obs.Limited }

func (l httpLog) Printf(format string, args ...any) {
	l.log.Warn("fasthttp", "HTTP server: "+fmt.Sprintf(format, args...))
}
