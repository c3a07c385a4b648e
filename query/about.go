package query

import (
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// The routes about the process itself.

// answerLive answers GET /livez and /health.
func (s *Server) answerLive(ctx *fasthttp.RequestCtx, _ *view) *Problem {
	s.json(ctx, append(s.buffer(ctx), `{"status":"ok"}`+"\n"...))
	return nil
}

// answerReady answers GET /readyz?verbose.
func (s *Server) answerReady(ctx *fasthttp.RequestCtx, _ *view) *Problem {
	body, ready := s.health.appendReady(s.buffer(ctx), ctx.QueryArgs().Has("verbose"))
	if !ready {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
	s.json(ctx, body)
	return nil
}

// answerMetrics answers GET /metrics.
func (s *Server) answerMetrics(ctx *fasthttp.RequestCtx, _ *view) *Problem {
	ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	s.obs.metrics.WritePrometheus(ctx)
	return nil
}

// answerVersion answers GET /version.
func (s *Server) answerVersion(ctx *fasthttp.RequestCtx, _ *view) *Problem {
	v := obs.ReadVersion()
	body := append(s.buffer(ctx), `{"version":`...)
	body = appendString(body, v.Version)
	body = append(body, `,"revision":`...)
	body = appendString(body, v.Revision)
	body = append(body, `,"time":`...)
	body = appendString(body, v.Time)
	body = fmt.Appendf(body, `,"modified":%t,"go":`, v.Modified)
	body = appendString(body, v.Go)
	s.json(ctx, append(body, "}\n"...))
	return nil
}

// answerOpenAPI answers GET /openapi.yaml with the routes that there are.
func (s *Server) answerOpenAPI(ctx *fasthttp.RequestCtx, _ *view) *Problem {
	ctx.SetContentType("application/yaml")
	text := api.OpenAPI()
	if s.registry == nil {
		text = api.Without(text, func(path string) bool {
			at := s.table.find([]byte(path))
			return at != s.table.none() && s.table.all[at].needsRegistry()
		})
	}
	ctx.SetBodyString(text)
	return nil
}

func internalProblem(err error) *Problem {
	return &Problem{fasthttp.StatusInternalServerError, "request", reasonInternal, err.Error()}
}
