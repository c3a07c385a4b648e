package query

import (
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// limitListener bounds the open connections, in all and of each client
// address. Connections beyond are answered with a problem and closed.
//
// fasthttp has such limits of its own, but its wrapper of a connection is not
// safe to close from Shutdown while it is read (1.74, peripconn.go), and its
// refusals are plain text.
type limitListener struct {
	net.Listener
	total, perAddress int
	silent            bool // close what is refused without an answer: it expects TLS
	refuse            func(reason string)

	mu struct {
		sync.Mutex
		open      int
		addresses map[netip.Addr]int
	}
}

func newLimitListener(ln net.Listener, total, perAddress int, silent bool, refuse func(reason string)) *limitListener {
	l := &limitListener{Listener: ln, total: total, perAddress: perAddress, silent: silent, refuse: refuse}
	l.mu.addresses = make(map[netip.Addr]int)
	return l
}

// Accept returns the next connection within the limits.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := clientAddress(c)
		p := l.take(addr)
		if p == nil {
			return &limitedConn{Conn: c, listener: l, address: addr}, nil
		}
		l.refuse(p.Reason)
		if l.silent {
			_ = c.Close() // nothing is lost with it
			continue
		}
		sendRefusal(c, p)
	}
}

// clientAddress returns what one client has of its own: an IPv4 address, or
// the first 64 bits of an IPv6 one, below which a client chooses freely.
func clientAddress(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(tcp.IP)
	if addr = addr.Unmap(); addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			addr = prefix.Addr()
		}
	}
	return addr
}

// take counts one more connection of the address, or says which limit is
// reached.
func (l *limitListener) take(addr netip.Addr) *Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.open >= l.total:
		return &Problem{fasthttp.StatusServiceUnavailable, "connection", reasonConnections,
			"the server has " + strconv.Itoa(l.total) + " connections, its limit (--http-max-connections)"}
	case l.mu.addresses[addr] >= l.perAddress:
		return &Problem{fasthttp.StatusTooManyRequests, "connection", reasonAddress, "this address has " +
			strconv.Itoa(l.perAddress) + " connections, its limit (--http-max-connections-per-ip)"}
	}
	l.mu.open++
	l.mu.addresses[addr]++
	return nil
}

// connections returns how many are open.
func (l *limitListener) connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.open
}

func (l *limitListener) release(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
	if l.mu.addresses[addr]--; l.mu.addresses[addr] == 0 {
		delete(l.mu.addresses, addr)
	}
}

// sendRefusal answers a connection that is not served, and closes it. The
// answer fits the empty send buffer of a new connection, so this never waits.
func sendRefusal(c net.Conn, p *Problem) {
	body := appendProblem(nil, p)
	answer := "HTTP/1.1 " + strconv.Itoa(p.Status) + " " + fasthttp.StatusMessage(p.Status) +
		"\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: " + typeJSON +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + string(body)
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
		_, _ = c.Write([]byte(answer)) // the client may be gone
	}
	_ = c.Close() // nothing is lost with it
}

// limitedConn counts itself out when it is closed, which may happen twice and
// from any goroutine.
type limitedConn struct {
	net.Conn
	listener *limitListener
	address  netip.Addr
	closed   atomic.Bool
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.listener.release(c.address)
	}
	return err
}
