package downstream

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/head"
)

// outSize is how much of an answer is held back to be written at once.
const outSize = 8 << 10

var outs = sync.Pool{New: func() any { b := make([]byte, 0, outSize+512); return &b }}

// answer is the answer to a request: an http.ResponseWriter, with what an
// http.ResponseController wants.
type answer struct {
	conn    *conn
	header  http.Header
	status  int   // 0: not said yet
	length  int64 // of the body, as its head says; -1: it does not
	sent    int64 // bytes of the body
	begun   bool  // the head is in out, or beyond
	chunked bool
	closes  bool // the connection ends with it
	old     bool // HTTP/1.0
	// bodiless: it has no body, whatever is written. It is so for HEAD, whose head is as if
	// there were one.
	bodiless bool
	buffer   *[]byte
	out      []byte // not written yet: the body alone while the head is not begun
	writeBy  time.Time
	armed    time.Time // the deadline in force
	err      error
}

var (
	errShort = errors.New("the answer is shorter than it says")
	errLong  = errors.New("the answer is longer than it says")
)

// begin makes it ready to answer a request.
func (a *answer) begin(r *http.Request) {
	buffer := outs.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	*a = answer{
		conn: a.conn, header: a.header, armed: a.armed, buffer: buffer, out: (*buffer)[:0], length: -1,
		old: r.ProtoMinor == 0 && r.ProtoMajor == 1, closes: r.Close, bodiless: r.Method == http.MethodHead,
		writeBy: time.Now().Add(a.conn.server.cfg.WriteTimeout),
	}
}

// refuse answers what is no request, and ends the connection.
func (a *answer) refuse(b *badRequest) {
	a.begin(&http.Request{Close: true})
	a.header["Content-Type"] = []string{"text/plain; charset=utf-8"}
	a.WriteHeader(b.status)
	_, _ = fmt.Fprintf(a, "%d %s: %s", b.status, http.StatusText(b.status), b.why) // the client may be gone
	a.finish()
}

// Kept returns where handlers leave what the connection's next request may use. It goes with the
// connection.
func (a *answer) Kept() *any { return &a.conn.kept }

// Gone looks whether the client has left, and ends the context of its requests if it has. It is for handlers that have
// waited, and have something to do that is for nobody then.
func (a *answer) Gone() bool {
	gone := a.conn.gone()
	if gone {
		a.conn.cancel()
	}
	return gone
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 || status < 200 {
		return
	}
	a.status = status
	if status == http.StatusNoContent || status == http.StatusNotModified {
		a.bodiless = true
	}
	if text := a.header["Content-Length"]; len(text) == 1 {
		if n, err := strconv.ParseInt(text[0], 10, 64); err == nil && n >= 0 {
			a.length = n
			return
		}
	}
	delete(a.header, "Content-Length")
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.length >= 0 && a.sent+int64(len(p)) > a.length && !a.bodiless {
		return 0, errLong
	}
	a.sent += int64(len(p))
	if !a.begun {
		if a.length < 0 && a.sent <= outSize {
			if !a.bodiless { // its length may be known in the end
				a.out = append(a.out, p...)
			}
			return len(p), nil
		}
		a.head(false)
	}
	if a.bodiless || len(p) == 0 {
		return len(p), nil
	}
	if a.chunked {
		a.out = append(strconv.AppendInt(a.out, int64(len(p)), 16), "\r\n"...)
	}
	if len(a.out)+len(p) <= outSize {
		a.out = append(a.out, p...)
	} else if err := a.write(p); err != nil {
		return 0, err
	}
	if a.chunked {
		a.out = append(a.out, "\r\n"...)
	}
	return len(p), nil
}

// head puts the head in front of what there is of the body.
func (a *answer) head(whole bool) {
	a.begun = true
	part := a.out
	if len(part) > 0 { // of the body: the head comes before it
		held := a.buffer
		defer outs.Put(held)
		a.buffer = outs.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
		a.out = (*a.buffer)[:0]
	}
	hasBody := !a.bodiless || a.status != http.StatusNoContent && a.status != http.StatusNotModified
	if whole && a.length < 0 && hasBody && (a.sent > 0 || !a.bodiless) { // of nothing for HEAD it is not known
		a.length = a.sent
		a.header["Content-Length"] = []string{strconv.FormatInt(a.sent, 10)}
	}
	a.chunked = a.length < 0 && !a.bodiless && !a.old
	if a.length < 0 && !a.bodiless && a.old {
		a.closes = true
	}
	b := append(a.out, "HTTP/1.1 "...)
	b = append(append(append(strconv.AppendInt(b, int64(a.status), 10), ' '), http.StatusText(a.status)...), "\r\n"...)
	for name, values := range a.header {
		switch name {
		case "Transfer-Encoding", "Trailer":
			continue // of this connection
		case "Connection":
			for _, v := range values {
				a.closes = a.closes || strings.EqualFold(v, "close")
			}
			continue
		case "Content-Length":
			if !hasBody {
				continue
			}
		}
		if !head.Token(name) {
			continue
		}
		for _, v := range values {
			b = append(append(b, name...), ": "...)
			if head.Printable(v) {
				b = append(b, v...)
			} else {
				b = appendPlain(b, v)
			}
			b = append(b, "\r\n"...)
		}
	}
	if _, ok := a.header["Date"]; !ok {
		b = append(append(append(b, "Date: "...), a.conn.server.date.now()...), "\r\n"...)
	}
	switch {
	case a.closes:
		b = append(b, "Connection: close\r\n"...)
	case a.old:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	if a.chunked {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	b = append(b, "\r\n"...)
	if len(part) > 0 && a.chunked {
		b = append(strconv.AppendInt(b, int64(len(part)), 16), "\r\n"...)
	}
	b = append(b, part...)
	if len(part) > 0 && a.chunked {
		b = append(b, "\r\n"...)
	}
	a.out = b
}

func appendPlain(b []byte, v string) []byte {
	for i := range len(v) {
		if head.Printable(v[i : i+1]) {
			b = append(b, v[i])
		} else {
			b = append(b, ' ')
		}
	}
	return b
}

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	if a.err != nil {
		return a.err
	}
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.begun {
		a.head(false)
	}
	return a.write(nil)
}

// write writes what there is, and p after it.
func (a *answer) write(p []byte) error {
	if a.err != nil {
		return a.err
	}
	if len(a.out)+len(p) == 0 {
		return nil
	}
	// To set it anew for each write costs as much as passing on a token.
	if d := a.writeBy.Sub(a.armed); d < 0 || d > a.conn.server.cfg.WriteTimeout/16 {
		a.armed = a.writeBy
		_ = a.conn.io.SetWriteDeadline(a.writeBy) // else the write fails
	}
	if _, a.err = a.conn.io.Write(a.out); a.err == nil && len(p) > 0 {
		_, a.err = a.conn.io.Write(p)
	}
	a.out = a.out[:0]
	return a.err
}

// goOn tells the client to send its body.
func (a *answer) goOn() error {
	if a.begun {
		return nil
	}
	held := a.out
	a.out = []byte("HTTP/1.1 100 Continue\r\n\r\n")
	err := a.write(nil)
	a.out = held
	return err
}

// finish ends it, and reports whether all of it was written.
func (a *answer) finish() bool {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.begun && a.err == nil {
		a.head(true)
	}
	if a.chunked && a.err == nil {
		a.out = append(a.out, "0\r\n\r\n"...)
	}
	if !a.bodiless && a.length >= 0 && a.sent < a.length && a.err == nil {
		_ = a.write(nil)
		a.err = errShort
	}
	if a.endless() && a.err == nil && !a.writeBy.IsZero() && time.Now().After(a.writeBy) {
		a.err = os.ErrDeadlineExceeded // with nothing left to write, too
	}
	ok := a.write(nil) == nil
	outs.Put(a.buffer)
	a.buffer, a.out = nil, nil
	return ok
}

// endless reports whether the answer's end is its connection's.
func (a *answer) endless() bool { return a.begun && a.old && a.length < 0 && !a.bodiless }

// SetWriteDeadline is for http.ResponseController: it holds from the next write on.
func (a *answer) SetWriteDeadline(by time.Time) error {
	a.writeBy = by
	return nil
}

// SetReadDeadline is for http.ResponseController. It ends the reading of the body, if by
// is past, and may be called by any goroutine for that. A handler that wants no deadline
// reads no more: there is nothing to do.
func (a *answer) SetReadDeadline(by time.Time) error {
	switch {
	case by.IsZero():
		return nil
	case time.Until(by) > 0:
		return errors.ErrUnsupported // it is Config.ReadTimeout
	}
	a.conn.dropped.Store(true)
	return a.conn.net.SetReadDeadline(by)
}
