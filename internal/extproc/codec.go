package extproc

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
)

// ErrMalformed says that a message is not as protobuf and its definition have it.
var ErrMalformed = errors.New("malformed message")

// ErrTooLarge is for heads and metadata beyond Codec.MaxHead.
var ErrTooLarge = errors.New("the headers and metadata of a message are larger than is allowed")

// Codec reads and writes the messages of this package, as protobuf. It is an
// encoding.CodecV2.
type Codec struct {
	// MaxHead bounds what of a request's message is not its body: the bytes, and 32 more for each
	// header and each name of an endpoint, as HTTP/2 counts; 0 is no bound. In memory they are
	// larger than on the wire.
	MaxHead int
}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	size := 256
	var write func([]byte) []byte
	switch m := v.(type) {
	case *Request:
		size, write = len(m.Body)+256+headersRoom(m.Headers), m.append
	case *Response:
		size, write = len(m.Body)+256+headersRoom(m.Set), m.append
	case *HealthRequest:
		write = m.append
	case *HealthResponse:
		write = m.append
	default:
		return nil, fmt.Errorf("a %T is no message of this protocol", v)
	}
	room := Pool.Get(size)
	out := write((*room)[:0])
	if len(out) == 0 || &out[0] != &(*room)[0] { // it was short
		Pool.Put(room)
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	}
	*room = out
	return mem.BufferSlice{mem.NewBuffer(room, Pool)}, nil
}

func headersRoom(list []Header) (n int) {
	for _, h := range list {
		n += len(h.Name) + len(h.Value) + 24
	}
	return n
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(Pool)
	var err error
	switch m := v.(type) {
	case *Request:
		m.room = cmp.Or(c.MaxHead, math.MaxInt)
		if err = m.read(buffer.ReadOnlyData()); err == nil && m.Body != nil {
			m.buffer = buffer
			return nil
		}
	case *Response:
		if err = m.read(buffer.ReadOnlyData()); err == nil && m.Body != nil {
			m.buffer = buffer
			return nil
		}
	case *HealthRequest:
		err = m.read(buffer.ReadOnlyData())
	case *HealthResponse:
		err = m.read(buffer.ReadOnlyData())
	default:
		err = fmt.Errorf("a %T is no message of this protocol", v)
	}
	buffer.Free()
	return err
}
