package secure

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Limited is a listener that bounds the open connections, in all and of each
// client address. What is beyond goes to Refuse, which must close it and not
// wait.
//
// fasthttp has such limits of its own, but its wrapper of a connection is not
// safe to close from Shutdown while it is read (1.74, peripconn.go), and its
// refusals are plain text. The addresses are a map under the lock of the sum: with
// xsync's, whose Compute makes an entry for each change, a connection's counting
// takes twice as long (BENCHMARKS.md, Concurrent maps).
type Limited struct {
	net.Listener
	cfg LimitConfig

	mu struct {
		sync.Mutex
		open      int
		addresses map[netip.Addr]int
	}
}

// LimitConfig holds the limits of a Limited.
type LimitConfig struct {
	Total, PerAddress int
	// Refuse is called with a connection beyond the limits; ofAddress says
	// which limit that is.
	Refuse func(c net.Conn, ofAddress bool)
}

// Limit returns ln with limits.
func Limit(ln net.Listener, cfg LimitConfig) *Limited {
	l := &Limited{Listener: ln, cfg: cfg}
	l.mu.addresses = make(map[netip.Addr]int)
	return l
}

// Accept returns the next connection within the limits.
func (l *Limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := clientAddress(c)
		ok, ofAddress := l.admit(addr)
		if ok {
			return &limitedConn{Conn: c, listener: l, address: addr}, nil
		}
		l.cfg.Refuse(c, ofAddress)
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
	return ClientAddress(addr)
}

// ClientAddress returns what one client has of an address of its own.
func ClientAddress(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return addr
}

// admit counts one more connection of the address, unless a limit is reached.
func (l *Limited) admit(addr netip.Addr) (ok, ofAddress bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.open >= l.cfg.Total:
		return false, false
	case l.mu.addresses[addr] >= l.cfg.PerAddress:
		return false, true
	}
	l.mu.open++
	l.mu.addresses[addr]++
	return true, false
}

// Connections returns how many are open.
func (l *Limited) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.open
}

func (l *Limited) release(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
	if l.mu.addresses[addr]--; l.mu.addresses[addr] == 0 {
		delete(l.mu.addresses, addr)
	}
}

// limitedConn counts itself out when it is closed, which may happen twice and
// from any goroutine.
type limitedConn struct {
	net.Conn
	listener *Limited
	address  netip.Addr
	closed   atomic.Bool
}

// NetConn returns the connection itself, as tls.Conn's does: not to close it.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.listener.release(c.address)
	}
	return err
}
