package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
)

// What becomes of a socket that breaks.
const (
	socketCheck   = time.Second            // how often it is looked whether it is still there
	leastSockWait = 100 * time.Millisecond // before the first try to mend it; it doubles
	mostSockWait  = 5 * time.Second
)

// run serves the socket until ctx ends. Where it breaks (somebody removes it,
// say, or there are too many open files) it is mended, and waiting says so until
// then.
func (s *socket) run(ctx context.Context) {
	defer s.close() // of what was mended while ctx ended
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	for _, in := range s.inputs {
		in.stream.State(zmqfeed.State{Phase: zmqfeed.Live}) // it waits for nothing
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.watch(ctx) })
	slots := make(chan struct{}, maxClients)
	for wait := leastSockWait; ctx.Err() == nil; wait = min(2*wait, mostSockWait) {
		conn, err := s.listener().Accept()
		if err == nil {
			s.broken.Store(nil)
			wait = leastSockWait / 2 // twice that is the least again
			s.admit(ctx, &running, slots, conn)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, net.ErrClosed) {
			s.refuse("accept")
		} else if err = s.listen(); err == nil {
			s.broken.Store(nil)
			s.log.Info("the socket is there again", "path", s.cfg.Socket)
			continue
		}
		s.broke(err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// admit serves the connection beside, if there are not too many.
func (s *socket) admit(ctx context.Context, running *sync.WaitGroup, slots chan struct{}, conn net.Conn) {
	select {
	case slots <- struct{}{}:
	default:
		s.refuse("too_many")
		_ = conn.Close()
		return
	}
	running.Go(func() {
		defer func() { <-slots }()
		s.clients.Inc()
		defer s.clients.Dec()
		cut := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer cut()
		defer conn.Close() //nolint:errcheck // everything is said
		s.serve(&client{Conn: conn})
	})
}

// broke notes why nobody can connect.
func (s *socket) broke(err error) {
	why := fmt.Sprintf("the socket is broken: %v", err)
	if old := s.broken.Swap(&why); old == nil || *old != why {
		s.log.Warn("no engine can connect; it is tried again", "error", err)
	}
}

// waiting says why nobody can connect; "" if everybody can.
func (s *socket) waiting() string {
	if why := s.broken.Load(); why != nil {
		return *why
	}
	return ""
}

// listen opens the socket in the place of one that nobody listens at.
func (s *socket) listen() error {
	path := s.cfg.Socket
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("--socket %s: another process listens there", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path) // of a process that was killed; else listening says why not
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	ln.SetUnlinkOnClose(false) // close looks whose it is
	info, err := os.Lstat(path)
	if err != nil {
		_ = ln.Close()
		return fmt.Errorf("--socket: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ln, s.mu.file = ln, info
	return nil
}

func (s *socket) listener() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.ln
}

// there reports whether what it listens at is still the file of that name.
func (s *socket) there() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Lstat(s.cfg.Socket)
	return err == nil && os.SameFile(info, s.mu.file)
}

// watch closes a socket whose file is gone, until ctx ends: nobody can connect
// to it any more.
func (s *socket) watch(ctx context.Context) {
	tick := time.NewTicker(socketCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.broken.Load() == nil && !s.there() {
			s.broke(errors.New("its file was removed or replaced"))
			_ = s.listener().Close()
		}
	}
}

// close stops listening and removes the socket, if it is still its own.
func (s *socket) close() {
	if s.there() {
		_ = os.Remove(s.cfg.Socket)
	}
	_ = s.listener().Close()
}
