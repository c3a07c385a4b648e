package zmqfeed

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// Config holds a Feed's settings. Zero fields take the defaults.
type Config struct {
	// Endpoint is where the engine publishes: tcp://host:port or ipc://path, of
	// this rank (see RankEndpoint).
	Endpoint string
	// Replay is the engine's replay endpoint. Without one, and without Snapshot, a hole stays a hole.
	Replay string
	// Snapshot is where the engine gives all that it holds, on engines that do: with it a
	// stream that lacks something is made whole again. Empty: nowhere.
	Snapshot string
	// Topic is what a message's topic begins with; with ExactTopic, what it is.
	// (kv@pod-1 also begins kv@pod-10.)
	Topic      string
	ExactTopic bool
	// Decoder is how payloads are decoded.
	Decoder engine.Config
	// Position is where to go on: what Feed.Position returned when the state
	// made of the batches was kept. Empty: from the engine's first batch.
	Position []byte
	// Incomplete says that the stream lacked something there.
	Incomplete bool

	// QueueMessages and QueueBytes bound what waits between the connection and
	// the handler. Defaults: 4,096, at most 1,048,576, and 64 MiB.
	QueueMessages int
	QueueBytes    int
	// MaxMessage is the size in bytes beyond which a message is not read but
	// told as a Gap. Default 64 MiB.
	MaxMessage int
	// Dial bounds a connection's making. Default 5 s.
	Dial time.Duration
	// RetryMin and RetryMax bound the pause before a broken connection is made
	// again, and before an engine is followed on that restarts again and again; it
	// doubles from one to the other, half of it random. A connection that stood
	// for longer than RetryMax ends it. Defaults: 100 ms and 5 s.
	RetryMin, RetryMax time.Duration

	// ReplayIdle is how long a replay may say nothing before it is asked again
	// from where it stopped. Default 2 s.
	ReplayIdle time.Duration
	// ReplayAttempts is how many replays in a row may bring nothing new before
	// the hole is given up. Default 6.
	ReplayAttempts int
	// ReplayPause is how long at most, after that, holes are given up unasked, and
	// half of it at least. Default 10 s. After replays that came to their end
	// without what is missing it is less, beginning with RetryMin.
	ReplayPause time.Duration
	// ReplayLimit is how long one replay may take, default 1 min; it is gone on
	// with where it stopped. ReplayRate bounds the replays asked for in a second,
	// default 10.
	ReplayLimit time.Duration
	ReplayRate  int
	// MaxSnapshot is the size in bytes beyond which a snapshot is not read; default 256 MiB.
	// SnapshotIdle is how long the engine may take to begin one, or to go on; default 10 s.
	MaxSnapshot  int
	SnapshotIdle time.Duration
	// ProbeMin is how long the stream may be silent before the feed asks for
	// what it may have missed; while the silence lasts the time doubles up to
	// ProbeMax. Defaults: 1 s and 30 s. A negative ProbeMin means never.
	ProbeMin, ProbeMax time.Duration
	// Limit is shared by feeds that may not all ask at once; nil: no limit.
	Limit *Limit
}

func (c *Config) setDefaults() error {
	if c.Endpoint == "" {
		return errors.New("engine feed: no endpoint to subscribe to")
	}
	for what, endpoint := range map[string]string{"events": c.Endpoint, "replay": c.Replay, "snapshot": c.Snapshot} {
		if endpoint == "" {
			continue
		}
		if err := zmtp.CheckDial(endpoint); err != nil {
			return fmt.Errorf("engine feed: %s: %w", what, err)
		}
	}
	number := func(p *int, def int) {
		if *p <= 0 {
			*p = def
		}
	}
	span := func(p *time.Duration, def time.Duration) {
		if *p <= 0 {
			*p = def
		}
	}
	number(&c.QueueMessages, 4096)
	c.QueueMessages = min(c.QueueMessages, 1<<20) // room for them is made ahead
	number(&c.QueueBytes, 64<<20)
	number(&c.MaxMessage, 64<<20)
	number(&c.ReplayAttempts, 6)
	number(&c.ReplayRate, 10)
	number(&c.MaxSnapshot, 256<<20)
	span(&c.SnapshotIdle, 10*time.Second)
	span(&c.Dial, 5*time.Second)
	span(&c.RetryMin, 100*time.Millisecond)
	span(&c.RetryMax, 5*time.Second)
	span(&c.ReplayIdle, 2*time.Second)
	span(&c.ReplayPause, 10*time.Second)
	span(&c.ReplayLimit, time.Minute)
	span(&c.ProbeMax, 30*time.Second)
	if c.ProbeMin >= 0 {
		span(&c.ProbeMin, time.Second)
	}
	c.RetryMax, c.ProbeMax = max(c.RetryMin, c.RetryMax), max(c.ProbeMin, c.ProbeMax)
	return nil
}

// Limit bounds how many replays and snapshots run at once over all feeds that share it.
type Limit struct{ slots chan struct{} }

// NewLimit returns a limit of n at once, at least 1.
func NewLimit(n int) *Limit { return &Limit{make(chan struct{}, max(1, n))} }

// RankEndpoint returns the endpoint of a data-parallel rank, given that of rank
// 0: engines add the rank to the port.
func RankEndpoint(endpoint string, rank uint32) (string, error) {
	if endpoint == "" {
		return "", nil
	}
	if err := zmtp.Check(endpoint); err != nil {
		return "", err
	}
	if rank == 0 {
		return endpoint, nil
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint %q of rank %d: only tcp endpoints have ranks", endpoint, rank)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("endpoint %q of rank %d: %w", endpoint, rank, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n+uint64(rank) > 65535 {
		return "", fmt.Errorf("endpoint %q of rank %d: the port must be 1 … 65535", endpoint, rank)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(n+uint64(rank), 10)), nil
}
