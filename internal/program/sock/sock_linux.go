package sock

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is a connection.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out call
	doIn    func(fd uintptr) bool
	doOut   func(fd uintptr) bool
	doLater func(fd uintptr) bool
	doAsk   func(fd uintptr) bool
	doBoth  func(fd uintptr) bool
	asked   bool                   // of Ask: it has written
	silent  bool                   // of Ask: it writes only where nothing has come
	spoke   bool                   // of Ask: something had, and it has not written
	room    func(wait bool) []byte // of ReadWhere and readBoth
}

// call is one system call.
type call struct {
	data []byte
	more []byte        // of SYS_READV and SYS_WRITEV: what comes behind data
	into [2]unix.Iovec // of those: both, as the kernel wants them
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
	k.doIn, k.doOut, k.doLater, k.doAsk, k.doBoth = k.read, k.write, k.readWhere, k.ask, k.readIntoBoth
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
		n, err := raw(trap, fd, x)
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
	return c.wait(c.doIn)
}

// ReadWhere is a Read into what room returns, to which it says whether the connection
// is to wait now. So who waits may do so without a buffer.
func (c *Conn) ReadWhere(room func(wait bool) []byte) (int, error) {
	c.in, c.room = call{}, room
	return c.wait(c.doLater)
}

func (c *Conn) readWhere(fd uintptr) bool {
	c.in.data = c.room(false)
	if !c.read(fd) {
		c.in.data = c.room(true)
		return false
	}
	return true
}

// readBoth is a Read into p and, when that is full, into what room returns, as ReadWhere's.
func (c *Conn) readBoth(p []byte, room func(wait bool) []byte) (int, error) {
	c.in, c.room = call{data: p}, room
	return c.wait(c.doBoth)
}

func (c *Conn) readIntoBoth(fd uintptr) bool {
	c.in.more = c.room(false)
	if !c.in.do(syscall.SYS_READV, fd) {
		c.in.more = c.room(true)
		return false
	}
	return true
}

// wait reads by do, when there is something.
func (c *Conn) wait(do func(fd uintptr) bool) (int, error) {
	err := c.raw.Read(do)
	n, errno := c.in.n, c.in.err
	c.in, c.room = call{}, nil // keeps no buffer
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

// Ask is a Write of p and more, at once, that then waits until there may be something to read. Who reads an answer
// need not look for it as long as it cannot be there; where something has come before, or the
// other side's end, there is no wait.
// The error is about writing: what ended the wait the next Read tells. With silent nothing is
// written where something has come before, or the end: then it is ErrSpoke.
func (c *Conn) Ask(p, more []byte, silent bool) error {
	c.out, c.asked, c.silent, c.spoke = call{data: p, more: more}, false, silent, false
	err := c.raw.Read(c.doAsk)
	n, errno := c.out.n, c.out.err
	c.out = call{} // keeps no buffer
	switch {
	case c.spoke:
		return ErrSpoke
	case !c.asked:
		return err
	case errno != 0:
		return c.failed("write", errno)
	}
	if n < len(p) {
		if _, err = c.Write(p[n:]); err != nil {
			return err
		}
	}
	_, err = c.Write(more[max(n-len(p), 0):])
	return err
}

// ask writes when it is called first, and is to be called again when there may be something
// to read. That it is a reader's call makes the runtime note what comes meanwhile. What has
// come before it notes no more: who waits for that waits as long as the other side likes.
func (c *Conn) ask(fd uintptr) bool {
	if c.asked {
		return true
	}
	before := readable(fd)
	if c.spoke = before && c.silent; c.spoke {
		return true
	}
	c.asked = true
	trap := uintptr(syscall.SYS_WRITE)
	if len(c.out.more) > 0 {
		trap = syscall.SYS_WRITEV
	}
	return !c.out.do(trap, fd) || c.out.err != 0 || c.out.n < len(c.out.data)+len(c.out.more) || before
}

// readable reports whether there is something to read, or the end, or may be.
func readable(fd uintptr) bool {
	n, err := poll(&unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP})
	return err != 0 || n > 0
}

func (c *Conn) failed(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
