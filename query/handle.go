package query

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/obs"
)

const typeJSON = "application/json"

// routeOf returns the route of a path, taken as the client wrote it: no
// decoding and no "..", so that a proxy in front sees the same path.
func routeOf(path []byte) int {
	switch string(path) {
	case "/v1/find_matches":
		return routeFind
	case "/v1/workers":
		return routeWorkers
	case "/livez":
		return routeLive
	case "/readyz":
		return routeReady
	case "/metrics":
		return routeMetrics
	case "/version":
		return routeVersion
	case "/register":
		return routeRegister
	case "/unregister":
		return routeUnregister
	case "/workers":
		return routeListWorkers
	}
	return routeNone
}

// handle answers one request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	route := routeOf(ctx.URI().PathOriginal())
	s.obs.flight.Add(1)
	defer func() {
		if cause := recover(); cause != nil { // a bug; other requests go on
			s.limit.Log(slog.LevelError, "panic", "BUG: answering a request failed",
				slog.Any("cause", cause), slog.String("stack", string(debug.Stack())))
			ctx.Response.Reset()
			s.refuse(ctx, &Problem{fasthttp.StatusInternalServerError, "request", reasonInternal,
				"the server failed to answer; its log says more"})
		}
		s.obs.flight.Add(-1)
		took := time.Since(ctx.Time())
		s.obs.answered(route, ctx.Response.StatusCode(), took)
		if s.cfg.SlowQuery > 0 && took > s.cfg.SlowQuery {
			s.limit.Warn("slow", "slow request", slog.String("route", s.obs.names[route]),
				slog.Duration("took", took), slog.Int("body_bytes", len(ctx.Request.Body())),
				slog.String("request_id", string(ctx.Response.Header.Peek(headerRequestID))))
		}
	}()
	s.setRequestID(ctx)
	if s.health.draining.Load() {
		ctx.SetConnectionClose() // the client's next request goes elsewhere
	}
	if p := s.dispatch(ctx, route); p != nil {
		s.refuse(ctx, p)
	}
}

// dispatch checks what all routes have in common and answers, or says why not.
func (s *Server) dispatch(ctx *fasthttp.RequestCtx, route int) *Problem {
	if twoLengths(ctx.Request.Header.RawHeaders()) {
		ctx.SetConnectionClose() // what follows may have been meant as this body
		return &Problem{fasthttp.StatusBadRequest, "Content-Length", reasonMalformedRequest,
			"give Content-Length or Transfer-Encoding, not both"}
	}
	if route >= routeRegister && s.registry == nil {
		route = routeNone
	}
	if route == routeNone {
		return &Problem{fasthttp.StatusNotFound, "path", reasonUnknownRoute, "no such route; there are " +
			"/v1/find_matches, /v1/workers, /livez, /readyz, /metrics and /version, and with a registry " +
			"/register, /unregister and /workers"}
	}
	post := route == routeFind || route == routeRegister || route == routeUnregister
	if post != ctx.IsPost() || !post && !ctx.IsGet() && !ctx.IsHead() {
		allow := "GET, HEAD"
		if post {
			allow = "POST"
		}
		ctx.Response.Header.Set("Allow", allow)
		return &Problem{fasthttp.StatusMethodNotAllowed, "method", reasonMethod, "use " + allow + " on this route"}
	}
	switch route {
	case routeFind:
		return s.answerFind(ctx)
	case routeWorkers:
		return s.answerWorkers(ctx)
	case routeRegister:
		return s.answerRegistration(ctx, s.registry.ServeRegister)
	case routeUnregister:
		return s.answerRegistration(ctx, s.registry.ServeUnregister)
	case routeListWorkers:
		return s.answerListWorkers(ctx)
	case routeLive:
		s.json(ctx, append(s.buffer(ctx), `{"status":"ok"}`+"\n"...))
	case routeReady:
		body, ready := s.health.appendReady(s.buffer(ctx), ctx.QueryArgs().Has("verbose"))
		if !ready {
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		}
		s.json(ctx, body)
	case routeMetrics:
		ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
		s.obs.metrics.WritePrometheus(ctx)
	case routeVersion:
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
	}
	return nil
}

// twoLengths reports whether the headers say in two ways where the body ends.
// fasthttp (1.74) goes by Transfer-Encoding then and keeps the connection; a
// proxy that goes by the other lets a client smuggle a request past it (RFC
// 9112, section 6.1).
func twoLengths(headers []byte) bool {
	var length, encoding bool
	for line := range bytes.SplitSeq(headers, []byte{'\n'}) {
		name, _, _ := bytes.Cut(line, []byte{':'})
		switch len(name) {
		case len("Content-Length"):
			length = length || bytes.EqualFold(name, []byte("Content-Length"))
		case len("Transfer-Encoding"):
			encoding = encoding || bytes.EqualFold(name, []byte("Transfer-Encoding"))
		}
	}
	return length && encoding
}

// answerFind answers POST /v1/find_matches.
func (s *Server) answerFind(ctx *fasthttp.RequestCtx) *Problem {
	if p := s.checkBody(ctx); p != nil {
		return p
	}
	if p := noArguments(ctx, ""); p != nil {
		return p
	}
	q := s.finds.Get().(*finder) //nolint:forcetypeassert // the pool holds nothing else
	defer s.release(q)
	body, p := q.find(s.ix, ctx.Request.Body(), s.cfg.MaxTokens, s.buffer(ctx))
	if p != nil {
		return p
	}
	s.obs.blocks.AddInt64(q.asked)
	s.obs.ranks.AddInt64(q.listed)
	s.json(ctx, body)
	return nil
}

// checkBody refuses bodies that are not plain JSON. Clients that do not care
// about the content type (curl -d) are let in.
func (s *Server) checkBody(ctx *fasthttp.RequestCtx) *Problem {
	if e := ctx.Request.Header.ContentEncoding(); len(e) > 0 && !strings.EqualFold(string(e), "identity") {
		return &Problem{fasthttp.StatusUnsupportedMediaType, "Content-Encoding", reasonEncoding, "send the body uncompressed"}
	}
	if t := ctx.Request.Header.ContentType(); strings.HasPrefix(strings.ToLower(string(t)), "application/octet-stream") {
		return &Problem{fasthttp.StatusUnsupportedMediaType, "Content-Type", reasonMediaType, "send " + typeJSON}
	}
	return nil
}

// answerWorkers answers GET /v1/workers?model=….
func (s *Server) answerWorkers(ctx *fasthttp.RequestCtx) *Problem {
	if p := noArguments(ctx, "model"); p != nil {
		return p
	}
	model := ctx.QueryArgs().Peek("model")
	if s.registry == nil {
		s.json(ctx, appendWorkers(s.buffer(ctx), s.ix, model))
		return nil
	}
	body, err := listWorkers(s.ix, s.registry, string(model))
	if err != nil {
		return &Problem{fasthttp.StatusInternalServerError, "request", reasonInternal, err.Error()}
	}
	s.json(ctx, append(s.buffer(ctx), body...))
	return nil
}

// noArguments refuses arguments in the URL other than those allowed; "" allows
// none.
func noArguments(ctx *fasthttp.RequestCtx, allowed ...string) *Problem {
	if len(ctx.URI().QueryString()) == 0 {
		return nil
	}
	for name := range ctx.QueryArgs().All() {
		if len(name) == 0 || !slices.Contains(allowed, string(name)) {
			return bad(shorten(name), reasonUnknownArgument, "no such argument in the URL of this route")
		}
	}
	return nil
}

// release gives scratch memory back, unless one large request has grown it.
func (s *Server) release(q *finder) {
	if cap(q.req.tokens) <= maxKept && cap(q.req.hashes) <= maxKept && cap(q.local) <= maxKept &&
		cap(q.found.ranks) <= maxKept {
		s.finds.Put(q)
	}
}

// refuse answers with a problem and counts it.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, p *Problem) {
	s.obs.refused(p.Reason)
	ctx.SetStatusCode(p.Status)
	s.json(ctx, appendProblem(s.buffer(ctx), p))
}

// buffer takes the response's own memory to append a body to; json gives it
// back, so that a body is written once.
func (s *Server) buffer(ctx *fasthttp.RequestCtx) []byte { return ctx.Response.SwapBody(nil)[:0] }

func (s *Server) json(ctx *fasthttp.RequestCtx, body []byte) {
	ctx.SetContentType(typeJSON)
	ctx.Response.SwapBody(body)
}
