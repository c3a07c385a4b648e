package query

import (
	"bytes"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// pathConsole is where the console is.
const pathConsole = "/console/"

// answerConsole answers what is asked below it. Tenants see of it what the pages let them.
func (s *Server) answerConsole(ctx *fasthttp.RequestCtx) *edge.Problem {
	path, ok := bytes.CutPrefix(ctx.URI().PathOriginal(), []byte(pathConsole))
	if !ok { // without its slash: the pages' own links are relative
		ctx.Response.Header.Set("Location", pathConsole[1:])
		ctx.SetStatusCode(fasthttp.StatusTemporaryRedirect)
		return nil
	}
	needs := s.console.Needs(string(path))
	c, refusal := s.deps.Access.Check(ctx.Request.Header.Peek("Authorization"), needs)
	if refusal == secure.Unauthenticated {
		ctx.Response.Header.Set("WWW-Authenticate", "Bearer")
	}
	if p := edge.Refused(refusal); p != nil {
		return p
	}
	ask := &edge.Ask{
		Method: string(ctx.Method()), Path: string(path), Query: string(ctx.URI().QueryString()), Known: string(ctx.Request.Header.Peek("If-None-Match")),
		Tenant: c.Tenant, Role: c.Role,
	}
	if ctx.IsPost() {
		body, _, p := s.body(ctx, false)
		if p != nil {
			return p
		}
		ask.Body = body
	}
	reply := s.console.Answer(ask)
	reply.Headers(ctx.Response.Header.Set)
	ctx.SetStatusCode(reply.Status)
	switch {
	case reply.Stream != nil:
		ctx.SetBodyStream(&pageStream{conn: ctx.Conn(), stream: reply.Stream}, -1) // which closes it, also where it is not read
	case !ctx.IsHead():
		ctx.Response.SetBodyRaw(reply.Body)
	}
	return nil
}

// pageStream is a stream as fasthttp reads it: each read goes to the client at once.
type pageStream struct {
	conn   net.Conn
	stream edge.Stream
	rest   []byte
}

// Read implements io.Reader.
func (p *pageStream) Read(b []byte) (n int, err error) {
	if len(p.rest) == 0 {
		// That the client is gone shows when it is written to: there is more each second.
		if p.rest, err = p.stream.Next(nil); err != nil {
			return 0, io.EOF
		}
	}
	// The limit is for each part of the answer, not for all of it.
	if err := p.conn.SetWriteDeadline(time.Now().Add(edge.StreamWait())); err != nil {
		return 0, io.EOF
	}
	n = copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (p *pageStream) Close() error {
	p.stream.Close()
	return nil
}
