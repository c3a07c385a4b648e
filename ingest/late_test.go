package ingest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// slowLink passes a connection on to a server, but for what the server says while it is
// held up.
type slowLink struct {
	net.Listener
	to string
	up sync.RWMutex // locked: held up
}

func newSlowLink(t *testing.T, to string) *slowLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowLink{Listener: l, to: to}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", s.to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go s.pass(server, client, func() {})
			go s.pass(client, server, func() { s.up.RLock(); s.up.RUnlock() }) //nolint:staticcheck // waits
		}
	}()
	return s
}

// pass copies until one of the two is closed.
func (s *slowLink) pass(to, from net.Conn, wait func()) {
	defer to.Close()   //nolint:errcheck // the test is over
	defer from.Close() //nolint:errcheck // likewise
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		wait()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// A server that is silent for longer than its heartbeats may be, with messages on their way:
// reading goes on where it was, with all of them.
func TestALateHeartbeatEndsNoSession(t *testing.T) {
	b := startBroker(t, t.TempDir())
	n := newNATSBench(t, b.Conn())
	p, e := n.worker(1, nil)
	publish := func() {
		n.run(p, e, 200)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	publish()

	opts := b.Conn().Opts
	link := newSlowLink(t, strings.TrimPrefix(b.Conn().ConnectedUrl(), "nats://"))
	opts.Url, opts.Servers = "nats://"+link.Addr().String(), nil
	slow, err := opts.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	away := *n
	away.nc = slow
	r := away.open("one", nil, nil)
	n.converged(r)

	for range 2 {
		late := r.counter("kvatlas_ingest_late_heartbeats_total")
		link.up.Lock()
		publish()
		waittest.For(t, "the reader misses a heartbeat", func() bool { return r.counter("kvatlas_ingest_late_heartbeats_total") > late })
		publish()
		link.up.Unlock()
		n.converged(r)
	}
	if slow.Status() != nats.CONNECTED || slow.Stats().Reconnects > 0 {
		t.Error("the connection was lost")
	}
	for _, name := range r.metrics.ListMetricNames() {
		if strings.HasPrefix(name, "kvatlas_ingest_reader_resets_total") {
			t.Errorf("reading began again: %s", name)
		}
	}
	if again := r.counter("kvatlas_ingest_redelivered_messages_total"); again != 0 {
		t.Errorf("%d messages came again", again)
	}

	// A consumer that is gone is made again.
	s, err := n.js.Stream(deadline(t), r.Streams()[0].Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteConsumer(deadline(t), "replica_one"); err != nil {
		t.Fatal(err)
	}
	publish()
	n.converged(r)
}
