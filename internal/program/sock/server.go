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

	spare *[spareSize]byte // where what is beyond is read to; nil: nothing is, or it waits
	rest  []byte           // of that
	room  func(wait bool) []byte
}

// beyond is a connection that reads into p and then into what room returns, to which it says
// whether it is to wait now: of a server's connections most do.
type beyond interface {
	readBoth(p []byte, room func(wait bool) []byte) (int, error)
}

func forServer(c net.Conn) *serverConn {
	k := &serverConn{Conn: c}
	k.both, _ = c.(beyond)
	k.room, k.in.tell, k.out.tell = k.more, c.SetReadDeadline, c.SetWriteDeadline
	return k
}

// Read implements net.Conn.
func (c *serverConn) Read(p []byte) (n int, err error) {
	if len(c.rest) > 0 {
		n = copy(p, c.rest)
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.more(true)
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
	n, err := c.both.readBoth(p, c.room)
	if n > len(p) {
		c.rest = c.spare[:n-len(p)]
		return len(p), err
	}
	c.more(true)
	return n, err
}

// more returns where to read what is beyond; to wait, it gives that back.
func (c *serverConn) more(wait bool) []byte {
	switch {
	case !wait && c.spare == nil:
		c.spare = spares.Get().(*[spareSize]byte) //nolint:forcetypeassert // the pool holds nothing else
	case wait && c.spare != nil:
		spares.Put(c.spare)
		c.spare = nil
	}
	if wait {
		return nil
	}
	return c.spare[:]
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
