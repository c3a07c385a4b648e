package query

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/attribute"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/shard"
)

// handle answers one request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	at := s.table.of(ctx)
	s.obs.flight.Add(1)
	defer func() {
		if cause := recover(); cause != nil { // a bug; other requests go on
			s.limit.Log(slog.LevelError, "panic", "BUG: answering a request failed",
				slog.Any("cause", cause), slog.String("stack", string(debug.Stack())))
			ctx.Response.Reset()
			s.setRequestID(ctx)
			s.refuse(ctx, at, edge.Refuse(fasthttp.StatusInternalServerError, "request", edge.Internal,
				"the server failed to answer; its log says more"))
		}
		s.obs.flight.Add(-1)
		took := time.Since(ctx.Time())
		s.obs.answered(at, ctx.Response.StatusCode(), took)
		if s.cfg.SlowQuery > 0 && took > s.cfg.SlowQuery && !ctx.Response.IsBodyStream() { // to ask for its size reads it
			s.limit.Warn("slow", "slow request", slog.String("route", s.table.name(at)),
				slog.Duration("took", took), slog.Int("body_bytes", len(ctx.Request.Body())),
				slog.Int("answer_bytes", len(ctx.Response.Body())), slog.Int("status", ctx.Response.StatusCode()),
				slog.String("request_id", string(ctx.Response.Header.Peek(headerRequestID))))
		}
	}()
	s.setRequestID(ctx)
	if s.about.Health.Draining() {
		ctx.SetConnectionClose() // the client's next request goes elsewhere
	}
	if p := s.dispatch(ctx, at); p != nil {
		s.refuse(ctx, at, p)
	}
}

// dispatch checks what all routes have in common and answers, or says why not.
//
// The order is that of what each may cost or tell: a request that two servers could read
// otherwise is not looked at any further; who may ask is found out before the body is
// looked at; and whether there is a space or a worker, only then, so that nobody without
// a token learns what there is.
func (s *Server) dispatch(ctx *fasthttp.RequestCtx, at int) *edge.Problem {
	if ambiguous(ctx.Request.Header.RawHeaders()) {
		ctx.SetConnectionClose() // what follows may have been meant as this body
		return edge.Refuse(fasthttp.StatusBadRequest, "Content-Length", edge.MalformedRequest,
			"give Content-Length or Transfer-Encoding: chunked, not both and each once, and no header in several lines")
	}
	if at == s.table.none() || s.table.all[at].needs > secure.Anybody { // probes may come by any name
		if p := s.named(ctx); p != nil {
			return p
		}
	}
	if s.console != nil && at == s.table.none() {
		if path := ctx.URI().PathOriginal(); bytes.HasPrefix(path, []byte(pathConsole)) || string(path) == pathConsole[:len(pathConsole)-1] {
			return s.answerConsole(ctx)
		}
	}
	if at == s.table.none() || s.deps.Registry == nil && s.table.all[at].needsRegistry() {
		return edge.Refuse(fasthttp.StatusNotFound, "path", edge.UnknownRoute, "no such route; GET /openapi.yaml has all of them")
	}
	r := &s.table.all[at]
	if r.held && s.deps.Share.Of > 0 {
		ctx.Response.Header.Set(shares.Header, s.deps.Share.String())
	}
	if !r.takes(ctx) {
		ctx.Response.Header.Set("Allow", r.method())
		return edge.NotMethod(r.method())
	}
	// Health and version are answered however busy it is: else it would be taken for dead.
	if r.needs > secure.Anybody && s.obs.flight.Load() > int64(s.cfg.MaxInflight) {
		ctx.Response.Header.Set("Retry-After", "1")
		return edge.Refuse(fasthttp.StatusServiceUnavailable, "request", edge.Busy,
			"the server is answering as many requests as it may (--http-max-inflight)")
	}
	v, p := s.admit(ctx, r)
	if p == nil && v.registry == nil && r.needsRegistry() {
		ctx.Response.Header.Set("Retry-After", "1")
		p = edge.Refuse(fasthttp.StatusServiceUnavailable, "request", edge.NotReady, "who is registered is not known yet; try again")
	}
	if p == nil && r.held {
		p = s.gate.refuses()
	}
	switch {
	case p != nil:
		return p
	case r.held && s.deps.Shares != nil && !r.union:
		return edge.Refuse(fasthttp.StatusNotImplemented, "path", edge.UnknownRoute, "ask the indexers of the shares: together they answer find_matches, explain and workers only")
	case r.union && s.deps.Shares != nil:
		return s.answerUnion(ctx, v)
	}
	return r.answer(s, ctx, v)
}

// named refuses what is asked by a name that is not the server's own.
func (s *Server) named(ctx *fasthttp.RequestCtx) *edge.Problem {
	if s.hosts == nil || s.hosts.Has(string(ctx.Request.Header.Host())) {
		return nil
	}
	if _, ok := ctx.LocalAddr().(*net.TCPAddr); !ok {
		return nil // Handler's: the other server's port has names of its own
	}
	return edge.Refuse(fasthttp.StatusForbidden, "Host", edge.Forbidden, secure.RefusedName)
}

// admit says who asks, and returns what they may see.
func (s *Server) admit(ctx *fasthttp.RequestCtx, r *route) (*view, *edge.Problem) {
	if !s.deps.Access.Guarded() {
		// A page of any site can have the browser of somebody on this machine ask.
		if r.post && r.needs == secure.Operator && len(ctx.Request.Header.Peek("Origin")) > 0 {
			return nil, edge.Refuse(fasthttp.StatusForbidden, "Origin", edge.Forbidden,
				"without --tokens-file this route is not for pages in browsers")
		}
		return s.all(), nil
	}
	c, refusal := s.deps.Access.Check(ctx.Request.Header.Peek("Authorization"), r.needs)
	switch refusal {
	case secure.Unauthenticated:
		ctx.Response.Header.Set("WWW-Authenticate", "Bearer")
		return nil, edge.Refuse(fasthttp.StatusUnauthorized, "Authorization", edge.Unauthenticated,
			"give a valid token: Authorization: Bearer …")
	case secure.Forbidden:
		return nil, edge.Refuse(fasthttp.StatusForbidden, "Authorization", edge.Forbidden,
			"this route needs the role "+r.needs.String())
	case secure.Allowed:
	}
	if c.Tenant == nil {
		return s.all(), nil
	}
	if r.fleet {
		return nil, edge.Refuse(fasthttp.StatusForbidden, "Authorization", edge.Forbidden,
			"this route is about more than one tenant's; use a token without one")
	}
	return s.all().of(*c.Tenant), nil
}

// ambiguous reports whether the headers say more than once where the body ends, or in a way that
// servers disagree about: an encoding but chunked, lines that go on in the next one. fasthttp
// (1.74) goes by Transfer-Encoding or the last length, takes identity for no body, unfolds, and
// keeps the connection; a proxy that goes by another lets a client smuggle a request past it
// (RFC 9112, sections 5.2 and 6).
func ambiguous(headers []byte) bool {
	const length, encoding = "Content-Length", "Transfer-Encoding"
	said := 0
	for line := range bytes.SplitSeq(headers, []byte{'\n'}) {
		// Most names have another length than these two.
		switch {
		case len(line) > 0 && (line[0] == ' ' || line[0] == '\t'):
			return true
		case len(line) > len(length) && line[len(length)] == ':' && bytes.EqualFold(line[:len(length)], []byte(length)):
			said++
		case len(line) > len(encoding) && line[len(encoding)] == ':' && bytes.EqualFold(line[:len(encoding)], []byte(encoding)):
			if said++; !bytes.EqualFold(bytes.TrimSpace(line[len(encoding)+1:]), []byte("chunked")) {
				return true
			}
		}
	}
	return said > 1
}

// body returns the request's body, without its compression, if it is of a
// type that the route takes. Clients that do not care about the content type
// (curl -d) are let in.
func (s *Server) body(ctx *fasthttp.RequestCtx, binary bool) (body []byte, isArray bool, p *edge.Problem) {
	isArray = isBinary(ctx.Request.Header.ContentType())
	if isArray && !binary {
		return nil, false, edge.Refuse(fasthttp.StatusUnsupportedMediaType, "Content-Type", edge.MediaType, "send "+edge.TypeJSON)
	}
	body, p = s.decompressed(ctx)
	return body, isArray, p
}

// finder lends scratch memory; the caller gives it back with release.
func (s *Server) finder() *finder { return s.finds.Get().(*finder) } //nolint:forcetypeassert // the pool holds nothing else

// release gives scratch memory back, unless one large request has grown it.
func (s *Server) release(q *finder) {
	if cap(q.req.tokens) <= maxKept && cap(q.req.hashes) <= maxKept && cap(q.local) <= maxKept && cap(q.plain) <= maxKept &&
		cap(q.found.ranks) <= maxKept && cap(q.ranks) <= maxKept && cap(q.text) <= 16*maxKept {
		s.finds.Put(q)
	}
}

// found counts what a lookup was about.
func (s *Server) found(q *finder) {
	s.obs.blocks.AddInt64(q.asked)
	s.obs.ranks.AddInt64(q.listed)
}

// trace tells the caller's trace of a lookup, if it says one.
func (s *Server) trace(ctx *fasthttp.RequestCtx, q *finder, p *edge.Problem) {
	if s.deps.Tracer == nil {
		return
	}
	parent := ctx.Request.Header.Peek(spans.Parent)
	if len(parent) == 0 {
		return
	}
	if !spans.Says(string(parent)) {
		return
	}
	_, part := spans.Serve(context.Background(), s.deps.Tracer, string(parent), string(ctx.Request.Header.Peek(spans.State)), "find_matches", ctx.Time())
	switch {
	case !part.On():
	case p != nil:
		part.Set(attribute.Int("http.response.status_code", p.Status), attribute.String("error.type", p.Reason))
	default:
		part.Set(attribute.Int64("kvatlas.blocks", q.asked), attribute.Int64("kvatlas.ranks", q.listed))
	}
	part.End()
}

// answerFind answers POST /v1/find_matches.
func (s *Server) answerFind(ctx *fasthttp.RequestCtx, v *view) (p *edge.Problem) {
	body, isArray, p := s.body(ctx, true)
	if p != nil {
		return p
	}
	q := s.finder()
	defer s.release(q)
	defer func() { s.trace(ctx, q, p) }()
	if isArray {
		p = q.req.parseBinary(ctx.QueryArgs(), body, s.cfg.MaxTokens)
	} else if p = noArguments(ctx); p == nil {
		p = q.req.parse(body, s.cfg.MaxTokens)
	}
	if p != nil {
		return p
	}
	// Both forms are appended to the response's own memory, so that an answer is written once.
	if wantsBinary(ctx, isArray) {
		if body, p = q.appendBinary(v.index, s.buffer(ctx)); p == nil {
			ctx.SetContentType(typeBinary)
			ctx.Response.SwapBody(body)
		}
	} else if body, p = q.appendMatches(v.index, s.buffer(ctx)); p == nil {
		s.json(ctx, body)
	}
	s.found(q)
	return p
}

// answerBatch answers POST /v1/find_matches/batch.
func (s *Server) answerBatch(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.lookUp(ctx, func(q *finder, body, dst []byte) ([]byte, *edge.Problem) {
		answer, p := q.batch(v.index, body, s.cfg.MaxBatch, s.cfg.MaxTokens, dst, func(p *edge.Problem) { s.obs.refused(p.Reason) })
		if p == nil {
			s.found(q)
		}
		return answer, p
	})
}

// answerExplain answers POST /v1/explain.
func (s *Server) answerExplain(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.lookUp(ctx, func(q *finder, body, dst []byte) ([]byte, *edge.Problem) {
		if p := q.req.parse(body, s.cfg.MaxTokens); p != nil {
			return nil, p
		}
		answer, p := q.explain(v)
		return append(dst, answer...), p
	})
}

// answerQuery answers POST /query, answerQueryByHash POST /query_by_hash.
func (s *Server) answerQuery(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerIndexer(ctx, v, false)
}

func (s *Server) answerQueryByHash(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerIndexer(ctx, v, true)
}

func (s *Server) answerIndexer(ctx *fasthttp.RequestCtx, v *view, byHash bool) *edge.Problem {
	return s.lookUp(ctx, func(q *finder, body, dst []byte) ([]byte, *edge.Problem) {
		x, p := q.req.parseIndexer(body, byHash, s.cfg.MaxTokens)
		if p != nil {
			return nil, p
		}
		answer, p := q.appendIndexer(v, &x, dst)
		if p == nil {
			s.found(q)
		}
		return answer, p
	})
}

// lookUp answers a request whose body is JSON: answer reads it into scratch memory that
// it is lent, and appends to dst.
func (s *Server) lookUp(ctx *fasthttp.RequestCtx, answer func(q *finder, body, dst []byte) ([]byte, *edge.Problem)) *edge.Problem {
	body, _, p := s.body(ctx, false)
	if p == nil {
		p = noArguments(ctx)
	}
	if p != nil {
		return p
	}
	q := s.finder()
	defer s.release(q)
	out, p := answer(q, body, s.buffer(ctx))
	if p == nil {
		s.json(ctx, out)
	}
	return p
}

// answerRanks answers GET /v1/ranks: what routers that ask shares go by besides depths.
func (s *Server) answerRanks(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if p := noArguments(ctx); p != nil {
		return p
	}
	var stale map[event.Space]map[shard.RankID]bool
	if s.deps.Stale != nil {
		stale = s.deps.Stale()
	}
	s.json(ctx, appendHeld(s.buffer(ctx), v.index, stale))
	return nil
}

// answerSpaces answers GET /v1/spaces?model=….
func (s *Server) answerSpaces(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if p := noArguments(ctx, "model"); p != nil {
		return p
	}
	s.json(ctx, appendSpaces(s.buffer(ctx), v.index, ctx.QueryArgs().Peek("model")))
	return nil
}

// noArguments refuses arguments in the URL other than those allowed.
func noArguments(ctx *fasthttp.RequestCtx, allowed ...string) *edge.Problem {
	if bytes.IndexByte(ctx.Request.Header.RequestURI(), '?') < 0 || len(ctx.URI().QueryString()) == 0 {
		return nil
	}
	for name := range ctx.QueryArgs().All() {
		if len(name) == 0 || !slices.Contains(allowed, string(name)) {
			return edge.Bad(shorten(name), edge.UnknownArgument, "no such argument in the URL of this route")
		}
	}
	return nil
}

// refuse answers with a problem and counts it.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, at int, p *edge.Problem) {
	s.obs.refused(p.Reason)
	ctx.SetStatusCode(p.Status)
	if at < len(s.table.all) && s.table.all[at].plain {
		s.json(ctx, p.Text())
		return
	}
	s.json(ctx, p.JSON())
}

// buffer takes the response's own memory to append a body to; json gives it
// back, so that a body is written once.
func (s *Server) buffer(ctx *fasthttp.RequestCtx) []byte { return ctx.Response.SwapBody(nil)[:0] }

func (s *Server) json(ctx *fasthttp.RequestCtx, body []byte) {
	ctx.SetContentType(edge.TypeJSON)
	ctx.Response.SwapBody(body)
}
