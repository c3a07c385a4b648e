package upstream

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/sock"
)

const (
	readBuffer = 16 << 10
	// smallBody is the size up to which a body that is not in one piece, or that has to be, is copied
	// behind its head, to be written at once.
	smallBody = 16 << 10
	// keepBuffer is the largest buffer that an idle connection keeps.
	keepBuffer = 32 << 10
)

// conn is one connection. Its goroutine is that of the request it is used by.
type conn struct {
	client  *Client
	address string
	net     net.Conn
	limited limited
	in      *bufio.Reader
	out     []byte
	since   time.Time             // idle
	raw     syscall.RawConn       // nil if it has none
	look    func(fd uintptr) bool // peek, once made; where there is one
	silent  bool                  // it is open, and nothing has come: look found so
	one     [1]byte               // what look reads
	stop    func()                // interrupt
	// ask writes a request's head and its body, whose answer is waited for next; with silent, only
	// if nothing has come. nil where that is to be looked for before.
	ask func(p, more []byte, silent bool) error

	abort func() bool // stops the watch over the request's context
	over  bool        // the request's use of it has ended
	heard bool        // a byte of its answer has come
}

// limited is a reader with a bound on what it still gives.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, ErrHeader
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	return n, err
}

func newConn(c *Client, address string, n net.Conn) *conn {
	k := &conn{client: c, address: address, net: n, limited: limited{r: n}}
	k.in = bufio.NewReaderSize(&k.limited, readBuffer)
	k.stop = k.interrupt
	if a, ok := n.(interface {
		Ask(p, more []byte, silent bool) error
	}); ok {
		k.ask = a.Ask
	}
	if sc, ok := n.(syscall.Conn); ok {
		k.raw, _ = sc.SyscallConn() // without, nobody looks whether it is alive
	}
	return k
}

// interrupt ends whatever waits for the connection, which is of no use then.
func (k *conn) interrupt() { _ = k.net.SetDeadline(time.Unix(1, 0)) }

// exchange writes the request and reads the head of the answer. The error is sock.ErrSpoke if
// the connection, which has been used, was of no use any more: then nothing was written.
func (k *conn) exchange(req *http.Request, data *Body, x *Exchange, used bool) (*http.Response, error) {
	maxHeader := k.client.cfg.MaxHeader
	k.over, k.heard = false, false
	werr := k.write(req, data, used)
	if errors.Is(werr, sock.ErrSpoke) {
		return nil, werr
	}
	// An engine that refuses the request may have answered before all of it came.
	k.limited.left = maxHeader + readBuffer
	resp, usual, err := k.reply(req, x)
	for err == nil && !usual {
		if resp, err = http.ReadResponse(k.in, req); err != nil || resp.StatusCode >= 200 {
			break
		}
		k.heard = true
		err = noAnswer(resp.StatusCode)
	}
	if err != nil {
		k.heard = k.heard || k.limited.left < maxHeader+readBuffer
		return nil, errors.Join(werr, err)
	}
	k.limited.left = math.MaxInt64
	a := x.newAnswer()
	*a = answer{body: resp.Body, conn: k, again: !resp.Close && werr == nil}
	switch {
	case usual && resp.ContentLength < 0:
		a.body = newPieces(k.in)
	case usual:
		a.sized = sized{k.in, resp.ContentLength}
		a.body = &a.sized
	}
	resp.Body = a
	return resp, nil
}

// noAnswer returns what is wrong with a status below those of answers; nil if an answer is to follow it.
func noAnswer(status int) error {
	switch {
	case status < 100:
		return ErrAnswer
	case status == http.StatusSwitchingProtocols:
		return ErrProtocol
	}
	return nil
}

// looks reports whether a connection that has been used is looked at when a request with that
// body is written, at once with that.
func (k *conn) looks(data *Body) bool {
	_, one := data.one()
	return k.ask != nil && (one || data.Len() <= smallBody)
}

func (k *conn) write(req *http.Request, data *Body, used bool) error {
	length := data.Len()
	b := append(k.out[:0], req.Method...)
	b = append(append(append(b, ' '), req.URL.RequestURI()...), " HTTP/1.1\r\nHost: "...)
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	b = append(append(b, host...), "\r\n"...)
	for name, values := range req.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection":
			continue // of this connection
		}
		for _, v := range values {
			b = append(append(append(append(b, name...), ": "...), v...), "\r\n"...)
		}
	}
	if length > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(length), 10), "\r\n"...)
	}
	b = append(b, "\r\n"...)
	defer func() {
		if k.out = b; cap(b) > keepBuffer {
			k.out = nil
		}
	}()
	piece, one := data.one()
	switch {
	case one && k.ask != nil:
		return k.ask(b, piece, used)
	case length > smallBody:
		if _, err := k.net.Write(b); err != nil {
			return err
		}
		return data.writeTo(k.net)
	}
	if b = data.append(b); k.ask != nil {
		return k.ask(b, nil, used)
	}
	_, err := k.net.Write(b)
	return err
}

// end gives the connection back, to be used again if it is good for that.
func (k *conn) end(again bool) {
	if k.over {
		return
	}
	k.over = true
	stopped := k.abort()
	if again && stopped && k.in.Buffered() == 0 {
		k.client.put(k)
		return
	}
	_ = hangUp(k.net) // nobody waits for it
}

// answer is the body of an answer.
type answer struct {
	body  io.Reader
	sized sized
	conn  *conn
	again bool // the connection is good for another request after this
	ended bool
}

func (a *answer) Read(p []byte) (int, error) {
	if a.ended {
		return 0, io.EOF
	}
	n, err := a.body.Read(p)
	if err != nil {
		a.ended = true
		a.conn.end(a.again && err == io.EOF) //nolint:errorlint // readers return it bare
	}
	return n, err
}

// Close implements io.Closer. Before the body's end it ends the connection.
func (a *answer) Close() error {
	if !a.ended {
		a.ended = true
		a.conn.end(false)
	}
	return nil
}
