package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Type is a socket type as the handshake names it.
type Type string

// The socket types that a Conn can be.
const (
	Sub    Type = "SUB"
	Dealer Type = "DEALER"
	Pub    Type = "PUB"
	Router Type = "ROUTER"
)

// ErrProtocol is wrapped by errors about a peer that does not speak ZMTP 3
// with the NULL mechanism, or not correctly. The connection is then useless.
var ErrProtocol = errors.New("not the protocol expected (ZMTP 3, NULL)")

// ErrTooLarge is returned for a message beyond Options.MaxMessage. Its frames
// that fit were kept, the others are empty; the connection goes on.
var ErrTooLarge = errors.New("message is too large")

// The flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	maxCommand = 1024    // bytes of a command that are looked at
	maxSkip    = 1 << 30 // bytes of a frame that are read past; beyond, the peer is at fault
	readAhead  = 64 << 10
)

// Options are a connection's settings. Zero fields take the defaults.
type Options struct {
	// MaxMessage is how many bytes of one message, all frames together, are
	// kept. Default 64 MiB.
	MaxMessage int
	// MaxFrames is how many frames a message may have. Default 64.
	MaxFrames int
	// Handshake bounds how long connecting and the handshake may take.
	// Default 5 s.
	Handshake time.Duration
	// Write bounds how long a write may take. Default 5 s.
	Write time.Duration
}

func (o *Options) setDefaults() {
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.MaxFrames <= 0 {
		o.MaxFrames = 64
	}
	if o.Handshake <= 0 {
		o.Handshake = 5 * time.Second
	}
	if o.Write <= 0 {
		o.Write = 5 * time.Second
	}
}

// Message is the frames of one message. The zero value is ready; reusing one
// makes reading allocate nothing once it has grown.
type Message struct {
	buf  []byte
	ends []int
}

// Len returns the number of frames.
func (m *Message) Len() int { return len(m.ends) }

// Frame returns frame i. It lives until the message is read into again.
func (m *Message) Frame(i int) []byte {
	start := 0
	if i > 0 {
		start = m.ends[i-1]
	}
	return m.buf[start:m.ends[i]:m.ends[i]]
}

// Size returns the number of bytes of all frames, and Cap how many the message
// has room for.
func (m *Message) Size() int { return len(m.buf) }

// Cap returns how many bytes the message has memory for.
func (m *Message) Cap() int { return cap(m.buf) }

// Conn is one connection after its handshake.
type Conn struct {
	net     net.Conn
	opts    Options
	r       *bufio.Reader
	scratch [maxCommand]byte // the reader's

	mu  sync.Mutex // held while writing
	out []byte     // guarded by mu
}

// Handshake makes a ZMTP connection of the given type out of a network
// connection, of either side. On an error it closes the network connection.
func Handshake(nc net.Conn, t Type, o Options) (*Conn, error) {
	o.setDefaults()
	c := &Conn{net: nc, opts: o, r: bufio.NewReaderSize(nc, readAhead)}
	if err := c.handshake(t); err != nil {
		_ = nc.Close() // the handshake's error is the one to tell
		return nil, fmt.Errorf("handshake with %s: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}

// Close ends the connection, and any read and write that wait on it.
func (c *Conn) Close() error { return c.net.Close() }

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on; the
// zero time means never. A connection whose read failed in the middle of a
// message is useless.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.net.SetReadDeadline(t) }

// Subscribe asks a PUB peer for the messages whose topic begins with the
// prefix.
func (c *Conn) Subscribe(prefix string) error {
	// The message form: libzmq takes it from peers that announce version 3.0.
	return c.WriteMessage(append([]byte{1}, prefix...))
}

// WriteMessage sends a message of one or more frames.
func (c *Conn) WriteMessage(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.out = append(appendHeader(c.out, flags, len(f)), f...)
	}
	return c.flush()
}

func (c *Conn) writeCommand(name string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendHeader(c.out[:0], flagCommand, 1+len(name)+len(body))
	c.out = append(append(append(c.out, byte(len(name))), name...), body...)
	return c.flush()
}

// flush sends c.out; c.mu must be held.
func (c *Conn) flush() error {
	if err := c.net.SetWriteDeadline(time.Now().Add(c.opts.Write)); err != nil {
		return err
	}
	_, err := c.net.Write(c.out)
	if cap(c.out) > 1<<20 {
		c.out = nil
	}
	return err
}

func appendHeader(b []byte, flags byte, size int) []byte {
	if size < 256 {
		return append(b, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
}

// ReadMessage reads the next message into m. It returns ErrTooLarge for a
// message that was cut down; after any other error the connection is useless.
func (c *Conn) ReadMessage(m *Message) error {
	m.buf, m.ends = m.buf[:0], m.ends[:0]
	var cut error
	for {
		flags, size, err := c.header(len(m.ends) > 0)
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			if err := c.command(size); err != nil {
				return err
			}
			continue
		}
		switch {
		case len(m.ends) == c.opts.MaxFrames:
			return fmt.Errorf("%w: a message of more than %d frames", ErrProtocol, c.opts.MaxFrames)
		case cut != nil || size > uint64(c.opts.MaxMessage-len(m.buf)):
			cut = ErrTooLarge
			err = c.skip(size)
		default:
			err = c.body(m, int(size))
		}
		if err != nil {
			return err
		}
		m.ends = append(m.ends, len(m.buf))
		if flags&flagMore == 0 {
			return cut
		}
	}
}

// header reads a frame's flags and size. Within a message the end of the
// stream is unexpected.
func (c *Conn) header(within bool) (flags byte, size uint64, err error) {
	flags, err = c.r.ReadByte()
	if err != nil {
		if within && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	if flags > flagMore|flagLong|flagCommand || flags&flagMore != 0 && flags&flagCommand != 0 {
		return 0, 0, fmt.Errorf("%w: a frame with flags %#x", ErrProtocol, flags)
	}
	n := 1
	if flags&flagLong != 0 {
		n = 8
	}
	b, err := c.r.Peek(n)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	size = uint64(b[0])
	if flags&flagLong != 0 {
		size = binary.BigEndian.Uint64(b)
	}
	_, _ = c.r.Discard(n) // these bytes were just seen
	return flags, size, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// body appends a frame's n bytes to m, growing it as they arrive.
func (c *Conn) body(m *Message, n int) error {
	for n > 0 {
		at := len(m.buf)
		if cap(m.buf) == at {
			room := make([]byte, at, max(2*at, at+min(n, readAhead)))
			copy(room, m.buf)
			m.buf = room
		}
		step := min(n, cap(m.buf)-at)
		m.buf = m.buf[:at+step]
		if _, err := io.ReadFull(c.r, m.buf[at:]); err != nil {
			return unexpected(err)
		}
		n -= step
	}
	return nil
}

// skip reads past a frame's body.
func (c *Conn) skip(size uint64) error {
	if size > maxSkip {
		return fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, size)
	}
	_, err := io.CopyN(io.Discard, c.r, int64(size))
	return unexpected(err)
}

// command reads a command's body and does what it asks: a PING is answered
// whatever version the peer announced, an ERROR ends the connection, the rest
// (SUBSCRIBE of newer peers among it) is no business of ours.
func (c *Conn) command(size uint64) error {
	if size > maxCommand {
		return c.skip(size)
	}
	name, body, err := c.readCommand(size)
	if err != nil {
		return err
	}
	switch name {
	case "PING": // a time to live of 2 bytes, then what the PONG is to repeat
		if len(body) < 2 {
			return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(body))
		}
		return c.writeCommand("PONG", body[2:])
	case "ERROR":
		return fmt.Errorf("%w: the peer says %q", ErrProtocol, body)
	}
	return nil
}

// readCommand reads a command of at most maxCommand bytes. The body lives until
// the next one.
func (c *Conn) readCommand(size uint64) (name string, body []byte, err error) {
	b := c.scratch[:size]
	if _, err := io.ReadFull(c.r, b); err != nil {
		return "", nil, unexpected(err)
	}
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return "", nil, fmt.Errorf("%w: a command without a name", ErrProtocol)
	}
	b, body = b[1:1+b[0]], b[1+b[0]:]
	switch string(b) { // constants, so that naming one allocates nothing
	case "PING":
		return "PING", body, nil
	case "READY":
		return "READY", body, nil
	case "ERROR":
		return "ERROR", body, nil
	}
	return "", body, nil
}
