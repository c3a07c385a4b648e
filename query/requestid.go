package query

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

const headerRequestID = "X-Request-Id"

// requestIDs names requests that come without a name: random per process, then
// a number.
type requestIDs struct {
	prefix string
	last   atomic.Uint64
}

func newRequestIDs() *requestIDs {
	var b [6]byte
	rand.Read(b[:]) //nolint:errcheck,gosec // never fails, by its contract
	return &requestIDs{prefix: hex.EncodeToString(b[:]) + "-"}
}

// setRequestID answers with the request's id: the client's own if it is short
// and plain, else a new one.
func (s *Server) setRequestID(ctx *fasthttp.RequestCtx) {
	id := ctx.Request.Header.Peek(headerRequestID)
	if !edge.PlainID(id) {
		var buf [40]byte
		id = strconv.AppendUint(append(buf[:0], s.ids.prefix...), s.ids.last.Add(1), 16)
	}
	ctx.Response.Header.SetBytesV(headerRequestID, id)
}
