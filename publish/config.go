package publish

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// StreamConfig holds what a space's stream is made with if it does not exist.
type StreamConfig = stream.Config

// WhenFull says what happens to an event that finds the publisher full.
type WhenFull uint8

// The policies for a full publisher.
const (
	Block WhenFull = iota // the caller waits for room
	Drop                  // the event is dropped and counted; readers see a gap
)

// Transport says how messages reach the replicas.
type Transport uint8

// The transports.
const (
	// JetStream stores every message in the space's stream before it counts as
	// published: replicas get it although they are away at the moment.
	JetStream Transport = iota
	// CoreNATS sends every message once, to the replicas that listen. One that
	// misses a message asks the publisher for it.
	CoreNATS
)

// Config holds the settings of a Publisher. Space, Worker and Conn are needed;
// zero in any other field means the stated default.
type Config struct {
	// Conn reaches the NATS server or cluster. It must reconnect for ever, and
	// lives longer than the Publisher.
	Conn      *nats.Conn
	Namespace string       // default "default"
	Transport Transport    // default JetStream
	Stream    StreamConfig // used by whoever is first to publish into a space
	// Group is shared by the publishers of a process that share Conn; nil: one of its own.
	// It is of use where the stream takes batches.
	Group *Group

	Space  event.Space
	Worker uint64
	// Incarnation names this run of the engine process; default random. Give
	// it, with Resume, when the publisher restarts and the engine does not.
	Incarnation uint64
	// Resume holds the last event id of each rank from before the restart, and
	// whether it is incomplete (SetIncomplete). The publisher does not know what
	// those ranks hold, until they are cleared, and says so to replicas that
	// ask; unless Holds says it.
	Resume []event.Position
	// Holds calls add for what a rank of Resume holds, as core.Index.Dump gives
	// it. Events marked as incomplete, of blocks below parents that are not
	// known, come last.
	Holds func(dpRank uint32, add func(ev *event.Event, copies []uint32))
	// Registration has the worker announced in the registry while the Publisher
	// is open; nil: it is indexed all the same, and known by its events alone.
	Registration *Registration
	// CountCopies is set for an engine that reports one store and one removal
	// per physical copy of a block.
	CountCopies bool

	// A batch is sent when it has BatchEvents events (default 512) or
	// BatchBytes bytes (default 256 KiB), or when its first event is Linger
	// old (default 2 ms, negative: at once). It always stays below the
	// server's maximum payload.
	BatchEvents int
	BatchBytes  int
	Linger      time.Duration

	// Window bounds the messages sent and not yet acknowledged; default 64, at
	// most 256 (stream.MaxWindow), the most by which readers let a message be late.
	Window int
	// MaxPending bounds the bytes of events accepted and not yet
	// acknowledged; default 32 MiB.
	MaxPending int
	// WhenFull says what happens beyond MaxPending; default Block.
	WhenFull WhenFull

	// AckWait is how long an acknowledgement is waited for at most before a copy of the
	// message is sent; default 1 min. The first wait is half a second, or longer where
	// acknowledgements took longer of late; each next one is twice as long.
	AckWait time.Duration
	// RetryMin and RetryMax bound the wait before a failed message is sent
	// again; it doubles from one to the other. Defaults 50 ms and 2 s.
	RetryMin, RetryMax time.Duration
	// StreamWait is for how long the stream may refuse events before replicas are told so
	// without it, and ask this process for them; until it takes them again nobody waits
	// for room: events beyond MaxPending are kept for those who ask only. Default 10 s,
	// negative: for ever.
	StreamWait time.Duration
	// RingEvents is how many of its last events a rank keeps for replicas that
	// missed some, default 10,000, and RingBytes bounds their bytes over all
	// ranks, default 64 MiB. A replica that missed more gets a dump of all that
	// the rank holds.
	RingEvents int
	RingBytes  int
	// KeepDump is after how long unasked a dump for a replica is dropped;
	// default 10 s. Dumps bounds how many are kept, one a rank; default 4.
	KeepDump time.Duration
	Dumps    int
	// Heartbeat is how often the last event ids are published; default 5 s,
	// negative: never.
	Heartbeat time.Duration

	Metrics *metrics.Set // nil: not exposed
	Log     *slog.Logger // nil: slog.Default()
}

// DefaultStreamWait is how long a stream may refuse events unless told.
const DefaultStreamWait = 10 * time.Second

func (c Config) withDefaults() (Config, error) {
	c.Namespace = cmp.Or(c.Namespace, "default")
	c.BatchEvents = cmp.Or(c.BatchEvents, 512)
	c.BatchBytes = cmp.Or(c.BatchBytes, 256<<10)
	c.Linger = cmp.Or(c.Linger, 2*time.Millisecond)
	c.Window = cmp.Or(c.Window, 64)
	c.MaxPending = cmp.Or(c.MaxPending, 32<<20)
	c.AckWait = cmp.Or(c.AckWait, time.Minute)
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 2*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 5*time.Second)
	c.StreamWait = cmp.Or(c.StreamWait, DefaultStreamWait)
	c.RingEvents = cmp.Or(c.RingEvents, 10_000)
	c.RingBytes = cmp.Or(c.RingBytes, 64<<20)
	c.KeepDump = cmp.Or(c.KeepDump, 10*time.Second)
	c.Dumps = cmp.Or(c.Dumps, 4)
	if c.Metrics == nil {
		c.Metrics = metrics.NewSet()
	}
	if c.Group == nil {
		c.Group = &Group{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	for c.Incarnation == 0 { // 0 means unknown on the wire
		c.Incarnation = rand.Uint64()
	}
	if err := stream.CheckNamespace(c.Namespace); err != nil {
		return c, fmt.Errorf("publish: %w", err)
	}
	probe := event.Batch{Space: c.Space, Last: c.Resume}
	switch err := probe.Check(); {
	case err != nil:
		return c, fmt.Errorf("publish: %w", err)
	case c.Space.Model == "":
		return c, errors.New("publish: the space has no model name")
	case !utf8.ValidString(c.Space.Model) || !utf8.ValidString(c.Space.Group): // its stream would be another space's
		return c, fmt.Errorf("publish: model %q of group %q: names are UTF-8", c.Space.Model, c.Space.Group)
	case c.Window < 1 || c.Window > stream.MaxWindow:
		return c, fmt.Errorf("publish: window %d, give 1 to %d messages", c.Window, stream.MaxWindow)
	case c.BatchEvents < 1 || c.BatchBytes < 1 || c.MaxPending < 1 || c.RingEvents < 1 || c.RingBytes < 1 || c.Dumps < 1:
		return c, errors.New("publish: a bound on events, bytes or dumps is negative")
	case c.Transport > CoreNATS:
		return c, errors.New("publish: unknown transport")
	case c.WhenFull > Drop:
		return c, errors.New("publish: unknown policy for a full publisher")
	case c.KeepDump < 0 || c.AckWait < 0 || c.RetryMin < 0 || c.RetryMax < c.RetryMin:
		return c, errors.New("publish: a wait is negative, or RetryMax is below RetryMin")
	}
	return c, nil
}
