package secure

import (
	"bytes"
	"errors"
	"net"
	"strconv"
)

// ErrFraming is what a server reads in place of the end of a request's head that has
// both a length and chunks.
var ErrFraming = errors.New("a request with both Content-Length and Transfer-Encoding")

// Framed returns ln, whose connections end before a request whose length two servers
// could read in two ways: net/http then answers 400 and closes. It cannot be asked to
// by itself, as it takes the one header away before anybody sees the other. refused is
// called for each.
func Framed(ln net.Listener, refused func()) net.Listener { return &framed{ln, refused} }

type framed struct {
	net.Listener
	refused func()
}

func (l *framed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &framedConn{Conn: c, refused: l.refused}, nil
}

type framedConn struct {
	net.Conn
	refused func()
	framer  framer // of the one goroutine that reads
	bad     bool
}

// Read implements net.Conn.
func (c *framedConn) Read(p []byte) (int, error) {
	if c.bad {
		return 0, ErrFraming
	}
	n, err := c.Conn.Read(p)
	if at := c.framer.feed(p[:n]); at < n {
		c.bad = true
		c.refused()
		if n, err = at, nil; at == 0 {
			err = ErrFraming
		}
	}
	return n, err
}

// Where in a request the framer is.
const (
	inHead = iota
	inBody
	inChunkSize
	inTrailer
	passing // what follows is no HTTP/1.1 that it knows
)

// framer follows requests through the bytes of a connection as far as it needs to
// find their heads. Where it cannot it lets everything pass: the server finds fault
// with that.
type framer struct {
	state  int
	line   []byte // the beginning of the present line
	length int    // of the line
	lines  int    // of the head that are over
	left   uint64 // of a body or a chunk
	then   int    // the state after that

	hasLength, hasEncoding bool
	odd                    bool // the length is none, or in a line that goes on
	size                   uint64
}

// maxLine is how much of a line is kept: more than what it is looked at for needs.
const maxLine = 64

// feed returns how many of the bytes may pass: all, unless there is the end of a head
// among them that says two lengths.
func (f *framer) feed(p []byte) int {
	for i := 0; i < len(p); {
		switch f.state {
		case passing:
			return len(p)
		case inBody:
			n := min(f.left, uint64(len(p)-i))
			i += int(n)
			if f.left -= n; f.left == 0 {
				f.state = f.then
			}
			continue
		}
		end := bytes.IndexByte(p[i:], '\n')
		part := p[i:]
		if end >= 0 {
			part = part[:end]
		}
		f.line = append(f.line, part[:min(len(part), maxLine-len(f.line))]...)
		f.length += len(part)
		if end < 0 {
			return len(p)
		}
		if !f.endOfLine() {
			return i
		}
		f.line, f.length = f.line[:0], 0
		i += end + 1
	}
	return len(p)
}

// endOfLine goes on after a line. It returns false where the connection must end.
func (f *framer) endOfLine() bool {
	line := bytes.TrimSuffix(f.line, []byte("\r"))
	empty := f.length == 0 || f.length == 1 && len(line) == 0
	switch f.state {
	case inHead:
		if empty && f.lines > 0 {
			return f.endOfHead()
		}
		f.inHead(line)
	case inChunkSize:
		size, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(size)), 16, 62)
		switch {
		case err != nil:
			f.state = passing
		case n == 0:
			f.state = inTrailer
		default:
			f.body(n+2, inChunkSize)
		}
	case inTrailer:
		if empty {
			f.next()
		}
	}
	return true
}

func (f *framer) inHead(line []byte) {
	if f.lines++; f.lines == 1 {
		if bytes.HasPrefix(line, []byte("PRI * HTTP/2")) {
			f.state = passing
		}
		return
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		f.hasLength = true
		n, err := strconv.ParseUint(string(value), 10, 62)
		f.size, f.odd = n, f.odd || err != nil
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		f.hasEncoding = true
	}
}

func (f *framer) endOfHead() bool {
	switch {
	case f.hasLength && f.hasEncoding:
		return false
	case f.odd:
		f.state = passing
	case f.hasEncoding:
		f.state = inChunkSize
	case f.size > 0:
		f.body(f.size, inHead)
	default:
		f.next()
	}
	f.lines, f.size, f.hasLength, f.hasEncoding = 0, 0, false, false
	return true
}

func (f *framer) body(n uint64, then int) { f.state, f.left, f.then = inBody, n, then }

// next begins with the next request.
func (f *framer) next() { f.state = inHead }
