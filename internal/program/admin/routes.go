package admin

import (
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// route is one of the port's: what it answers, and whom. GET stands for HEAD,
// too.
type route struct {
	method, path string // path as in OpenAPI
	needs        secure.Role
	answer       func(*Server, http.ResponseWriter, *http.Request)
}

// routes returns all routes. api/admin.yaml describes them; a test compares.
func routes() []route {
	return []route{
		{"GET", "/livez", secure.Anybody, (*Server).tellAbout},
		{"GET", "/readyz", secure.Anybody, (*Server).tellAbout},
		{"GET", "/version", secure.Anybody, (*Server).tellAbout},
		{"GET", "/openapi.yaml", secure.Anybody, (*Server).tellAbout},
		{"GET", "/metrics", secure.Reader, (*Server).tellAbout},
		{"GET", "/config", secure.Operator, (*Server).config},
		{"GET", "/log_level", secure.Operator, (*Server).logLevel},
		{"PUT", "/log_level", secure.Operator, (*Server).setLogLevel},
		// Without cmdline: it may hold secrets.
		{"GET", "/debug/pprof/", secure.Operator, profile(pprof.Index)},
		{"GET", "/debug/pprof/{profile}", secure.Operator, profile(pprof.Index)},
		{"GET", "/debug/pprof/profile", secure.Operator, profile(pprof.Profile)},
		{"GET", "/debug/pprof/symbol", secure.Operator, profile(pprof.Symbol)},
		{"GET", "/debug/pprof/trace", secure.Operator, profile(pprof.Trace)},
	}
}

// pattern returns the route as http.ServeMux knows it.
func (r route) pattern() string {
	if strings.HasSuffix(r.path, "/") {
		return r.method + " " + r.path + "{$}" // this path alone
	}
	return r.method + " " + r.path
}

func (s *Server) handler(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) { r.answer(s, w, req) }
}

func profile(h http.HandlerFunc) func(*Server, http.ResponseWriter, *http.Request) {
	return func(_ *Server, w http.ResponseWriter, r *http.Request) { h(w, r) }
}

func (s *Server) tellAbout(w http.ResponseWriter, r *http.Request) {
	about := edge.About{Health: s.deps.Health, Metrics: s.deps.Metrics, OpenAPI: api.Admin}
	about.ServeHTTP(w, r)
}

// config answers with the settings in force and where each is from, as the
// command config print does.
func (s *Server) config(w http.ResponseWriter, _ *http.Request) {
	text, err := s.deps.Settings.Print()
	if err != nil {
		refuse(w, edge.Failed(err))
		return
	}
	edge.Write(w, http.StatusOK, "text/plain; charset=utf-8", []byte(text))
}

func refuse(w http.ResponseWriter, p *edge.Problem) { edge.Write(w, p.Status, edge.TypeJSON, p.JSON()) }
