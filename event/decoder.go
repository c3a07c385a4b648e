package event

import (
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// The reasons for which a message is refused. Every error of a Decoder wraps
// one of them.
var (
	ErrFormat    = errors.New("unknown message format")      // neither native, JSON nor msgpack
	ErrVersion   = errors.New("unsupported message version") // a newer publisher's, or an unknown flag
	ErrTruncated = errors.New("message is truncated")        // it ends before what it declares
	ErrMalformed = errors.New("message is malformed")        // it says something that has no meaning
)

// Reason returns a short constant word for why a message was refused, for use
// as a metric's label.
func Reason(err error) string {
	switch {
	case errors.Is(err, ErrFormat):
		return "format"
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrTruncated):
		return "truncated"
	}
	return "malformed"
}

// maxNames bounds how many model and group names a Decoder remembers.
const maxNames = 4096

// Decoder decodes messages and reuses its memory: once warm it allocates
// nothing. What it returns lives until its next call. The zero value is ready.
// It is not safe for concurrent use.
type Decoder struct {
	batches []Batch
	events  []Event
	last    []Position
	hashes  []uint64          // arena of the decoded hashes
	names   map[string]string // model and group names seen, so that they are not allocated again

	// Of RouterEvents only, whose hashes' number is not known beforehand:
	locals  []uint64  // arena of the local hashes
	pending []pending // one per event
	bad     []Bad
	json    jsonscan.Reader
}

// Decode decodes one message with a Decoder of its own. A bad RouterEvent in it
// is an error.
func Decode(msg []byte) ([]Batch, error) {
	var d Decoder
	batches, err := d.DecodeAny(msg)
	if err == nil && len(d.bad) > 0 {
		return nil, d.bad[0].Err
	}
	return batches, err
}

// DecodeAny decodes a message of any known format, told by its first byte: a
// native message, or RouterEvents as JSON or msgpack. Those name no space: the
// caller knows it from the subject they came on. A message with events of
// several workers gives several batches, in the message's order. A RouterEvent
// that cannot be used is left out, see Bad, unless all are so: then the error is
// that of the first. A native message is used as a whole or not at all.
func (d *Decoder) DecodeAny(msg []byte) ([]Batch, error) {
	if len(msg) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrTruncated)
	}
	switch c := msg[0]; {
	case c == nativeMagic[0]:
		if _, err := d.Decode(msg); err != nil {
			return nil, err
		}
		return d.batches, nil
	case c == '{', c == '[', c == ' ', c == '\t', c == '\n', c == '\r':
		return d.DecodeRouterJSON(msg)
	case c >= 0x80 && c <= 0x9f, c >= 0xdc && c <= 0xdf:
		return d.DecodeRouterMsgpack(msg)
	default:
		return nil, fmt.Errorf("%w: first byte %#x", ErrFormat, c)
	}
}

// Decode decodes a native message: a batch of events, or a heartbeat (no
// events, Last set or empty).
func (d *Decoder) Decode(msg []byte) (*Batch, error) {
	d.reset()
	d.batches = append(d.batches, Batch{})
	b := &d.batches[0]
	if err := d.decodeNative(b, msg); err != nil {
		return nil, fmt.Errorf("native message of %d bytes: %w", len(msg), err)
	}
	return b, nil
}

func (d *Decoder) reset() {
	clear(d.batches)
	d.batches, d.events, d.last, d.hashes = d.batches[:0], d.events[:0], d.last[:0], d.hashes[:0]
	d.locals, d.pending, d.bad = d.locals[:0], d.pending[:0], d.bad[:0]
}

// name returns the bytes as a string, the same one for the same bytes.
func (d *Decoder) name(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	if d.names == nil || len(d.names) >= maxNames {
		d.names = make(map[string]string)
	}
	s := string(b)
	d.names[s] = s
	return s
}
