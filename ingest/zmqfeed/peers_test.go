package zmqfeed

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// peer is a publisher whose every message the test writes.
type peer struct {
	t        *testing.T
	listener net.Listener
	conns    chan *zmtp.Conn
}

func newPeer(t *testing.T, kind zmtp.Type) *peer {
	l, err := zmtp.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t, l, make(chan *zmtp.Conn, 16)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if c, err := zmtp.Handshake(nc, kind, zmtp.Options{}); err == nil {
				p.conns <- c
			}
		}
	}()
	return p
}

func (p *peer) endpoint() string { return "tcp://" + p.listener.Addr().String() }

// subscriber waits for a connection and its subscription.
func (p *peer) subscriber() *zmtp.Conn {
	p.t.Helper()
	select {
	case c := <-p.conns:
		p.t.Cleanup(func() { c.Close() })
		var m zmtp.Message
		if err := c.ReadMessage(&m); err != nil {
			p.t.Fatal(err)
		}
		return c
	case <-time.After(patience):
		p.t.Fatal("nobody subscribes")
	}
	return nil
}

// tell sends a message to a feed that may have hung up already.
func tell(c *zmtp.Conn, frames ...[]byte) { _ = c.WriteMessage(frames...) }

func send(c *zmtp.Conn, topic string, process int, seqs ...int) {
	for _, seq := range seqs {
		tell(c, []byte(topic), binary.BigEndian.AppendUint64(nil, uint64(seq)), payload(process, seq))
	}
}

// alone is for a publisher without replay.
func alone(endpoint string) Config {
	return Config{Endpoint: endpoint, Decoder: engine.Config{BlockSize: 4}, RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}
}

func TestWithoutReplay(t *testing.T) {
	p := newPeer(t, zmtp.Pub)
	r := newRecorder(t)
	f, _ := start(t, alone(p.endpoint()), r)
	c := p.subscriber()
	send(c, "", 1, 3, 4, 4, 7)
	r.reach(8)
	if want := []Gap{{0, 2, NoReplay}, {5, 6, NoReplay}}; !slices.Equal(r.gaps, want) {
		t.Errorf("gaps %v, want %v", r.gaps, want)
	}
	c.Close()
	c = p.subscriber() // numbers go on: the same process
	send(c, "", 1, 8)
	r.reach(9)
	c.Close()
	c = p.subscriber() // nobody can tell
	send(c, "", 1, 11)
	r.reach(12)
	if want := (Gap{9, 10, NoReplay}); r.gaps[len(r.gaps)-1] != want {
		t.Errorf("gaps %v, want the last to be %v", r.gaps, want)
	}
	c.Close()
	c = p.subscriber() // another one
	send(c, "", 2, 0, 1)
	r.until("a restart", func() bool { return len(r.why) == 1 && r.next == 2 })
	send(c, "", 3, 0, 1, 2) // another one on the same connection, as through a proxy
	r.until("a second restart", func() bool { return len(r.why) == 2 && r.next == 3 })
	r.holds(3, 0, 3)
	if s := f.Stats(); s.Duplicate != 1 || s.Missed != 2 || s.Gaps != 1 || s.Restarts[follow.FellBack] != 2 || s.Lost[NoReplay] != 7 || s.Replays != 0 {
		t.Errorf("%+v", s)
	}
}

func TestDuplicatesAreToldFromARestart(t *testing.T) {
	p := newPeer(t, zmtp.Pub)
	truth := publisher(t, enginepub.Config{}) // whose replay is asked
	r := newRecorder(t)
	cfg := config(truth)
	cfg.Endpoint = p.endpoint()
	f, _ := start(t, cfg, r)
	c := p.subscriber()
	publish(truth, 1, 10)
	send(c, "", 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 4, 5, 0)
	r.until("the duplicates", func() bool { return f.Stats().Duplicate >= 4 && f.Stats().Messages == 14 })
	r.holds(1, 0, 10)
	if s := f.Stats(); s.Restarts != [follow.NumSigns]uint64{} {
		t.Errorf("%+v", s)
	}
}

func TestAReplayThatNeverAnswers(t *testing.T) {
	p, mute := newPeer(t, zmtp.Pub), newPeer(t, zmtp.Router)
	r := newRecorder(t)
	cfg := alone(p.endpoint())
	cfg.Replay, cfg.ReplayIdle, cfg.ReplayAttempts, cfg.ReplayPause = mute.endpoint(), 10*time.Millisecond, 2, time.Hour
	f, _ := start(t, cfg, r)
	c := p.subscriber()
	send(c, "", 1, 0, 1, 5, 9)
	r.reach(10)
	if want := []Gap{{2, 4, ReplayFailed}, {6, 8, ReplayFailed}}; !slices.Equal(r.gaps, want) {
		t.Errorf("gaps %v, want %v", r.gaps, want)
	}
	if s := f.Stats(); s.Lost[ReplayFailed] != 6 || s.Missed != 6 || s.ReplayBad != s.Replays || s.Replays != 2 {
		t.Errorf("%+v", s)
	}
}

func TestRepliesThatWereNotAskedFor(t *testing.T) {
	p, router := newPeer(t, zmtp.Pub), newPeer(t, zmtp.Router)
	r := newRecorder(t)
	cfg := alone(p.endpoint())
	cfg.Replay, cfg.ReplayIdle = router.endpoint(), 10*time.Second
	f, _ := start(t, cfg, r)
	go func() {
		c := router.subscriber() // reads the request
		number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
		tell(c, []byte("no delimiter"), []byte("short"), nil)
		tell(c, nil)
		tell(c, nil, nil, nil, nil, number(0), payload(1, 0))
		tell(c, number(0), payload(1, 0)) // no delimiter is no fault
		tell(c, nil, number(0), payload(1, 0))
		tell(c, nil, []byte("t"), number(1), payload(1, 1))
		tell(c, nil, bytes.Repeat([]byte{0xff}, 8), nil)
	}()
	r.reach(2)
	r.holds(1, 0, 2)
	r.until("the end", func() bool { return r.states[len(r.states)-1].Phase == Live })
	if s := f.Stats(); s.Malformed != 3 || s.ReplayExtra != 1 || s.Replays != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTopics(t *testing.T) {
	for _, exact := range []bool{false, true} {
		p := newPeer(t, zmtp.Pub) // which filters nothing
		r := newRecorder(t)
		cfg := alone(p.endpoint())
		cfg.Topic, cfg.ExactTopic = "kv@pod-1", exact
		f, _ := start(t, cfg, r)
		c := p.subscriber()
		send(c, "kv@pod-1", 1, 0)
		send(c, "kv@pod-2", 2, 1)
		send(c, "kv@", 2, 1)
		if exact {
			send(c, "kv@pod-10", 2, 1)
		}
		tell(c, []byte("kv@pod-1"), []byte("short"), payload(1, 1))
		tell(c, []byte("kv@pod-1"))
		send(c, "kv@pod-1", 1, 1)
		r.reach(2)
		r.holds(1, 0, 2)
		want := uint64(2)
		if exact {
			want = 3
		}
		if s := f.Stats(); s.OtherTopic != want || s.Malformed != 2 || s.Missed != 0 {
			t.Errorf("exact %v: %+v", exact, s)
		}
	}
}

func TestPeersThatAreNoPublishers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for i := 0; ; i++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if i%2 == 0 {
				_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				nc.Close()
			} else {
				t.Cleanup(func() { nc.Close() }) // and never a word
			}
		}
	}()
	r := newRecorder(t)
	cfg := alone("tcp://" + l.Addr().String())
	cfg.Dial = 100 * time.Millisecond
	f, _ := start(t, cfg, r)
	r.until("six attempts", func() bool { return f.Stats().Refused >= 6 })
	l.Close()
	p := publisher(t, enginepub.Config{Endpoint: cfg.Endpoint})
	subscribed(r, p)
	publish(p, 1, 3)
	r.reach(3)
	r.holds(1, 0, 3)
}

func TestSettingsRefused(t *testing.T) {
	for _, cfg := range []Config{{}, {Endpoint: "tcp://h:1"}, {Endpoint: "tcp://h:1", Decoder: engine.Config{BlockSize: 4}, Position: []byte("x")}} {
		if _, err := New(cfg, newRecorder(t)); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

func TestLabels(t *testing.T) {
	seen := map[string]bool{}
	for i := range NumReasons {
		seen[Reason(i).String()] = true
	}
	for i := range 3 {
		seen[Phase(i).String()] = true
	}
	if len(seen) != NumReasons+3 || seen["unknown"] {
		t.Errorf("labels %v", seen)
	}
}
