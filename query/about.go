package query

import (
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// answerAbout answers GET of what the process says of itself.
func (s *Server) answerAbout(ctx *fasthttp.RequestCtx, _ *view) *edge.Problem {
	// Documents stand at /v1/ too, for ports with one of their own.
	path := strings.TrimPrefix(string(ctx.Path()), "/v1")
	status, kind, body := s.about.Answer(path, ctx.QueryArgs().Has("verbose"))
	ctx.SetStatusCode(status)
	ctx.SetContentType(kind)
	ctx.Response.SetBodyRaw(body)
	return nil
}

// openAPI returns the document, with the routes that there are.
func (s *Server) openAPI() string {
	if s.deps.Registry != nil {
		return api.OpenAPI()
	}
	return api.Without(api.OpenAPI(), func(path string) bool {
		at := s.table.find([]byte(path))
		return at != s.table.none() && s.table.all[at].needsRegistry()
	})
}

// Health returns what readiness is answered by.
func (s *Server) Health() *edge.Health { return s.about.Health }
