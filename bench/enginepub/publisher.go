package enginepub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// Config holds a Publisher's settings. Zero fields take the defaults.
type Config struct {
	Endpoint string // where subscribers connect: tcp://host:port (port 0: any), ipc://path
	Replay   string // where replays are asked for; empty: none
	// Snapshot is where snapshots are asked for, in the form of Form; empty: none. With one
	// the process names itself: with Process, or by chance.
	Snapshot string
	Form     Form
	Process  string
	// Take returns the pages of a snapshot: of what the payloads before the one with the number
	// leave. It is called with the publisher's lock held.
	Take   func(next uint64) ([][]byte, error)
	Topic  string // first frame of every message
	Buffer int    // payloads kept for replay; default 10,000
	HWM    int    // messages queued for one subscriber, 32 bytes each beforehand; default 10,000 (engines: 100,000)
	// WithTopic makes replays have the topic, as of vLLM 0.26, SGLang 0.5.23
	// and TensorRT-LLM; without, they have the form of releases before.
	WithTopic bool

	// Lose and LoseReplay say which messages are lost on their way to
	// subscribers and from replays (of a reply, the one at place i). They are
	// called with the publisher's lock held. A real ROUTER loses none of the
	// first 1,000 of a reply.
	Lose       func(seq uint64) bool
	LoseReplay func(i int, seq uint64) bool
	// HoldReplay makes replays stay without an end, as when the end is lost.
	HoldReplay func() bool
}

// forever is how long a subscriber may keep a write waiting: libzmq, too,
// drops what comes meanwhile rather than the connection.
const forever = 365 * 24 * time.Hour

// Publisher is one engine process's publisher of one rank.
type Publisher struct {
	cfg         Config
	pub, router net.Listener
	shots       net.Listener
	wg          sync.WaitGroup

	mu     sync.Mutex
	closed bool
	next   uint64                   // sequence number of the next payload
	buffer []entry                  // the last payloads, oldest first
	conns  map[net.Conn]*subscriber // nil for replay connections and those that have not subscribed
}

type entry struct {
	seq     uint64
	payload []byte
	barrier string // of SGLang's snapshot, which it is the end of
}

// subscriber is one connection of a SUB socket. Its fields are guarded by the
// publisher's lock, but for queue's receiving end.
type subscriber struct {
	prefixes [][]byte
	queue    chan entry
}

// New listens at the endpoints and publishes to whoever connects.
func New(cfg Config) (*Publisher, error) {
	if cfg.Buffer <= 0 {
		cfg.Buffer = 10_000
	}
	if cfg.HWM <= 0 {
		cfg.HWM = 10_000
	}
	p := &Publisher{cfg: cfg, conns: map[net.Conn]*subscriber{}}
	var err error
	if p.pub, err = zmtp.Listen(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	p.wg.Go(func() { p.accept(p.pub, zmtp.Pub, p.subscriptions) })
	if cfg.Replay != "" {
		if p.router, err = zmtp.Listen(cfg.Replay); err != nil {
			return nil, errors.Join(fmt.Errorf("publisher's replay: %w", err), p.Close())
		}
		p.wg.Go(func() { p.accept(p.router, zmtp.Router, p.replays) })
	}
	if cfg.Snapshot != "" {
		if p.cfg.Process == "" {
			p.cfg.Process = fmt.Sprintf("%016x", rand.Uint64())
		}
		if p.shots, err = zmtp.Listen(cfg.Snapshot); err != nil {
			return nil, errors.Join(fmt.Errorf("publisher's snapshots: %w", err), p.Close())
		}
		p.wg.Go(func() { p.accept(p.shots, zmtp.Router, p.snapshots) })
	}
	return p, nil
}

// Endpoint returns where to subscribe, with the port that was chosen.
func (p *Publisher) Endpoint() string { return endpoint(p.pub) }

// ReplayEndpoint returns where to ask for replays, or "".
func (p *Publisher) ReplayEndpoint() string {
	if p.router == nil {
		return ""
	}
	return endpoint(p.router)
}

func endpoint(l net.Listener) string {
	scheme := "tcp"
	if l.Addr().Network() == "unix" {
		scheme = "ipc"
	}
	return scheme + "://" + l.Addr().String()
}

// Publish sends a payload to every subscriber and keeps it for replay. It
// returns the payload's sequence number.
func (p *Publisher) Publish(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.publishLocked(payload, "")
}

func (p *Publisher) publishLocked(payload []byte, barrier string) uint64 {
	e := entry{p.next, payload, barrier}
	p.next++
	p.buffer = append(p.buffer, e)
	if len(p.buffer) >= 2*p.cfg.Buffer {
		p.buffer = append([]entry(nil), p.buffer[len(p.buffer)-p.cfg.Buffer:]...)
	}
	if p.cfg.Lose != nil && p.cfg.Lose(e.seq) {
		return e.seq
	}
	for _, s := range p.conns {
		if s == nil || !s.wants(p.cfg.Topic) {
			continue
		}
		select {
		case s.queue <- e:
		default:
		}
	}
	return e.seq
}

func (s *subscriber) wants(topic string) bool {
	for _, prefix := range s.prefixes {
		if bytes.HasPrefix([]byte(topic), prefix) {
			return true
		}
	}
	return false
}

// Subscribers returns how many connections have subscribed to the topic.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.conns {
		if s != nil && s.wants(p.cfg.Topic) {
			n++
		}
	}
	return n
}

// Next returns the sequence number of the next payload.
func (p *Publisher) Next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Disconnect cuts every connection, as a broken network does; the publisher
// goes on.
func (p *Publisher) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nc := range p.conns {
		_ = nc.Close() // its reader ends and says no more
	}
}

// Close ends the publisher at once, as when its process is killed.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.pub.Close()
	for _, l := range []net.Listener{p.router, p.shots} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	p.Disconnect()
	p.wg.Wait()
	return err
}

// accept serves every connection of a listener until it is closed.
func (p *Publisher) accept(l net.Listener, t zmtp.Type, serve func(net.Conn, *zmtp.Conn)) {
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, for one
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			_ = nc.Close() // nobody has it
			return
		}
		p.conns[nc] = nil
		p.wg.Add(1)
		p.mu.Unlock()
		go func() {
			defer p.wg.Done()
			if c, err := zmtp.Handshake(nc, t, zmtp.Options{Write: forever}); err == nil {
				serve(nc, c)
			}
			p.mu.Lock()
			delete(p.conns, nc)
			p.mu.Unlock()
			_ = nc.Close() // the peer is gone, or we are
		}()
	}
}

// subscriptions reads a subscriber's subscriptions while another goroutine
// sends what it wants.
func (p *Publisher) subscriptions(nc net.Conn, c *zmtp.Conn) {
	s := &subscriber{queue: make(chan entry, p.cfg.HWM)}
	p.mu.Lock()
	p.conns[nc] = s
	p.mu.Unlock()
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { p.send(c, s.queue, done) })
	defer sender.Wait()
	defer close(done)
	var m zmtp.Message
	for c.ReadMessage(&m) == nil {
		if m.Len() != 1 || m.Size() == 0 {
			continue
		}
		verb, prefix := m.Frame(0)[0], bytes.Clone(m.Frame(0)[1:])
		p.mu.Lock()
		switch verb {
		case 1:
			s.prefixes = append(s.prefixes, prefix)
		case 0:
			for i := range s.prefixes {
				if bytes.Equal(s.prefixes[i], prefix) {
					s.prefixes = append(s.prefixes[:i], s.prefixes[i+1:]...)
					break
				}
			}
		}
		p.mu.Unlock()
	}
}

// send writes queued messages until the connection or done ends it.
func (p *Publisher) send(c *zmtp.Conn, queue <-chan entry, done <-chan struct{}) {
	var topic, seq []byte
	for {
		select {
		case <-done:
			return
		case e := <-queue:
			topic, seq = p.named(topic[:0], seq[:0], e)
			if c.WriteMessage(topic, seq, e.payload) != nil {
				_ = c.Close() // so that the reader ends
				return
			}
		}
	}
}

// replays answers one DEALER's requests: an empty frame, the first sequence
// number wanted.
func (p *Publisher) replays(_ net.Conn, c *zmtp.Conn) {
	topic, none, end := []byte(p.cfg.Topic), []byte{}, bytes.Repeat([]byte{0xff}, 8)
	var m zmtp.Message
	var seq [8]byte
	for c.ReadMessage(&m) == nil {
		if m.Len() != 2 || len(m.Frame(0)) != 0 || len(m.Frame(1)) != 8 {
			continue
		}
		for _, e := range p.from(binary.BigEndian.Uint64(m.Frame(1))) {
			binary.BigEndian.PutUint64(seq[:], e.seq)
			frames := [][]byte{none, seq[:], e.payload}
			if p.cfg.WithTopic {
				frames = [][]byte{none, topic, seq[:], e.payload}
			}
			if c.WriteMessage(frames...) != nil {
				return
			}
		}
		frames := [][]byte{none, end, none}
		if p.cfg.WithTopic {
			frames = [][]byte{none, none, end, none}
		}
		if p.cfg.HoldReplay != nil && p.cfg.HoldReplay() {
			continue
		}
		if c.WriteMessage(frames...) != nil {
			return
		}
	}
}

// from returns what the buffer holds from seq on, but for what is to be lost.
func (p *Publisher) from(seq uint64) []entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.buffer[max(0, len(p.buffer)-p.cfg.Buffer):]
	var out []entry
	i := 0
	for _, e := range kept {
		if e.seq < seq {
			continue
		}
		if p.cfg.LoseReplay == nil || !p.cfg.LoseReplay(i, e.seq) {
			out = append(out, e)
		}
		i++
	}
	return out
}
