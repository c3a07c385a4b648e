package downstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/sock"
	"github.com/kvatlas/kvatlas/internal/router/head"
)

// States of a connection.
const (
	newConnection int32 = iota // nothing has come yet
	idleConn
	busyConn
	closedConn
)

const (
	// inSize is how much is read at once: most chats. A head that is longer gets more. Where
	// something is between, as TLS, which has read it already, it is less.
	inSize      = 16 << 10
	inSizeOther = 8 << 10 // more than maxLine
	// fewBytes are kept apart while more is waited for: a slow head takes no whole buffer.
	fewBytes = 1 << 10
	// drainMost is how much of a body is read that its handler did not want, so that the
	// connection can go on.
	drainMost = 256 << 10
	// lingering is how long the client of a connection that is being closed has to read
	// its answer: what it sends meanwhile would make the kernel throw that away.
	lingering = 500 * time.Millisecond
)

// ins are buffers of inSize for what is read.
var ins = sync.Pool{New: func() any { return new([inSize]byte) }}

// preface is how HTTP/2 begins.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// conn is one connection, with what its last request left to be used again.
type conn struct {
	server *Server
	net    net.Conn
	io     net.Conn        // what is read and written: net, or the socket where nothing is between
	raw    syscall.RawConn // nil if it has none
	begun  time.Time
	state  atomic.Int32
	ctx    context.Context //nolint:containedctx // all its requests'
	cancel context.CancelFunc

	// in[r:w] is what was read and not looked at. It is of size, and from the pool, only
	// while there is something to read: clients may have thousands of connections, of which
	// most wait.
	in      []byte
	r, w    int
	size    int
	where   func(wait bool) []byte // room
	readBy  time.Time              // the deadline in force
	timed   bool                   // it is this request's
	dropped atomic.Bool            // the handler's deadline is over

	blank   *http.Request // what every request begins as
	request http.Request
	url     url.URL
	body    body
	answer  answer
	kept    any // see answer.Kept
}

func newConn(s *Server, c net.Conn) *conn {
	k := &conn{server: s, net: c, io: c, begun: time.Now()}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.blank = new(http.Request).WithContext(k.ctx)
	k.blank.Header, k.blank.RemoteAddr, k.blank.Body = make(http.Header), c.RemoteAddr().String(), http.NoBody
	k.body.conn, k.answer.conn = k, k
	k.answer.header, k.where, k.size = make(http.Header), k.room, inSizeOther
	k.request = *k.blank
	for inner, plain := c, true; ; {
		if sc, ok := inner.(syscall.Conn); ok {
			if k.raw, _ = sc.SyscallConn(); plain { // without, nobody looks whether its client is there
				k.io = sock.Wrap(inner)
				k.size = inSize
			}
			return k
		}
		wrapped, ok := inner.(interface{ NetConn() net.Conn })
		if !ok {
			return k
		}
		if _, ok := inner.(*tls.Conn); ok {
			plain = false
		}
		inner = wrapped.NetConn()
	}
}

// serve serves the connection to its end.
func (k *conn) serve() {
	defer k.server.remove(k)
	defer k.cancel()
	defer k.release()
	switch second, err := k.isHTTP2(); {
	case err != nil:
		_ = k.net.Close() // nothing was asked on it
		return
	case second:
		k.deadline(time.Time{})
		k.server.second.give(&begunConn{Conn: k.net, rest: bytes.Clone(k.in[:k.w])})
		return
	}
	for k.one() {
	}
	_ = k.net.Close() // nothing is under way
}

// isHTTP2 waits for the first bytes and looks whether they are of HTTP/2.
func (k *conn) isHTTP2() (bool, error) {
	if k.server.second == nil {
		return false, nil
	}
	k.timed = false
	for {
		n := min(k.w, len(preface))
		switch {
		case string(k.in[:n]) != preface[:n]:
			return false, nil
		case n == len(preface):
			return true, nil
		}
		if err := k.fill(); err != nil {
			return false, err
		}
	}
}

// begunConn is a connection of which some was read.
type begunConn struct {
	net.Conn
	rest []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// await waits for the first byte of a request, and reports whether there is one.
func (k *conn) await() bool {
	if k.r == k.w {
		if k.state.Load() == newConnection {
			k.timed = false // the first is to come soon
		} else if by := time.Now().Add(k.server.cfg.IdleTimeout); by.Sub(k.readBy).Abs() > k.server.cfg.IdleTimeout/16 {
			// To set it anew for each request costs more than it brings.
			k.deadline(by)
		}
		if k.fill() != nil {
			return false
		}
	}
	if !k.state.CompareAndSwap(newConnection, busyConn) && !k.state.CompareAndSwap(idleConn, busyConn) {
		return false // it was closed
	}
	k.timed = false
	return true
}

func (k *conn) deadline(by time.Time) {
	k.readBy = by
	_ = k.net.SetReadDeadline(by) // else the read fails
}

// acquire makes room for what is read, if there is none.
func (k *conn) acquire() {
	if len(k.in) >= k.size {
		return
	}
	few := k.in[k.r:k.w]
	if k.size == inSize {
		k.in = ins.Get().(*[inSize]byte)[:] //nolint:forcetypeassert // the pool holds nothing else
	} else {
		k.in = make([]byte, k.size)
	}
	k.r, k.w = 0, copy(k.in, few)
}

// release gives the room back, with whatever is in it.
func (k *conn) release() {
	if len(k.in) == inSize { // else it was a long head's
		ins.Put((*[inSize]byte)(k.in))
	}
	k.in, k.r, k.w = nil, 0, 0
}

// fill reads more, behind what there is.
func (k *conn) fill() error {
	if k.r == k.w {
		k.r, k.w = 0, 0
	}
	n, err := k.readIn()
	k.w += n
	if n > 0 {
		return nil
	}
	return err
}

// readIn reads into the buffer.
func (k *conn) readIn() (int, error) {
	s, ok := k.io.(waiter)
	if !ok {
		k.acquire()
		return k.read(k.in[k.w:])
	}
	if err := k.mayRead(); err != nil {
		return 0, err
	}
	return s.ReadWhere(k.where)
}

// room is what of the buffer is free while there may be something to read, and nothing
// while that is waited for.
func (k *conn) room(wait bool) []byte {
	if !wait {
		k.acquire()
		return k.in[k.w:]
	}
	if n := k.w - k.r; n <= fewBytes {
		few := bytes.Clone(k.in[k.r:k.w])
		k.release()
		k.in, k.w = few, n
	}
	return nil
}

// waiter is a connection that asks for room when it needs some; see sock.Conn.
type waiter interface {
	ReadWhere(room func(wait bool) []byte) (int, error)
}

// read reads from the connection.
func (k *conn) read(p []byte) (int, error) {
	if err := k.mayRead(); err != nil {
		return 0, err
	}
	return k.io.Read(p)
}

// mayRead is called before each read. Of a request only its first bytes may be waited for
// without its deadline.
func (k *conn) mayRead() error {
	if k.timed = k.timed || k.state.Load() == idleConn; !k.timed {
		k.timed = true
		k.deadline(time.Now().Add(k.server.cfg.ReadTimeout))
	}
	if k.dropped.Load() { // after a deadline is set: who drops the request sets another one then
		return errTooSlow
	}
	return nil
}

var errTooSlow = errors.New("the request took too long to arrive")

// one serves a request, and reports whether there may be another.
func (k *conn) one() (again bool) {
	if !k.await() {
		return false
	}
	data, err := k.head()
	var bad *badRequest
	if err == nil {
		err = k.parse(data)
	}
	switch {
	case errors.As(err, &bad):
		k.server.cfg.Refused(bad.reason)
		k.answer.refuse(bad)
		k.linger()
		return false
	case err != nil:
		return false // it broke off
	}
	if !k.handle() {
		k.breakOff()
		return false
	}
	if again = k.finish(); again {
		k.forget()
		k.state.Store(idleConn)
		again = !k.server.closing.Load()
	}
	return again
}

// handle calls the handler, and reports whether it came back.
func (k *conn) handle() (ok bool) {
	defer func() {
		if ok {
			return
		}
		if why := recover(); why != nil && why != http.ErrAbortHandler { //nolint:errorlint // as net/http has it
			k.server.cfg.Log.Error("a request made its handler panic", slog.Any("panic", why), slog.String("stack", string(debug.Stack())))
		}
	}()
	k.server.cfg.Handler.ServeHTTP(&k.answer, &k.request)
	return true
}

// finish ends the answer, and reports whether the connection is good for another request.
func (k *conn) finish() (again bool) {
	if k.body.expected || k.body.more > drainMost {
		k.answer.closes = true // it is not waited for
	}
	if !k.answer.finish() {
		k.breakOff()
		return false
	}
	if !k.body.over && (k.answer.closes || !k.body.drain()) {
		k.linger()
		return false
	}
	return !k.answer.closes && !k.dropped.Load() && k.ctx.Err() == nil
}

// breakOff is for an answer that is not whole. Where its end would be the connection's the client is told by
// a reset, which is none; over TLS, too, which would say that it ends.
func (k *conn) breakOff() {
	if !k.answer.endless() {
		return
	}
	for c := k.net; ; {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // else there is no connection any more
			_ = t.Close()      // what is about it is closed by serve
			return
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		c = wrapped.NetConn()
	}
}

// mostKept is how many headers the maps have room for that a connection keeps.
const mostKept = 64

// forget lets go of a request and its answer: a connection may be idle for long, and a
// head that had room for thousands of headers would stay as long.
func (k *conn) forget() {
	if len(k.blank.Header) > mostKept {
		k.blank.Header = make(http.Header)
	}
	if len(k.answer.header) > mostKept {
		k.answer.header = make(http.Header)
	}
	clear(k.blank.Header)
	clear(k.answer.header)
	k.request, k.url = *k.blank, url.URL{}
}

// linger lets the client read its answer before the connection is closed, though it still
// sends.
func (k *conn) linger() {
	if c, ok := k.io.(interface{ CloseWrite() error }); !ok || c.CloseWrite() != nil {
		return
	}
	_ = k.io.SetReadDeadline(time.Now().Add(lingering)) // else the read fails
	k.acquire()
	for err := error(nil); err == nil; {
		_, err = k.io.Read(k.in)
	}
}

// head returns the head of a request, with the empty line at its end.
func (k *conn) head() ([]byte, error) {
	for looked := 0; ; {
		n := head.End(k.in[k.r:k.w], &looked)
		if max(n, looked) > k.server.cfg.MaxHeader {
			return nil, errLongHead
		}
		if n > 0 {
			k.r += n
			return k.in[k.r-n : k.r], nil
		}
		k.w, k.r = copy(k.in, k.in[k.r:k.w]), 0
		if k.w > 0 && k.w == len(k.in) {
			k.in = append(k.in, make([]byte, min(len(k.in), k.server.cfg.MaxHeader))...)
		}
		if err := k.fill(); err != nil {
			return nil, err
		}
	}
}
