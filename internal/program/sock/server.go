package sock

import (
	"net"
	"sync"
	"time"
)

// spareSize is how much a server's connection reads beyond what it was asked for.
const spareSize = 8 << 10

var spares = sync.Pool{New: func() any { return new([spareSize]byte) }}

// serverConn is a connection of a server that reads by a buffer, and sets deadlines for each
// request, as fasthttp does: deadlines that are put off cost nothing, and a request whose body
// is a little larger than the buffer is read at once, not its body apart from its head.
type serverConn struct {
	net.Conn
	both    beyond // nil: it reads no further than it is asked to
	in, out deadline

	spare *[spareSize]byte // what was read beyond; nil: nothing was
	rest  []byte           // of that
}

// beyond is a connection that reads into p and then into q.
type beyond interface {
	readBoth(p, q []byte) (int, error)
}

func forServer(c net.Conn) *serverConn {
	k := &serverConn{Conn: c}
	k.both, _ = c.(beyond)
	k.in.tell, k.out.tell = c.SetReadDeadline, c.SetWriteDeadline
	return k
}

// Read implements net.Conn.
func (c *serverConn) Read(p []byte) (n int, err error) {
	if len(c.rest) > 0 {
		n = copy(p, c.rest)
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			spares.Put(c.spare)
			c.spare = nil
		}
		return n, nil
	}
	for {
		if n, err = c.read(p); !c.in.early(err) {
			return n, err
		}
	}
}

func (c *serverConn) read(p []byte) (int, error) {
	if c.both == nil || len(p) == 0 || len(p) > spareSize { // more is a body, read to where it stays
		return c.Conn.Read(p)
	}
	spare := spares.Get().(*[spareSize]byte) //nolint:forcetypeassert // the pool holds nothing else
	n, err := c.both.readBoth(p, spare[:])
	if n <= len(p) {
		spares.Put(spare)
		return n, err
	}
	c.spare, c.rest = spare, spare[:n-len(p)]
	return len(p), err
}

// Write implements net.Conn.
func (c *serverConn) Write(p []byte) (done int, err error) {
	for {
		n, err := c.Conn.Write(p[done:])
		if done += n; !c.out.early(err) {
			return done, err
		}
	}
}

// SetDeadline implements net.Conn.
func (c *serverConn) SetDeadline(t time.Time) error {
	if err := c.in.set(t); err != nil {
		return err
	}
	return c.out.set(t)
}

// SetReadDeadline implements net.Conn.
func (c *serverConn) SetReadDeadline(t time.Time) error { return c.in.set(t) }

// SetWriteDeadline implements net.Conn.
func (c *serverConn) SetWriteDeadline(t time.Time) error { return c.out.set(t) }
