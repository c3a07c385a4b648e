package query

import (
	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

const headerRequestID = "X-Request-Id"

// setRequestID answers with the request's id: the client's own if it is short
// and plain, else a new one.
func (s *Server) setRequestID(ctx *fasthttp.RequestCtx) {
	id := ctx.Request.Header.Peek(headerRequestID)
	if !edge.PlainID(id) {
		var buf [40]byte
		id = edge.AppendID(buf[:0])
	}
	ctx.Response.Header.SetBytesV(headerRequestID, id)
}
