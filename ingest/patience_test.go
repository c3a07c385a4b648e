package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// lateConn is a connection on which what is written arrives later, in order.
type lateConn struct {
	net.Conn
	late  time.Duration
	queue chan lateWrite
	ended chan struct{}
}

type lateWrite struct {
	due  time.Time
	data []byte
}

func newLateConn(c net.Conn, late time.Duration) *lateConn {
	l := &lateConn{Conn: c, late: late, queue: make(chan lateWrite, 1<<16), ended: make(chan struct{})}
	go func() {
		for {
			select {
			case w := <-l.queue:
				select {
				case <-time.After(time.Until(w.due)):
				case <-l.ended:
					return
				}
				if _, err := c.Write(w.data); err != nil {
					return
				}
			case <-l.ended:
				return
			}
		}
	}()
	return l
}

func (l *lateConn) Write(data []byte) (int, error) {
	select {
	case l.queue <- lateWrite{time.Now().Add(l.late), append([]byte(nil), data...)}:
		return len(data), nil
	case <-l.ended:
		return 0, net.ErrClosed
	}
}

func (l *lateConn) Close() error {
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	return l.Conn.Close()
}

// lateDialer dials lateConns.
type lateDialer time.Duration

func (d lateDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return newLateConn(c, time.Duration(d)), nil
}

// A server that answers later than a reader first waits is waited for longer, and read
// from: a session that began again each time would never get past its first requests.
func TestAServerThatAnswersLateIsReadFrom(t *testing.T) {
	n := newNATSBench(t, largeServer(t))
	p, e := n.worker(1, nil)
	n.run(p, e, 50)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	slow, err := nats.Connect(n.nc.ConnectedUrl(), nats.SetCustomDialer(lateDialer(100*time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := n.config("late", r, nil)
	cfg.Conn, cfg.patience = slow, 50*time.Millisecond
	if r.Ingest, err = Open(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	n.converged(r)
	n.run(p, e, 50)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.converged(r)
	waittest.For(t, "ready", func() bool { return r.Ready() == nil })
	if n := r.counter(`kvatlas_ingest_reader_resets_total{reason="error"}`); n < 2 {
		t.Errorf("reading began again %d times: the server was in time", n)
	}
}

// While there is no connection nothing is asked for, and the log does not say again and again that
// it failed: reading begins again once it is back.
func TestAReaderWaitsForTheConnection(t *testing.T) {
	dir := t.TempDir()
	owner := startBroker(t, dir)
	n := newNATSBench(t, startBroker(t, dir).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 5)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := n.config("waits", r, nil)
	cfg.patience = 50 * time.Millisecond // heartbeats come each half second
	var err error
	if r.Ingest, err = Open(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	n.converged(r)
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
	resets := func() uint64 { return r.counter(`kvatlas_ingest_reader_resets_total{reason="error"}`) }
	// What a server that stops does not answer any more ends sessions as well, before the connection is gone.
	waittest.For(t, "the connection is gone", n.nc.IsReconnecting)
	least := resets()
	waittest.For(t, "the reader notices", func() bool { return resets() > 0 })
	before := n.retries("disconnected")
	n.run(p, e, 5)
	waittest.For(t, "a publisher has tried for a while", func() bool { return n.retries("disconnected") > before+10 })
	if n := resets() - least; n > 1 { // the session that had begun
		t.Errorf("reading began again %d times without a connection", n)
	}
	startBroker(t, dir)
	waittest.For(t, "the connection is back", n.nc.IsConnected)
	n.run(p, e, 5)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.converged(r)
}

// What made a reader patient is over once messages come, or the server answers that it cannot: what is asked of a
// cluster as it gets its quorum back may be lost, and would be waited for.
func TestPatienceEnds(t *testing.T) {
	is := requestWait
	for _, step := range []struct {
		err     error
		brought bool
		want    time.Duration
	}{
		{fmt.Errorf("consumer: %w", context.DeadlineExceeded), false, 2 * requestWait},
		{jetstream.ErrNoHeartbeat, false, 4 * requestWait},
		{errors.New("anything else"), false, 4 * requestWait},
		{fmt.Errorf("stream: %w", &jetstream.APIError{Code: 503}), false, requestWait},
		{nats.ErrTimeout, false, 2 * requestWait},
		{nats.ErrTimeout, true, requestWait},
	} {
		if is = nextPatience(is, requestWait, step.err, step.brought); is != step.want {
			t.Errorf("%v after %v, want %v", is, step.err, step.want)
		}
	}
	for range 10 {
		is = nextPatience(is, requestWait, nats.ErrTimeout, false)
	}
	if is != mostPatience {
		t.Errorf("%v at most, want %v", is, mostPatience)
	}
}

// What lasts is not said again and again: a cluster may be without a quorum for hours, with many streams.
func TestWhyReadingBeginsAgainIsSaidNowAndThen(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	n.fleet(1, 10, nil)
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := n.config("one", r, nil)
	var log waittest.Log
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	var err error
	if r.Ingest, err = Open(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	n.converged(r)
	if err := n.js.DeleteStream(deadline(t), stream.Name("default", testSpace)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "reading has begun again for more than a second", func() bool {
		return r.counter(`kvatlas_ingest_reader_resets_total{reason="stream_gone"}`) > 6
	})
	if lines := strings.Count(log.String(), "stream not found"); lines != 1 {
		t.Errorf("it is said %d times:\n%s", lines, log.String())
	}
}

// interrupted is a consumer of which the server says nothing, until the session ends meanwhile.
type interrupted struct {
	jetstream.Consumer
	end context.CancelCauseFunc
}

func (c interrupted) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	c.end(errReconnected)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A session that ends while the server is asked about a silence ends for its own reason: a connection that is back
// is no server that is late.
func TestASessionEndsWhileTheServerIsAsked(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	r := &reader{patience: time.Minute}
	if _, err := r.owed(ctx, interrupted{end: end}, nats.ErrTimeout); !errors.Is(err, errReconnected) || late(err) {
		t.Error(err)
	}
}
