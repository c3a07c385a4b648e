package downstream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config holds the settings of a Server. The limits must be set.
type Config struct {
	Handler      http.Handler
	ReadTimeout  time.Duration // for a request's head and body together
	WriteTimeout time.Duration // for an answer, unless the handler sets a deadline
	IdleTimeout  time.Duration // between requests
	MaxHeader    int           // bytes of a request's line and headers
	// HTTP2 serves connections that begin as HTTP/2's do; nil: nobody does.
	HTTP2 *http.Server
	// Refused is called for what is no request that may be answered; the reason is a word
	// of a fixed list.
	Refused func(reason string)
	Log     *slog.Logger // of handlers that panic
}

// lookEvery is how often the clients of requests under way are looked after.
const lookEvery = 200 * time.Millisecond

// newWithin is how long a connection may take to begin its first request before a
// Shutdown takes it for idle.
const newWithin = 5 * time.Second

// Server serves connections. Serve is called once.
type Server struct {
	cfg    Config
	date   date
	second *handed // those of HTTP/2
	done   chan struct{}
	once   sync.Once // closes it

	mu       sync.Mutex
	listener net.Listener
	conns    map[*conn]struct{}
	closing  atomic.Bool
}

// New returns a Server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, conns: make(map[*conn]struct{}), done: make(chan struct{})}
}

// Serve serves the connections of ln until Shutdown or Close, and then returns
// http.ErrServerClosed.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return errors.Join(http.ErrServerClosed, ln.Close())
	}
	s.listener = ln
	if s.cfg.HTTP2 != nil {
		s.second = &handed{conns: make(chan net.Conn), closed: make(chan struct{}), addr: ln.Addr()}
		go s.cfg.HTTP2.Serve(s.second) //nolint:errcheck // ends with done
	}
	s.mu.Unlock()
	go s.lookAfterClients()
	for {
		c, err := ln.Accept()
		var short net.Error
		switch {
		case err == nil:
			if k := newConn(s, c); s.add(k) {
				go k.serve()
			} else {
				_ = c.Close() // nothing was asked on it
			}
		case s.closing.Load():
			return http.ErrServerClosed
		case errors.As(err, &short) && short.Temporary(): //nolint:staticcheck // no file for it now: net/http waits, too
			time.Sleep(5 * time.Millisecond)
		default:
			return err
		}
	}
}

func (s *Server) add(k *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.conns[k] = struct{}{}
	return true
}

func (s *Server) remove(k *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, k)
}

// lookAfterClients ends the contexts of requests whose clients are gone. It ends with the
// Server.
func (s *Server) lookAfterClients() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var busy []*conn
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for k := range s.conns {
			if k.state.Load() == busyConn {
				busy = append(busy, k)
			}
		}
		s.mu.Unlock()
		for _, k := range busy {
			if k.gone() {
				k.cancel()
			}
		}
		clear(busy)
		busy = busy[:0]
	}
}

// refuse stops taking connections.
func (s *Server) refuse() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Swap(true) || s.listener == nil {
		return nil
	}
	return s.listener.Close()
}

func (s *Server) end() { s.once.Do(func() { close(s.done) }) }

// Shutdown takes no more connections, closes those that are idle, and waits until the
// others have answered, or for ctx.
func (s *Server) Shutdown(ctx context.Context) (err error) {
	err = s.refuse()
	defer s.end()
	if s.cfg.HTTP2 != nil {
		done := make(chan error, 1)
		go func() { done <- s.cfg.HTTP2.Shutdown(ctx) }() // ends with ctx
		defer func() { err = errors.Join(err, <-done) }()
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if s.closeIdle() == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return err
}

// closeIdle closes idle connections and returns how many others there are.
func (s *Server) closeIdle() (left int) {
	var idle []*conn // which are closed without the lock, as TLS has something to say then
	s.mu.Lock()
	for k := range s.conns {
		fresh := k.state.Load() == newConnection
		if fresh && time.Since(k.begun) > newWithin || k.state.CompareAndSwap(idleConn, closedConn) {
			idle = append(idle, k)
		} else {
			left++
		}
	}
	s.mu.Unlock()
	for _, k := range idle {
		_ = k.net.Close() // nothing is under way
	}
	return left
}

// Close closes all connections.
func (s *Server) Close() error {
	err := s.refuse()
	defer s.end()
	if s.cfg.HTTP2 != nil {
		err = errors.Join(err, s.cfg.HTTP2.Close())
	}
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, k := range all {
		_ = k.net.Close() // whatever is under way; then nobody is answered that the client is gone
		k.cancel()
	}
	return err
}

// handed is a listener for what another one has accepted.
type handed struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once // closes it
	addr   net.Addr
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handed) Addr() net.Addr { return h.addr }

// give hands c over.
func (h *handed) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close() // nothing was asked on it
	}
}

// date is the time as answers say it, which is the same for a second.
type date struct{ at atomic.Pointer[dated] }

type dated struct {
	second int64
	text   string
}

func (d *date) now() string {
	now := time.Now()
	if v := d.at.Load(); v != nil && v.second == now.Unix() {
		return v.text
	}
	v := &dated{now.Unix(), now.UTC().Format(http.TimeFormat)}
	d.at.Store(v)
	return v.text
}
