package recovery

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/event"
)

// The messages, byte for byte, are in docs/wire-format.md. Both begin with magic,
// version and a kind.
const (
	magic        = "KVR"
	version      = 1
	requestBytes = 3 + 1 + 1 + 4 + 8 + 8 + 8 + 4
	replyBytes   = 3 + 1 + 1 + 1 + 8 + 8 + 8 + 4 + 4
)

// ErrMessage is wrapped by the error for a message that cannot be understood.
var ErrMessage = errors.New("recovery message is malformed")

// Request asks for a page. The zero value of Dump asks for events From … To,
// or for the first part of a dump if From is 0; else part Part of that dump.
type Request struct {
	DPRank uint32
	From   uint64
	To     uint64 // 0: all there are
	Dump   uint64 // number of the dump that was begun
	Part   uint32
}

const kindRequest = 1

// AppendRequest appends the encoding of r to dst.
func AppendRequest(dst []byte, r Request) []byte {
	dst = append(dst, magic...)
	dst = append(dst, version, kindRequest)
	dst = binary.LittleEndian.AppendUint32(dst, r.DPRank)
	dst = binary.LittleEndian.AppendUint64(dst, r.From)
	dst = binary.LittleEndian.AppendUint64(dst, r.To)
	dst = binary.LittleEndian.AppendUint64(dst, r.Dump)
	return binary.LittleEndian.AppendUint32(dst, r.Part)
}

// DecodeRequest is the inverse of AppendRequest.
func DecodeRequest(b []byte) (Request, error) {
	if len(b) != requestBytes || string(b[:3]) != magic || b[3] != version || b[4] != kindRequest {
		return Request{}, fmt.Errorf("%w: no request of version %d", ErrMessage, version)
	}
	return Request{
		DPRank: binary.LittleEndian.Uint32(b[5:]),
		From:   binary.LittleEndian.Uint64(b[9:]),
		To:     binary.LittleEndian.Uint64(b[17:]),
		Dump:   binary.LittleEndian.Uint64(b[25:]),
		Part:   binary.LittleEndian.Uint32(b[33:]),
	}, nil
}

// Kind says what a Reply is.
type Kind uint8

// The kinds of reply.
const (
	Events  Kind = iota + 2 // Body is a native batch, or empty if nothing follows
	Dump                    // Body is part Part of Parts of a dump as of event Last
	TooNew                  // From is beyond Last+1
	Invalid                 // the request has no meaning
	Busy                    // ask again later
)

// String returns the kind's name in metrics and logs.
func (k Kind) String() string {
	return [...]string{Events: "events", Dump: "dump", TooNew: "too_new", Invalid: "invalid", Busy: "busy"}[min(k, Busy)]
}

// Reply is the answer to a Request.
type Reply struct {
	Kind             Kind
	More             bool // Events: more follow Last of the body
	Incomplete       bool // the publisher does not know all that this rank holds
	StreamIncomplete bool // the rank's stream lacks events that nobody has any more
	Incarnation      uint64
	// Last is the id of the rank's newest event; of a Dump: of the newest in it.
	Last        uint64
	Dump        uint64 // Dump: its number
	Part, Parts uint32 // Dump: from 0
	Body        []byte
}

const (
	flagMore = 1 << iota
	flagIncomplete
	flagStreamIncomplete
)

// AppendReply appends the encoding of r to dst.
func AppendReply(dst []byte, r *Reply) []byte {
	var flags byte
	if r.More {
		flags |= flagMore
	}
	if r.Incomplete {
		flags |= flagIncomplete
	}
	if r.StreamIncomplete {
		flags |= flagStreamIncomplete
	}
	dst = append(dst, magic...)
	dst = append(dst, version, byte(r.Kind), flags)
	dst = binary.LittleEndian.AppendUint64(dst, r.Incarnation)
	dst = binary.LittleEndian.AppendUint64(dst, r.Last)
	dst = binary.LittleEndian.AppendUint64(dst, r.Dump)
	dst = binary.LittleEndian.AppendUint32(dst, r.Part)
	dst = binary.LittleEndian.AppendUint32(dst, r.Parts)
	return append(dst, r.Body...)
}

// DecodeReply is the inverse of AppendReply. Body is part of b.
func DecodeReply(b []byte) (Reply, error) {
	if len(b) < replyBytes || string(b[:3]) != magic || b[3] != version {
		return Reply{}, fmt.Errorf("%w: no reply of version %d", ErrMessage, version)
	}
	r := Reply{
		Kind:             Kind(b[4]),
		More:             b[5]&flagMore != 0,
		Incomplete:       b[5]&flagIncomplete != 0,
		StreamIncomplete: b[5]&flagStreamIncomplete != 0,
		Incarnation:      binary.LittleEndian.Uint64(b[6:]),
		Last:             binary.LittleEndian.Uint64(b[14:]),
		Dump:             binary.LittleEndian.Uint64(b[22:]),
		Part:             binary.LittleEndian.Uint32(b[30:]),
		Parts:            binary.LittleEndian.Uint32(b[34:]),
		Body:             b[replyBytes:],
	}
	switch {
	case r.Kind < Events || r.Kind > Busy || b[5] > flagMore|flagIncomplete|flagStreamIncomplete:
		return Reply{}, fmt.Errorf("%w: reply of kind %d, flags %#x", ErrMessage, b[4], b[5])
	case r.Kind == Dump && r.Part >= r.Parts:
		return Reply{}, fmt.Errorf("%w: part %d of %d", ErrMessage, r.Part, r.Parts)
	}
	return r, nil
}

// A dump is a row of frames of the events of core.Index.Dump and, marked as
// incomplete, of Orphans.Dump, cut into parts anywhere: a u32 length, then a u32
// length of a native batch, the batch, and a varint for each of its engine
// hashes, how many copies it has.
const (
	frameTarget = 64 << 10
	// maxFrame bounds what a replica gathers of a frame: one event's chain may
	// be that long.
	maxFrame  = 256 << 20
	maxCopies = 1 << 16 // of one block on one tier
)

func appendFrame(dst []byte, b *event.Batch, copies [][]uint32) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = event.AppendBatch(dst, b)
	binary.LittleEndian.PutUint32(dst[start+4:], uint32(len(dst)-start-8))
	for _, list := range copies {
		for _, c := range list {
			dst = binary.AppendUvarint(dst, uint64(min(c, maxCopies)))
		}
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// Frames puts the parts of a dump together again. The zero value is ready.
type Frames struct {
	dec  event.Decoder
	rest []byte // of a frame that is not whole yet
}

// Add takes the next part and calls f for every frame that is now whole, with
// its events and their copies, which live until f returns.
func (d *Frames) Add(part []byte, f func(b *event.Batch, copies [][]uint32) error) error {
	d.rest = append(d.rest, part...)
	rest := d.rest
	for len(rest) >= 4 {
		size := binary.LittleEndian.Uint32(rest)
		if size > maxFrame {
			return fmt.Errorf("%w: a frame of %d bytes", ErrMessage, size)
		}
		n := int(size)
		if len(rest)-4 < n {
			break
		}
		if err := d.frame(rest[4:4+n], f); err != nil {
			return err
		}
		rest = rest[4+n:]
	}
	d.rest = append(d.rest[:0], rest...)
	return nil
}

// Finish fails if the last frame is not whole.
func (d *Frames) Finish() error {
	if len(d.rest) > 0 {
		return fmt.Errorf("%w: the dump ends within a frame", ErrMessage)
	}
	return nil
}

func (d *Frames) frame(b []byte, f func(b *event.Batch, copies [][]uint32) error) error {
	if len(b) < 4 {
		return fmt.Errorf("%w: a frame of %d bytes", ErrMessage, len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return fmt.Errorf("%w: a batch of %d in %d bytes", ErrMessage, n, len(b))
	}
	batch, err := d.dec.Decode(b[:n])
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	b = b[n:]
	all := make([]uint32, 0, len(b)) // at least a byte each
	copies := make([][]uint32, len(batch.Events))
	for i := range batch.Events {
		ev := &batch.Events[i]
		if ev.Kind != event.Stored {
			return fmt.Errorf("%w: a dump with an event of kind %s", ErrMessage, ev.Kind)
		}
		start := len(all)
		for range ev.Engine {
			c, n := binary.Uvarint(b)
			if n <= 0 || c > maxCopies {
				return fmt.Errorf("%w: copies of a block", ErrMessage)
			}
			all, b = append(all, uint32(c)), b[n:]
		}
		copies[i] = all[start:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes after a frame", ErrMessage, len(b))
	}
	return f(batch, copies)
}
