package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Setting is the name of the one that says where.
const Setting = "admin-listen"

// Settings holds the settings of a Server.
type Settings struct {
	Listen string // host:port; empty: no such port
	Probes string // likewise, of a port for probes beside it
	Usual  string // what Listen is unless told, and then gives way; empty if it was told
}

// Declare adds the settings to the set. usual is the address unless told.
func (c *Settings) Declare(set *conf.Set, usual string) {
	c.Usual = usual
	set.Group("Admin")
	set.String(&c.Listen, Setting, usual, `Address of the admin port, as host:port: metrics, readiness, profiles, settings. Empty: none. Port 0 takes
		a free one, which the log names; so does the usual one where it is taken.`)
	set.String(&c.Probes, ProbesSetting, "", `Address of a port that answers GET of /livez and /readyz and nothing else, without TLS, tokens or reasons: for
		probes that have no certificate of --tls-client-ca. Needs the admin port. Empty: none.`)
	set.Check(func() error {
		if set.Source(Setting) != "default" {
			c.Usual = ""
		}
		if c.Probes != "" && c.Listen == "" {
			return errors.New("--" + ProbesSetting + " needs --" + Setting)
		}
		return nil
	})
}

// Deps is what a Server shows.
type Deps struct {
	Access   *secure.Access
	Metrics  *obs.Metrics
	Settings *conf.Set
	Level    *slog.LevelVar // of the log
	Health   *edge.Health
	// Index answers all other paths, and says itself who may ask; nil: there is
	// nothing.
	Index http.Handler
	// Console is at /, where it has a path that no route has; nil: there is none.
	Console Pages
	Log     *slog.Logger
}

// Pages are edge.Pages that know their paths.
type Pages interface {
	edge.Pages
	Has(path string) bool
}

// Server is the admin port.
type Server struct {
	deps Deps
	mux  *http.ServeMux
	http *http.Server
	ln   net.Listener
	done chan struct{}

	probes *probes // nil: none
}

// Start serves the port until Close. It returns nil if there is to be none.
func Start(ctx context.Context, c Settings, d Deps) (*Server, error) {
	if c.Listen == "" {
		return nil, nil
	}
	ln, err := d.Access.Listen(ctx, c.Listen, Setting)
	if errors.Is(err, syscall.EADDRINUSE) && c.Listen == c.Usual {
		d.Log.Info("the admin port is taken; using a free one", "taken", c.Listen)
		ln, err = d.Access.Listen(ctx, "127.0.0.1:0", Setting)
	}
	if err != nil {
		return nil, err
	}
	s := &Server{deps: d, mux: http.NewServeMux(), ln: ln, done: make(chan struct{})}
	if s.probes, err = startProbes(ctx, c.Probes, &d); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	for _, r := range routes() {
		h := d.Access.Guard(r.needs, s.handler(r))
		if r.needs != secure.Anybody { // probes may come by any name
			h = s.guard(h)
		}
		s.mux.Handle(r.pattern(), h)
	}
	if d.Index != nil || d.Console != nil {
		s.mux.Handle("/", s.guard(s.rest()))
	}
	s.http = &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug), // no WriteTimeout: profiles take their time
	}
	go func() { // ends with Close
		defer close(s.done)
		if err := s.http.Serve(d.Access.TLS(ln)); !errors.Is(err, http.ErrServerClosed) {
			d.Log.Error("the admin port is closed", "error", err)
		}
	}()
	d.Log.Info("admin port", "address", ln.Addr().String())
	return s, nil
}

// rest answers what is no route of the port itself.
func (s *Server) rest() http.Handler {
	index := s.deps.Index
	if index == nil {
		index = http.NotFoundHandler()
	}
	if s.deps.Console == nil {
		return index
	}
	pages := edge.ServePages(s.deps.Console, s.deps.Access, "/")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.deps.Console.Has(strings.TrimPrefix(r.URL.EscapedPath(), "/")) {
			pages.ServeHTTP(w, r)
			return
		}
		index.ServeHTTP(w, r)
	})
}

// Address returns where it listens.
func (s *Server) Address() string { return s.ln.Addr().String() }

// Close ends it at once: whoever takes a profile gets part of one. A nil
// Server is closed.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	err := errors.Join(s.http.Close(), s.probes.close())
	<-s.done
	return err
}
