package upstream

import (
	"io"
	"net"
	"net/http"
	"sync"
)

// Keeper owns bytes that must not go while somebody reads them. Cool tells it that those
// read so far are not needed soon.
type Keeper interface {
	Retain()
	Release()
	Cool()
}

// coolEvery is after how many bytes a Keeper is told so: what reading takes of memory,
// where they are in a file.
const coolEvery = 4 << 20

// Payload is bytes to be sent, any number of times: pieces that follow each other,
// and who keeps them, if they do not stay by themselves.
type Payload struct {
	Keeper Keeper
	Pieces [][]byte
}

// Len returns how many bytes it has.
func (p Payload) Len() (n int) {
	for _, piece := range p.Pieces {
		n += len(piece)
	}
	return n
}

// Body returns what sends it once. It must be given to a Client, or be closed.
func (p Payload) Body() *Body {
	b := new(Body)
	p.begin(b, p.Len())
	return b
}

// begin makes b what sends it once. Nobody may use it.
func (p Payload) begin(b *Body, length int) {
	if p.Keeper != nil {
		p.Keeper.Retain()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.payload, b.length = p, length
	b.piece, b.offset, b.warm, b.closed = 0, 0, 0, false
}

// Body is the body of a request that a Client sends itself. It is safe for
// concurrent use, and retains its bytes until it is closed: http.Transport may read
// for a moment after a request has ended. A nil Body is empty.
type Body struct {
	payload Payload
	length  int

	mu     sync.Mutex
	piece  int // where the next Read begins
	offset int
	warm   int // bytes that were read since the Keeper was told
	closed bool
}

// NewBody returns a Body of data, which must not change until the request ends.
func NewBody(data []byte) *Body { return Payload{Pieces: [][]byte{data}}.Body() }

// Len returns how many bytes it has.
func (b *Body) Len() int {
	if b == nil {
		return 0
	}
	return b.length
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	for n < len(p) && b.piece < len(b.payload.Pieces) {
		got := copy(p[n:], b.payload.Pieces[b.piece][b.offset:])
		n += got
		if b.offset += got; b.offset == len(b.payload.Pieces[b.piece]) {
			b.piece, b.offset = b.piece+1, 0
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	if b.warm += n; b.warm >= coolEvery && b.payload.Keeper != nil {
		b.payload.Keeper.Cool()
		b.warm = 0
	}
	return n, nil
}

// Close implements io.Closer.
func (b *Body) Close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed && b.payload.Keeper != nil {
		b.payload.Keeper.Release()
	}
	b.closed = true
	return nil
}

// one returns all of it, if it is in one piece or empty.
func (b *Body) one() (piece []byte, ok bool) {
	switch {
	case b == nil || len(b.payload.Pieces) == 0:
		return nil, true
	case len(b.payload.Pieces) > 1:
		return nil, false
	}
	return b.payload.Pieces[0], true
}

// append appends all of it.
func (b *Body) append(dst []byte) []byte {
	if b == nil {
		return dst
	}
	for _, piece := range b.payload.Pieces {
		dst = append(dst, piece...)
	}
	return dst
}

// writeTo writes all of it.
func (b *Body) writeTo(w net.Conn) error {
	pieces := append(net.Buffers(nil), b.payload.Pieces...) // writing consumes them
	_, err := pieces.WriteTo(w)
	return err
}

// again returns the request in a form in which http.Transport can send its body
// again.
func again(req *http.Request, data *Body) *http.Request {
	if data == nil {
		return req
	}
	req = req.WithContext(req.Context())
	req.GetBody = func() (io.ReadCloser, error) { return data.payload.Body(), nil }
	if _, ok := req.Header["Idempotency-Key"]; !ok {
		// Present and empty it is not sent, and means what Client.try does: once more if
		// an old connection dies before a byte of the answer.
		req.Header["Idempotency-Key"] = nil
	}
	return req
}
