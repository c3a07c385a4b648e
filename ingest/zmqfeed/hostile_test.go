package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// wire is one end of a connection in memory, in which bytes wait as in a socket,
// so that it does in a bubble of fake time.
type wire struct {
	in, out *wireBuffer
}

type wireBuffer struct {
	mu       sync.Mutex
	b        []byte
	closed   bool
	deadline time.Time
	change   chan struct{} // closed and made anew at each change
}

func newWires() (a, b wire) {
	x, y := &wireBuffer{change: make(chan struct{})}, &wireBuffer{change: make(chan struct{})}
	return wire{x, y}, wire{y, x}
}

func (w *wireBuffer) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.change)
	w.change = make(chan struct{})
}

func (w wire) Read(p []byte) (n int, err error) {
	for {
		w.in.mu.Lock()
		n, closed, deadline, change := copy(p, w.in.b), w.in.closed, w.in.deadline, w.in.change
		w.in.b = w.in.b[n:]
		w.in.mu.Unlock()
		switch {
		case n > 0:
			w.in.do(func() {}) // there is room
			return n, nil
		case closed:
			return 0, io.EOF
		}
		var over <-chan time.Time
		if !deadline.IsZero() {
			t := time.NewTimer(time.Until(deadline))
			defer t.Stop() //nolint:revive // it is looked at again at a change, a few times
			over = t.C
		}
		select {
		case <-change:
		case <-over:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (w wire) Write(p []byte) (int, error) {
	for {
		w.out.mu.Lock()
		full, closed, change := len(w.out.b) > 1<<16, w.out.closed, w.out.change
		w.out.mu.Unlock()
		switch {
		case closed:
			return 0, net.ErrClosed
		case !full:
			w.out.do(func() { w.out.b = append(w.out.b, p...) })
			return len(p), nil
		}
		<-change
	}
}

func (w wire) Close() error {
	w.in.do(func() { w.in.closed = true })
	w.out.do(func() { w.out.closed = true })
	return nil
}

func (w wire) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "wire", Net: "unix"} }
func (w wire) RemoteAddr() net.Addr { return w.LocalAddr() }
func (w wire) SetReadDeadline(t time.Time) error {
	w.in.do(func() { w.in.deadline = t })
	return nil
}
func (w wire) SetWriteDeadline(time.Time) error { return nil }
func (w wire) SetDeadline(t time.Time) error    { return w.SetReadDeadline(t) }

// liar is an engine that publishes and replays what it likes.
type liar struct {
	publish func(send func(seq, process int) error) // until it fails
	replay  func(from uint64, reply func(seq uint64, payload []byte) error)
	subs    atomic.Int64
	replays atomic.Int64
	running sync.WaitGroup
}

var errHungUp = errors.New("it does not listen")

func (l *liar) dial(_ context.Context, endpoint string, kind zmtp.Type, o zmtp.Options) (*zmtp.Conn, error) {
	ours, theirs := newWires()
	peer := map[zmtp.Type]zmtp.Type{zmtp.Sub: zmtp.Pub, zmtp.Dealer: zmtp.Router}[kind]
	if kind == zmtp.Sub && l.publish == nil || kind == zmtp.Dealer && l.replay == nil {
		return nil, errHungUp
	}
	l.running.Go(func() {
		c, err := zmtp.Handshake(theirs, peer, zmtp.Options{})
		if err != nil {
			return
		}
		defer c.Close()
		var m zmtp.Message
		if c.ReadMessage(&m) != nil {
			return
		}
		if kind == zmtp.Sub {
			l.publish(func(seq, process int) error {
				return c.WriteMessage(nil, binary.BigEndian.AppendUint64(nil, uint64(seq)), payload(process, seq))
			})
			return
		}
		l.replay(binary.BigEndian.Uint64(m.Frame(m.Len()-1)), func(seq uint64, payload []byte) error {
			return c.WriteMessage(nil, binary.BigEndian.AppendUint64(nil, seq), payload)
		})
	})
	count := &l.subs
	if kind == zmtp.Dealer {
		count = &l.replays
	}
	count.Add(1)
	return zmtp.Handshake(ours, kind, o)
}

// end ends a replay.
func end(reply func(uint64, []byte) error) { _ = reply(endOfReplay, nil) }

// quiet counts what a feed tells.
type quiet struct{ batches, restarts, gaps int }

func (q *quiet) Batch(uint64, *event.Batch) (unknownParent, refused bool) {
	q.batches++
	return false, false
}
func (q *quiet) Snapshot(n uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool) {
	for b := range parts {
		q.Batch(n, b)
	}
	return false, false
}
func (q *quiet) Restart(follow.Sign) { q.restarts++ }
func (q *quiet) Gap(Gap)             { q.gaps++ }
func (q *quiet) State(State)         {}

// Whatever an engine publishes and replays for two minutes, as fast as it can or
// now and then: subscriptions, replays and restarts are bounded, replays that
// bring nothing back off, and a place among those under way is given back.
func TestWhateverAnEngineDoesIsBounded(t *testing.T) {
	tick := func(f func() error) {
		for f() == nil {
			sleep(context.Background(), 20*time.Millisecond)
		}
	}
	every := func(seq func(n int) int, process func(n int) int) func(func(int, int) error) {
		return func(send func(int, int) error) {
			n := 0
			tick(func() error { n++; return send(seq(n), process(n)) })
		}
	}
	one := func(int) int { return 1 }
	same := func(n int) int { return n }
	nothing := func(_ uint64, reply func(uint64, []byte) error) { end(reply) }
	answer := func(from uint64, reply func(uint64, []byte) error) {
		for seq := from; seq < from+3; seq++ {
			_ = reply(seq, payload(1, int(seq)))
		}
		end(reply)
	}
	for name, tc := range map[string]struct {
		publish func(func(int, int) error)
		replay  func(uint64, func(uint64, []byte) error)
		replays int64 // at most; 0: the rate is all
	}{
		"holes, and a replay of nothing": {every(func(n int) int { return 2 * n }, one), nothing, 40},
		"holes, and a replay that hangs up": {every(func(n int) int { return 2 * n }, one),
			func(uint64, func(uint64, []byte) error) {}, 120},
		"holes, and a silent replay": {every(func(n int) int { return 2 * n }, one),
			func(uint64, func(uint64, []byte) error) { sleep(context.Background(), time.Hour) }, 120},
		"holes, and a little of what is missing each time": {every(func(n int) int { return 5 * n }, one), answer, 0},
		"holes, and a replay without end": {every(func(n int) int { return 2 * n }, one), func(from uint64, reply func(uint64, []byte) error) {
			for reply(from, payload(1, int(from))) == nil {
				sleep(context.Background(), 10*time.Millisecond)
			}
		}, 0},
		"holes, and batches of another process each time": {every(func(n int) int { return 2 * n }, one), func(from uint64, reply func(uint64, []byte) error) {
			_ = reply(from, payload(int(time.Now().UnixNano()%1e9), int(from)))
			end(reply)
		}, 0},
		"numbers that fall":            {every(func(n int) int { return n % 7 }, same), nothing, 120},
		"numbers that fall, unproved":  {every(func(n int) int { return n % 7 }, same), nil, 0},
		"the same number, other words": {every(one, same), answer, 120},
		"one message a connection":     {func(send func(int, int) error) { _ = send(int(time.Now().Unix()), 1) }, nothing, 0},
		"it hangs up":                  {func(func(int, int) error) {}, nothing, 0},
		"nobody listens":               {nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &liar{publish: tc.publish, replay: tc.replay}
				limit := NewLimit(1)
				h := new(quiet)
				f, err := New(Config{Endpoint: "tcp://a:1", Replay: "tcp://a:2", Decoder: engine.Config{BlockSize: 4}, Limit: limit}, h)
				if err != nil {
					t.Fatal(err)
				}
				f.dial = l.dial
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				held := time.Duration(0) // longest that another feed waits for its turn
				var others sync.WaitGroup
				others.Go(func() {
					for ctx.Err() == nil {
						began := time.Now()
						limit.slots <- struct{}{}
						held = max(held, time.Since(began))
						<-limit.slots
						sleep(ctx, time.Second)
					}
				})
				f.Run(ctx)
				others.Wait()
				l.running.Wait()
				t.Logf("%d subscriptions, %d replays, %+v, waited %v", l.subs.Load(), l.replays.Load(), *h, held)
				if n := l.subs.Load(); n > 60 {
					t.Errorf("%d subscriptions in two minutes", n)
				}
				most := tc.replays
				if most == 0 {
					most = int64(f.cfg.ReplayRate) * 122
				}
				if n := l.replays.Load(); n > most {
					t.Errorf("%d replays in two minutes, want at most %d", n, most)
				}
				if h.restarts > 60 {
					t.Errorf("%d restarts in two minutes", h.restarts)
				}
				if held > f.cfg.ReplayLimit {
					t.Errorf("another feed waited for its turn for %v", held)
				}
			})
		})
	}
}

// What a large reply took is not kept for as long as the engine is followed.
func TestLargeRepliesAreNotKept(t *testing.T) {
	p := publisher(t, enginepub.Config{})
	p.Publish([]byte("\x92\x01\x91\x92\xacBlockRemoved\xdd\x00\x20\x00\x00" + strings.Repeat("\x01", 2<<20)))
	publish(p, 1, 10)
	r := newRecorder(t)
	f, stop := start(t, config(p), r)
	r.reach(11)
	subscribed(r, p)
	stop()
	if s := f.Stats(); s.Replayed != 11 || f.reply.m.Cap() > spareBytes {
		t.Errorf("%d batches were replayed, and %d bytes are kept", s.Replayed, f.reply.m.Cap())
	}
}
