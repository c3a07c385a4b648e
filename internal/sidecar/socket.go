package sidecar

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Bounds on the socket's clients.
const (
	maxClients  = maxRanks
	maxRun      = 256 // bytes of a run's name
	writeWait   = 5 * time.Second
	helloWait   = 10 * time.Second
	socketLimit = 107 // bytes of a Unix socket's path, as Linux has it
)

// socket takes events from engines that speak no ZMQ: one connection a rank.
// docs/custom-engines.md is its protocol.
type socket struct {
	cfg     *Config
	inputs  []*input // by stream
	log     *slog.Logger
	metrics *obs.Metrics
	clients *metrics.Gauge
	broken  atomic.Pointer[string] // why nobody can connect; nil: everybody can

	mu struct {
		sync.Mutex
		ln   *net.UnixListener
		file os.FileInfo // of what it listens at
	}
}

// input is what a rank's engine sends. The goroutine of its connection owns it
// while busy is set.
type input struct {
	stream *stream
	follow *zmqfeed.Follower
	busy   atomic.Bool
	run    string // names the engine's process; "": none was heard
	conn   atomic.Pointer[client]
}

// client is a connection.
type client struct {
	net.Conn
	mu sync.Mutex // of writes
}

// reply is a line to a client.
type reply struct {
	Type  string  `json:"type"`
	Next  *uint64 `json:"next,omitempty"`
	Error string  `json:"error,omitempty"`
}

// newSocket listens; who connects waits for run.
func newSocket(cfg *Config, streams []*stream, log *slog.Logger, m *obs.Metrics) (*socket, error) {
	if len(cfg.Socket) > socketLimit {
		return nil, fmt.Errorf("--socket: the path has %d bytes, at most %d", len(cfg.Socket), socketLimit)
	}
	s := &socket{cfg: cfg, log: log, metrics: m, clients: m.GetOrCreateGauge("kvatlas_publisher_socket_connections", nil)}
	for _, st := range streams {
		in := &input{stream: st, follow: zmqfeed.NewFollower(st)}
		if len(st.start) >= 8 {
			in.run = string(st.start[8:])
			in.follow.Resume(binary.LittleEndian.Uint64(st.start), st.incomplete)
		}
		st.cfg.kept = in.kept
		s.inputs = append(s.inputs, in)
	}
	return s, s.listen()
}

// position says where the input is: the next number and the run.
func (in *input) position() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, in.follow.Next()), in.run...)
}

// kept tells the engine what it need not send again.
func (in *input) kept(position []byte) {
	if c := in.conn.Load(); c != nil {
		next := binary.LittleEndian.Uint64(position)
		c.tell(reply{Type: "kept", Next: &next})
	}
}

// tell sends a line; a client that does not read is cut off.
func (c *client) tell(r reply) {
	line, err := json.Marshal(r)
	if err != nil {
		return // it always has a form
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.SetWriteDeadline(time.Now().Add(writeWait)) != nil {
		return
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		_ = c.Close() // its reader ends
	}
}

func (s *socket) refuse(reason string) {
	s.metrics.GetOrCreateCounter(obs.Name("kvatlas_publisher_socket_refused_total", "reason", reason)).Inc()
}

// serve serves one connection.
func (s *socket) serve(c *client) {
	lines := bufio.NewScanner(c)
	lines.Buffer(make([]byte, 0, 4096), int(s.cfg.MaxLine))
	_ = c.SetReadDeadline(time.Now().Add(helloWait)) // a Unix socket has deadlines
	in, counts, err := s.hello(lines)
	if err != nil {
		s.refuse("hello")
		c.tell(reply{Type: "error", Error: err.Error()})
		return
	}
	defer in.busy.Store(false)
	_ = c.SetReadDeadline(time.Time{})
	in.conn.Store(c)
	defer in.conn.Store(nil)
	next := in.follow.Next()
	c.tell(reply{Type: "welcome", Next: &next})
	p := parser{blockSize: s.cfg.BlockSize, dpRank: in.stream.cfg.dpRank}
	for lines.Scan() {
		seq, ev, err := p.parse(lines.Bytes())
		if err != nil {
			c.tell(reply{Type: "error", Error: err.Error()})
		}
		if errors.Is(err, errNoNumber) {
			s.refuse("line")
			return
		}
		in.follow.Sent(seq, &line{event.Batch{CountCopies: counts, Events: []event.Event{ev}}, err})
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		s.refuse("too_long")
		c.tell(reply{Type: "error", Error: fmt.Sprintf("a line is longer than %d bytes (--socket-max-line)", s.cfg.MaxLine)})
	}
}

// hello reads the first line and takes the rank's input.
func (s *socket) hello(lines *bufio.Scanner) (*input, bool, error) {
	if !lines.Scan() {
		return nil, false, errors.New("no hello came")
	}
	h := struct {
		Type        string `json:"type"`
		Version     int    `json:"version"`
		Run         string `json:"run"`
		DPRank      uint32 `json:"dp_rank"`
		CountCopies bool   `json:"count_copies"`
	}{}
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil || h.Type != "hello" {
		return nil, false, errors.New(`the first line is no {"type":"hello",…}`)
	}
	switch {
	case h.Version != 1:
		return nil, false, fmt.Errorf("version %d of the protocol, this program knows 1", h.Version)
	case h.Run == "" || len(h.Run) > maxRun:
		return nil, false, fmt.Errorf("run: give a text of 1 to %d bytes that names this run of the engine", maxRun)
	}
	for _, in := range s.inputs {
		if in.stream.cfg.dpRank != h.DPRank {
			continue
		}
		if !in.stream.opened.Load() {
			return nil, false, errors.New("not ready to publish yet, try again")
		}
		if !in.busy.CompareAndSwap(false, true) {
			return nil, false, fmt.Errorf("rank %d is connected already", h.DPRank)
		}
		if in.run != h.Run {
			in.run = h.Run
			in.follow.Anew()
		}
		return in, h.CountCopies, nil
	}
	return nil, false, fmt.Errorf("rank %d is not one of --dp-ranks", h.DPRank)
}

// line is a message's content; bad says why it cannot be used.
type line struct {
	b   event.Batch
	bad error
}

// Read implements zmqfeed.Content.
func (l *line) Read() (*event.Batch, zmqfeed.Reason, error) { return &l.b, zmqfeed.Undecodable, l.bad }

// Done implements zmqfeed.Content.
func (l *line) Done() {}
