package downstream

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/router/head"
)

// body is the body of a request, as it arrives.
type body struct {
	conn     *conn
	more     int64 // bytes to come, of the present chunk if it comes in chunks
	chunked  bool
	between  bool // a chunk is over, and the end of its line has to come
	over     bool
	expected bool  // the client waits to be told that it may send
	around   int64 // bytes of chunks' lines beyond what they may be for the bytes in them
	err      error
}

// maxLine bounds the line of a chunk's size, with its extensions, and maxTrailers what
// follows the last one. The lines together may be twice as long as the body and usualLine
// each, and maxAround beyond that: a byte of a body would cost a client nothing of what it
// may send, and 4 KiB to read.
const (
	usualLine   = 16
	maxAround   = 16 << 10
	maxLine     = 4 << 10
	maxTrailers = 16 << 10
)

var errChunk = errors.New("malformed chunks")

func (b *body) begin(length int64, chunked, expects bool) {
	*b = body{conn: b.conn, more: max(length, 0), chunked: chunked, expected: expects}
	if !chunked && length <= 0 {
		b.end()
	}
}

// end notes that all of it was read. What it came in is not needed until the next request,
// which may be in it already.
func (b *body) end() {
	b.over, b.expected = true, false
	if k := b.conn; k.r == k.w {
		k.release()
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.over:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if b.expected {
		b.expected = false
		if err := b.conn.answer.goOn(); err != nil {
			b.err = err
			return 0, err
		}
	}
	if b.chunked && b.more == 0 {
		if b.err = b.size(); b.err != nil {
			return 0, b.err
		}
		if b.over {
			return 0, io.EOF
		}
	}
	if int64(len(p)) > b.more {
		p = p[:b.more]
	}
	k := b.conn
	if k.r < k.w {
		n = copy(p, k.in[k.r:k.w])
		k.r += n
	} else if n, err = k.read(p); n == 0 && err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		b.err = err
		return 0, err
	}
	if b.more -= int64(n); b.more == 0 {
		if b.between = b.chunked; !b.chunked {
			b.end()
		}
	}
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error { return nil }

// size reads the line of a chunk's size, with the end of the chunk before; after the last
// one the trailers, which are nobody's.
func (b *body) size() error {
	if b.between {
		if line, err := b.line(); err != nil || len(line) != 0 {
			return errors.Join(errChunk, err)
		}
		b.between = false
	}
	line, err := b.line()
	if err != nil {
		return err
	}
	digits, _, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimRight(digits, " \t")), 16, 63)
	if err != nil || digits[0] == '+' {
		return errChunk
	}
	if b.more = int64(n); n > 0 {
		if b.around = max(b.around+int64(len(line))-usualLine-2*min(b.more, maxAround), 0); b.around > maxAround {
			return errChunk
		}
		return nil
	}
	for total := 0; ; {
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			b.end()
			return nil
		}
		_, _, ok := head.Field(string(line))
		if total += len(line); !ok || total > maxTrailers {
			return errChunk
		}
	}
}

// line returns the next line without its end.
func (b *body) line() ([]byte, error) {
	k := b.conn
	for {
		if end := bytes.IndexByte(k.in[k.r:k.w], '\n'); end >= 0 {
			line := k.in[k.r : k.r+end]
			k.r += end + 1
			if len(line) > maxLine || bytes.IndexByte(line, '\r') != len(line)-1 || len(line) == 0 {
				return nil, errChunk
			}
			return line[:len(line)-1], nil
		}
		if k.w-k.r > maxLine {
			return nil, errChunk
		}
		if k.r > 0 {
			k.w = copy(k.in, k.in[k.r:k.w])
			k.r = 0
		}
		if err := k.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// drain reads what its handler did not want, and reports whether that was all.
func (b *body) drain() bool {
	var room [4 << 10]byte
	for n := 0; n < drainMost; {
		got, err := b.Read(room[:])
		if n += got; err != nil {
			return b.over
		}
	}
	return b.over
}
