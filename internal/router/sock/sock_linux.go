package sock

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Conn is a connection.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out call
	doIn    func(fd uintptr) bool
	doOut   func(fd uintptr) bool
}

// call is one system call.
type call struct {
	data []byte
	n    int
	err  syscall.Errno
}

// Wrap returns c, if it is a TCP connection, as one that reads and writes as the package
// says.
func Wrap(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	k := &Conn{Conn: t, raw: raw}
	k.doIn, k.doOut = k.read, k.write
	return k
}

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// CloseWrite ends what is sent.
func (c *Conn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() } //nolint:forcetypeassert // see Wrap

// do makes the call, again if a signal has come, and reports whether that was all: the
// runtime waits and does it again else.
func (x *call) do(trap, fd uintptr) bool {
	for {
		n, err := raw(trap, fd, x.data)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			x.n = n
		}
		x.err = err
		return true
	}
}

func (c *Conn) read(fd uintptr) bool { return c.in.do(syscall.SYS_READ, fd) }

func (c *Conn) write(fd uintptr) bool { return c.out.do(syscall.SYS_WRITE, fd) }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in = call{data: p}
	err := c.raw.Read(c.doIn)
	n, errno := c.in.n, c.in.err
	c.in.data = nil
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, c.failed("read", errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (done int, err error) {
	for len(p) > 0 {
		c.out = call{data: p}
		err = c.raw.Write(c.doOut)
		n, errno := c.out.n, c.out.err
		c.out.data = nil
		if err == nil && errno != 0 {
			err = c.failed("write", errno)
		}
		if err != nil {
			return done, err
		}
		done, p = done+n, p[n:]
	}
	return done, nil
}

func (c *Conn) failed(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
