package upstream

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/router/head"
)

// reply reads the head of an answer of the kind that nearly all are of: one length or
// chunks, short, and nothing odd. ok is false for any other: of that nothing is taken, and
// net/http knows what it is, with five times the work.
func (k *conn) reply(req *http.Request, x *Exchange) (resp *http.Response, ok bool, err error) {
	if req.Method == http.MethodHead {
		return nil, false, nil
	}
	looked, n := 0, 0
	for {
		text, _ := k.in.Peek(k.in.Buffered()) // they are there
		if n = head.End(text, &looked); n > 0 {
			break
		}
		if len(text) == k.in.Size() {
			return nil, false, nil
		}
		if _, err := k.in.Peek(len(text) + 1); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, false, err
		}
	}
	data, _ := k.in.Peek(n) // they are there
	if resp, ok = parseReply(string(data), x); !ok {
		return nil, false, nil
	}
	_, _ = k.in.Discard(n)
	resp.Request = req
	return resp, true, nil
}

// parseReply reads a head, whose strings the answer keeps.
func parseReply(text string, x *Exchange) (resp *http.Response, ok bool) {
	line, text := head.Line(text)
	status, found := strings.CutPrefix(line, "HTTP/1.1 ")
	code, _, _ := strings.Cut(status, " ")
	number, err := strconv.ParseUint(code, 10, 16)
	if !found || len(code) != 3 || err != nil || number < 200 || number == http.StatusNoContent || number == http.StatusNotModified || !head.Printable(status) {
		return nil, false
	}
	lines := strings.Count(text, "\n")
	resp, values := x.reply(lines)
	resp.Status, resp.StatusCode, resp.ContentLength = status, int(number), -1
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	for {
		if line, text = head.Line(text); line == "" {
			return resp, resp.ContentLength >= 0 != (resp.TransferEncoding != nil)
		}
		name, value, ok := head.Field(line)
		if !ok {
			return nil, false
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		before, again := resp.Header[name]
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil || again {
				return nil, false
			}
			resp.ContentLength = int64(n)
		case "Transfer-Encoding":
			if value != "chunked" || resp.TransferEncoding != nil {
				return nil, false
			}
			resp.TransferEncoding = []string{value}
			continue
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return nil, false
			}
		case "Trailer", "Pragma":
			return nil, false
		}
		if again {
			resp.Header[name] = append(before, value)
			continue
		}
		n := len(values)
		values = append(values, value)
		resp.Header[name] = values[n : n+1 : n+1]
	}
}

// sized is a body of a length.
type sized struct {
	in   *bufio.Reader
	left int64
}

// Read implements io.Reader. The end comes with the last bytes.
func (s *sized) Read(p []byte) (n int, err error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n, err = s.in.Read(p[:min(int64(len(p)), s.left)])
	switch s.left -= int64(n); {
	case s.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// pieces is a body in chunks, to the line after the last one.
type pieces struct {
	in     *bufio.Reader
	chunks io.Reader
}

func newPieces(in *bufio.Reader) *pieces { return &pieces{in, httputil.NewChunkedReader(in)} }

var errTrailers = errors.New("malformed trailers")

// Read implements io.Reader.
func (p *pieces) Read(b []byte) (n int, err error) {
	if n, err = p.chunks.Read(b); err != io.EOF { //nolint:errorlint // readers return it bare
		return n, err
	}
	for total := 0; ; { // trailers are nobody's
		text, err := p.in.ReadSlice('\n')
		line, ended := strings.CutSuffix(string(text), "\r\n")
		_, _, ok := head.Field(line)
		total += len(text)
		switch {
		case errors.Is(err, io.EOF):
			return n, io.ErrUnexpectedEOF
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return n, err
		case line == "" && ended:
			return n, io.EOF
		case !ok || !ended || total > readBuffer:
			return n, errTrailers
		}
	}
}
