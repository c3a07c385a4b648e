package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/conf"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/internal/secure"
)

// Settings holds the settings of a Server.
type Settings struct {
	Listen string

	usual string // what Listen is unless told
}

// Declare adds the settings to the set. usual is the address unless told.
func (c *Settings) Declare(set *conf.Set, usual string) {
	c.usual = usual
	set.Group("Admin")
	set.String(&c.Listen, "admin-listen", usual, `Address of the admin port, as host:port: metrics, profiles, settings. Empty: none.
		Where the address is not given and its port is taken, a free one is, which the log names.`)
}

// Deps is what a Server shows.
type Deps struct {
	Access   *secure.Access
	Metrics  *obs.Metrics
	Settings *conf.Set
	Level    *slog.LevelVar // of the log
	// Ready returns the readiness as JSON, with its reasons if verbose.
	Ready func(verbose bool) (body []byte, ready bool)
	Log   *slog.Logger
}

// Server is the admin port.
type Server struct {
	deps Deps
	mux  *http.ServeMux
	http *http.Server
	ln   net.Listener
	done chan struct{}
}

// Start serves the port until Close. It returns nil if there is to be none.
func Start(ctx context.Context, c Settings, d Deps) (*Server, error) {
	if c.Listen == "" {
		return nil, nil
	}
	ln, err := d.Access.Listen(ctx, c.Listen, "admin-listen")
	if errors.Is(err, syscall.EADDRINUSE) && c.Listen == c.usual {
		d.Log.Info("the admin port is taken; using a free one", "taken", c.Listen)
		ln, err = d.Access.Listen(ctx, "127.0.0.1:0", "admin-listen")
	}
	if err != nil {
		return nil, err
	}
	s := &Server{deps: d, mux: http.NewServeMux(), ln: ln, done: make(chan struct{})}
	s.routes()
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

// Address returns where it listens.
func (s *Server) Address() string { return s.ln.Addr().String() }

// Handle adds a route, as of http.ServeMux, for callers of the role.
func (s *Server) Handle(pattern string, needs secure.Role, h http.HandlerFunc) {
	s.mux.Handle(pattern, s.deps.Access.Guard(needs, h))
}

// Close ends it at once: whoever takes a profile gets part of one. A nil
// Server is closed.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	err := s.http.Close()
	<-s.done
	return err
}

func (s *Server) routes() {
	s.Handle("GET /livez", secure.Anybody, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, []byte(`{"status":"ok"}`+"\n")) })
	s.Handle("GET /readyz", secure.Anybody, s.ready)
	s.Handle("GET /version", secure.Anybody, func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, 200, obs.ReadVersion()) })
	s.Handle("GET /metrics", secure.Reader, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.deps.Metrics.WritePrometheus(w)
	})
	s.Handle("GET /config", secure.Operator, s.config)
	s.Handle("GET /log_level", secure.Operator, s.logLevel)
	s.Handle("PUT /log_level", secure.Operator, s.setLogLevel)
	s.Handle("/debug/pprof/", secure.Operator, pprof.Index)
	s.Handle("/debug/pprof/cmdline", secure.Operator, pprof.Cmdline)
	s.Handle("/debug/pprof/profile", secure.Operator, pprof.Profile)
	s.Handle("/debug/pprof/symbol", secure.Operator, pprof.Symbol)
	s.Handle("/debug/pprof/trace", secure.Operator, pprof.Trace)
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	body, ready := s.deps.Ready(r.URL.Query().Has("verbose"))
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, body)
}

// config answers with the settings in force and where each is from, as the
// command config print does.
func (s *Server) config(w http.ResponseWriter, _ *http.Request) {
	text, err := s.deps.Settings.Print()
	if err != nil {
		problem(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, text)
}

type levelBody struct {
	Level string `json:"level"`
}

func (s *Server) logLevel(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, http.StatusOK, levelBody{s.deps.Level.Level().String()})
}

func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request) {
	var b levelBody
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		problem(w, http.StatusBadRequest, fmt.Errorf("give {\"level\":\"debug\"}: %w", err))
		return
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(b.Level)); err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	s.deps.Log.Info("the log level is changed", "from", s.deps.Level.Level(), "to", level)
	s.deps.Level.Set(level)
	s.logLevel(w, r)
}

func problem(w http.ResponseWriter, status int, err error) {
	answerJSON(w, status, map[string]string{"error": err.Error()})
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // texts always have a form
		status, body = http.StatusInternalServerError, []byte(`{"error":"internal"}`)
	}
	answer(w, status, append(body, '\n'))
}

func answer(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
