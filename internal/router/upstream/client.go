package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/program/sock"
)

// Config holds the settings of a Client.
type Config struct {
	DialTimeout time.Duration
	// IdleConns is how many idle connections are kept to each address, and
	// IdleTimeout for how long; 0 is for 3 seconds: engines close theirs after 5, many
	// of them.
	IdleConns   int
	IdleTimeout time.Duration
	// MaxHeader bounds the head of an answer, in bytes; 0 is 64 KiB.
	MaxHeader int64
	TLS       *reload.Value[tls.Config] // of https connections, when they are made; nil: the usual
	// Stale, if set, is called when a connection turns out to be closed by the engine
	// after a request has been sent on it, which is then sent again.
	Stale func()
}

// Errors of RoundTrip.
var (
	// ErrHeader: the head of the answer is longer than Config.MaxHeader.
	ErrHeader = errors.New("the head of the answer is too long")
	// ErrProtocol: the engine changes the protocol, which nobody asked for.
	ErrProtocol = errors.New("the engine changes the protocol, which nobody asked for")
	// ErrAnswer: what came is no answer of HTTP, or its head has faults.
	ErrAnswer = errors.New("the answer is no HTTP")
)

// largeBody is the size from which on a body may not fit into the sockets of a
// server that answers without reading it: answers to such requests are waited for
// while they are written, which http.Transport does.
const largeBody = 64 << 10

// Client is a pool of connections. It is safe for concurrent use.
type Client struct {
	cfg   Config
	other *http.Transport
	dial  net.Dialer

	mu     sync.Mutex
	idle   map[string][]*conn // by address, those idle for longest first
	sweep  *time.Timer        // nil while nothing is idle
	closed bool
}

// New returns a Client.
func New(cfg Config) *Client {
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 3 * time.Second
	}
	if cfg.MaxHeader == 0 {
		cfg.MaxHeader = 64 << 10
	}
	c := &Client{cfg: cfg, dial: net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 30 * time.Second}, idle: make(map[string][]*conn)}
	c.other = &http.Transport{
		MaxIdleConnsPerHost:    cfg.IdleConns,
		IdleConnTimeout:        cfg.IdleTimeout,
		MaxResponseHeaderBytes: cfg.MaxHeader,
		DisableCompression:     true, // bytes are passed on as they are
	}
	secure.Dialer(c.dialOther).Into(c.other, cfg.TLS)
	return c
}

// RoundTrip implements http.RoundTripper. req.Header must be in canonical form,
// without line ends, as a server has read it.
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	var data *Body
	if req.Body != nil && req.Body != http.NoBody {
		var ok bool
		if data, ok = req.Body.(*Body); !ok {
			return c.byOther(req)
		}
	}
	if !direct(req.URL.Scheme, data.Len()) {
		return c.byOther(again(req, data))
	}
	defer data.Close() //nolint:errcheck // has none
	resp, stale, err := c.try(req, data, false)
	if stale {
		if c.cfg.Stale != nil {
			c.cfg.Stale()
		}
		resp, _, err = c.try(req, data, true)
	}
	return resp, err
}

// direct reports whether a Client sends a request itself.
func direct(scheme string, length int) bool { return scheme == "http" && length <= largeBody }

// try sends the request once, on a new connection if it is to be fresh. It reports
// whether the connection was an old one that died before a byte of an answer: engines
// close what was idle whenever they like, also while a request is on its way.
func (c *Client) try(req *http.Request, data *Body, fresh bool) (_ *http.Response, stale bool, _ error) {
	ctx := req.Context()
	x, _ := ctx.(*Exchange)
	for {
		k, used, err := c.get(ctx, address(req.URL.Host), fresh, data)
		if err != nil {
			return nil, false, err
		}
		if x == nil {
			k.abort = context.AfterFunc(ctx, k.stop)
		} else {
			x.hold(k.stop)
			k.abort = x.let
		}
		resp, err := k.exchange(req, data, x, used)
		switch {
		case err == nil && crossed(resp, used):
			_ = resp.Body.Close() // it is nobody's
			return nil, true, nil
		case err == nil:
			return resp, false, nil
		}
		k.end(false)
		switch {
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case !errors.Is(err, sock.ErrSpoke): // else the next one: it was not asked
			return nil, used && !k.heard && died(err), fmt.Errorf("asking %s: %w", req.URL.Host, Wordless(err))
		}
	}
}

// crossed reports whether an answer, on a connection that was used before, is the engine's word that it
// waited for a request for too long, which crossed the one that was on its way.
func crossed(resp *http.Response, used bool) bool {
	return used && resp.StatusCode == http.StatusRequestTimeout && resp.Close
}

// died reports whether the other side has ended the connection.
func died(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Wordless returns the error without the words of an answer, which errors about what
// is no HTTP quote: they are for nobody's log.
func Wordless(err error) error {
	var asked *url.Error // which is a net.Error, whatever it is about
	if errors.As(err, &asked) {
		err = asked.Err
	}
	var netErr net.Error
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &netErr), errors.As(err, &cert), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, ErrHeader), errors.Is(err, ErrProtocol),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return err
	}
	return ErrAnswer
}

// byOther leaves the request to http.Transport.
func (c *Client) byOther(req *http.Request) (*http.Response, error) {
	used := false
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(g httptrace.GotConnInfo) { used = g.Reused }}))
	resp, err := c.other.RoundTrip(req)
	if err == nil && crossed(resp, used) && (req.Body == nil || req.GetBody != nil) {
		_ = resp.Body.Close() // it is nobody's
		if c.cfg.Stale != nil {
			c.cfg.Stale()
		}
		if req.Body != nil {
			req.Body, _ = req.GetBody() // a Body's has no error
		}
		resp, err = c.other.RoundTrip(req)
	}
	if err == nil && resp.StatusCode < 200 { // which http.Transport gives out
		_ = resp.Body.Close() // it is nobody's
		err = noAnswer(resp.StatusCode)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", req.URL.Host, Wordless(err))
	}
	return resp, nil
}

// dialOther dials for http.Transport.
func (c *Client) dialOther(ctx context.Context, network, address string) (net.Conn, error) {
	n, err := c.dial.DialContext(ctx, network, address)
	if t, ok := n.(*net.TCPConn); ok && err == nil {
		return hung{t}, nil
	}
	return n, err
}

// hung is a connection whose Close is hangUp.
type hung struct{ *net.TCPConn }

// Close implements net.Conn.
func (h hung) Close() error { return hangUp(h.TCPConn) }

// hangUp closes a connection, and tells the other side at once: what was written and not
// taken is not sent any more. The end would come behind it, and an engine that reads none of
// a long body would never see that its client is gone.
func hangUp(c net.Conn) error {
	if w, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = w.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok && unsent(t) {
		_ = t.SetLinger(0) // else there is no connection any more
	}
	return c.Close()
}

func address(host string) string {
	if _, _, err := net.SplitHostPort(host); err != nil {
		return net.JoinHostPort(host, "80")
	}
	return host
}

// get returns a connection that is still open, or will be looked at when that body
// is sent on it, unless it is to be fresh, or else a new one.
func (c *Client) get(ctx context.Context, address string, fresh bool, data *Body) (k *conn, used bool, err error) {
	for !fresh {
		c.mu.Lock()
		list := c.idle[address]
		if len(list) == 0 {
			c.mu.Unlock()
			break
		}
		k = list[len(list)-1]
		list[len(list)-1] = nil
		c.idle[address] = list[:len(list)-1]
		c.mu.Unlock()
		if time.Since(k.since) < c.cfg.IdleTimeout && (k.looks(data) || k.alive()) {
			return k, true, nil
		}
		_ = k.net.Close() // it is too old, or the other side has closed it
	}
	n, err := c.dial.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, err
	}
	return newConn(c, address, sock.Wrap(n)), false, nil
}

// put keeps an idle connection, or closes it.
func (c *Client) put(k *conn) {
	k.since = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[k.address]
	if c.closed || len(list) >= c.cfg.IdleConns {
		_ = k.net.Close() // nobody waits for it
		return
	}
	c.idle[k.address] = append(list, k)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(c.cfg.IdleTimeout, c.closeOld)
	}
}

// closeOld closes what was idle for too long.
func (c *Client) closeOld() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep = nil
	if c.closed {
		return
	}
	oldest := time.Now().Add(-c.cfg.IdleTimeout)
	for address, list := range c.idle {
		n := 0
		for n < len(list) && list[n].since.Before(oldest) {
			_ = list[n].net.Close() // nobody waits for it
			n++
		}
		if n == len(list) {
			delete(c.idle, address)
		} else {
			c.idle[address] = append([]*conn(nil), list[n:]...)
		}
	}
	if len(c.idle) > 0 {
		c.sweep = time.AfterFunc(c.cfg.IdleTimeout/4+time.Millisecond, c.closeOld)
	}
}

// Close closes idle connections; others are closed when their requests end.
func (c *Client) Close() {
	c.other.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.sweep != nil {
		c.sweep.Stop()
	}
	for _, list := range c.idle {
		for _, k := range list {
			_ = k.net.Close() // nobody waits for it
		}
	}
	clear(c.idle)
}
