package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
)

// Applier applies batches to the index of one space. *shard.Space is the one
// for production.
//   - Batches of one worker are applied in the order of their Apply calls.
//   - Apply may block while the index is behind; an error means that nothing
//     of b is applied and done is not called.
//   - done is called once, when all of b is applied, and does not block. b and
//     its slices do not change before.
type Applier interface {
	Apply(ctx context.Context, b *event.Batch, done func(core.Outcome)) error
}

// RankID names one publisher stream.
type RankID struct {
	Space  event.Space
	Worker uint64
	DPRank uint32
}

// Cause says why a rank's state is not what its worker holds.
type Cause = follow.Cause

// The causes for a recovery.
const (
	Gap           = follow.Hole
	UnknownParent = follow.UnknownParent
	Departed      = follow.Returned
	Discovery     = follow.Discovery
	Void          = follow.Void
	Room          = follow.Room
	Retry         = follow.Retry
	Unusable      = follow.Unusable
	Behind        = follow.Behind
	OtherRun      = follow.OtherRun
	Contest       = follow.Contest
)

// Recoverer is told which ranks an Ingest brings up to date from their workers'
// local indexes.
//   - Recover is called from partitions: it returns at once.
//   - It may be called again while a recovery of the rank is under way.
type Recoverer interface {
	Recover(id RankID, cause Cause)
}

// Start says where reading a stream begins: after what a snapshot holds. The
// zero value is the start of the stream.
type Start struct {
	// Seq is the first sequence to read; 0 or 1 for the start of the stream.
	Seq uint64
	// Created is the creation time of the stream that Seq is of. If it is set
	// and the stream is another one, Seq is void.
	Created time.Time
	// Stored is when the stream stored the message before Seq. If it is set and
	// that message has another time, Seq is void.
	Stored time.Time
	// Ranks is how far each publisher stream was applied.
	Ranks []RankPosition
	// Pools are what the index knows besides, of which no stream of its own tells.
	Pools []shard.RankID
}

// RankPosition is how far one publisher stream is applied.
type RankPosition struct {
	Worker uint64
	DPRank uint32
	follow.Position
}

// Config holds the settings of an Ingest. Conn, Replica and Index are needed;
// zero in any other field means the stated default.
type Config struct {
	Conn      *nats.Conn // must reconnect for ever; lives longer than the Ingest
	Namespace string     // default "default"
	// Replica names this process among the readers of the namespace, in the
	// server's list of consumers. No two processes may share it.
	Replica string
	// Index returns where a space's events go. It is called once per stream,
	// before its first event.
	Index func(event.Space) (Applier, error)
	// Recover is told of every rank that missed something; nil: nobody is.
	Recover Recoverer
	// Left returns when a rank last left the fleet, alone or with its worker, if
	// it is not there: what it published until then is ignored. It is asked once
	// a rank and must not block; nil: nobody left. See also WorkerLeft.
	Left func(sp event.Space, worker uint64, dpRank uint32) (Departure, bool)
	// Registered reports whether a rank is among those that its worker is registered with;
	// true also of a worker that is not registered. Of others a few are followed. It must
	// not block; nil: nobody is registered.
	Registered func(sp event.Space, worker uint64, dpRank uint32) bool
	// FindSnapshot finds a snapshot to take up where a stream was trimmed beyond what
	// was read of it; nil: publishers are asked for what is missing.
	FindSnapshot FindSnapshot
	// NoRecovery leaves ranks that missed something as they are, marked.
	NoRecovery bool
	// Share is the part of the workers that is read: of a space that has as many
	// streams, one. The zero value is all of them.
	Share stream.Share
	// Start says where to begin, by stream name.
	Start map[string]Start

	// Discover is how often new streams are looked for; default 2 s.
	Discover time.Duration
	// Partitions is how many goroutines decode a stream; default GOMAXPROCS.
	Partitions int
	// MaxMessages and MaxBytes bound, for each stream, what is read and not
	// applied yet; defaults 65536 messages and 64 MiB. The reader waits beyond.
	MaxMessages int
	MaxBytes    int
	// HoldMessages and HoldBytes bound what is held back for each rank while a
	// predecessor is missing; beyond, that counts as lost. Defaults 256
	// messages (stream.MaxWindow, the most by which a publisher's message may
	// be late) and 16 MiB.
	HoldMessages int
	HoldBytes    int
	// MaxRanks bounds the publisher streams that are followed in each partition of
	// a stream, and MaxWorkerRanks those of one worker; messages of others are skipped
	// and counted. Defaults 65536 and 1024, as of registrations.
	MaxRanks, MaxWorkerRanks int
	// GapWait is how long a rank's events wait at most for one before them that
	// is missing in the stream, whether or not its publisher is being asked for it;
	// then they are applied and the rank is incomplete. Default 10 s. GapAsk is
	// after how long the publisher is asked; default 250 ms. What is missing for a
	// reason that is known (a message came and cannot be used, or there is no
	// stream) is not waited for, and heartbeats tell sooner.
	GapWait, GapAsk time.Duration
	// Recoveries is how many ranks are brought up to date at a time; default 8.
	Recoveries int
	// RecoverMessages bounds what is held back for each rank while it recovers;
	// beyond, it is dropped and asked for once more. Default 4096. HoldBytes
	// bounds it too.
	RecoverMessages int
	// RecoverAttempts is how often a publisher is asked in vain before its rank
	// is left incomplete until its next heartbeat; default 5. RecoverTimeout is
	// how long an answer may take, default 2 s, and RecoverLimit all the answers
	// of one attempt, default 5 min. RecoverMin and RecoverMax bound the waits
	// after what was in vain, which double; defaults 50 ms and 10 s. DumpMin and
	// DumpMax bound those between dumps of one rank, which double while dumps keep
	// being needed; defaults 1 s and 5 min.
	RecoverAttempts        int
	RecoverTimeout         time.Duration
	RecoverLimit           time.Duration
	RecoverMin, RecoverMax time.Duration
	DumpMin, DumpMax       time.Duration
	// Lease is for how long one of two processes that publish as the same rank must
	// be silent before the other one is followed; until then the index holds nothing
	// of the rank. Default 15 s, as that of registrations.
	Lease time.Duration
	// RecoverRate bounds the requests in a second to one publisher, whatever it
	// answers; default 100.
	RecoverRate int
	// RoomCheck is how often a rank that was refused blocks is looked at;
	// default 1 s.
	RoomCheck time.Duration
	// MaxLag is how many messages behind the stream's end a replica may be
	// when it first counts as caught up; default 1000, below 0: none.
	MaxLag int
	// StallAfter is after how long without getting on, although the stream has more
	// and the server answers, Ready fails; default 10 s, or GapWait and 5 s where
	// that is longer: so long a message may be held back.
	StallAfter time.Duration
	// StaleAfter is after how long without a word of NATS all ranks count as stale, see
	// Silent; default 1 min, or three looks for streams where that is longer.
	StaleAfter time.Duration
	// DeleteStream deletes a stream that is empty and into which nothing was published for
	// so long while this process looked, heartbeats neither: its publishers are gone.
	// Default 0: none is deleted. Give several times what publishers' heartbeats are apart.
	DeleteStream time.Duration
	// ForgetStream is after how long without its stream a reader is not shown, and not
	// waited for, until it is there again; default 30 s.
	ForgetStream time.Duration
	// ForgetConsumer is after how long without this replica the server drops
	// its consumer; default 1 h.
	ForgetConsumer time.Duration

	// MaxSeries is how many ranks have metrics of their own; the others are
	// summed up, and whole in Ranks. Default 200.
	MaxSeries int

	Metrics *metrics.Set // nil: not exposed
	Log     *slog.Logger // nil: slog.Default()

	patience time.Duration // a reader's first with the server; default requestWait
}

const (
	defaultGapWait = 10 * time.Second
	defaultGapAsk  = 250 * time.Millisecond
	defaultLease   = 15 * time.Second

	defaultStaleAfter = time.Minute
)

func (c Config) withDefaults() (Config, error) {
	c.Namespace = cmp.Or(c.Namespace, "default")
	c.Discover = cmp.Or(c.Discover, 2*time.Second)
	c.Partitions = cmp.Or(c.Partitions, runtime.GOMAXPROCS(0))
	c.MaxMessages = cmp.Or(c.MaxMessages, 65536)
	c.MaxBytes = cmp.Or(c.MaxBytes, 64<<20)
	c.HoldMessages = cmp.Or(c.HoldMessages, stream.MaxWindow)
	c.HoldBytes = cmp.Or(c.HoldBytes, 16<<20)
	c.MaxRanks = cmp.Or(c.MaxRanks, 1<<16)
	c.MaxWorkerRanks = cmp.Or(c.MaxWorkerRanks, 1024)
	c.GapWait = cmp.Or(c.GapWait, defaultGapWait)
	c.GapAsk = cmp.Or(c.GapAsk, defaultGapAsk)
	c.Recoveries = cmp.Or(c.Recoveries, 8)
	c.RecoverMessages = cmp.Or(c.RecoverMessages, 4096)
	c.RecoverAttempts = cmp.Or(c.RecoverAttempts, 5)
	c.RecoverTimeout = cmp.Or(c.RecoverTimeout, 2*time.Second)
	c.RecoverLimit = cmp.Or(c.RecoverLimit, 5*time.Minute)
	c.RecoverMin = cmp.Or(c.RecoverMin, 50*time.Millisecond)
	c.RecoverMax = cmp.Or(c.RecoverMax, 10*time.Second)
	c.DumpMin = cmp.Or(c.DumpMin, time.Second)
	c.DumpMax = cmp.Or(c.DumpMax, 5*time.Minute)
	c.Lease = cmp.Or(c.Lease, defaultLease)
	c.RecoverRate = cmp.Or(c.RecoverRate, 100)
	c.RoomCheck = cmp.Or(c.RoomCheck, time.Second)
	c.MaxSeries = cmp.Or(c.MaxSeries, 200)
	c.MaxLag = cmp.Or(c.MaxLag, 1000)
	c.patience = cmp.Or(c.patience, requestWait)
	c.StallAfter = cmp.Or(c.StallAfter, max(10*time.Second, c.GapWait+5*time.Second))
	c.StaleAfter = max(cmp.Or(c.StaleAfter, defaultStaleAfter), 3*c.Discover)
	c.ForgetStream = cmp.Or(c.ForgetStream, 30*time.Second)
	c.ForgetConsumer = cmp.Or(c.ForgetConsumer, time.Hour)
	if c.Metrics == nil {
		c.Metrics = metrics.NewSet()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if err := stream.CheckNamespace(c.Namespace); err != nil {
		return c, fmt.Errorf("ingest: %w", err)
	}
	if err := stream.CheckNamespace(c.Replica); err != nil {
		return c, fmt.Errorf("ingest: replica as %w", err)
	}
	switch {
	case c.Conn == nil:
		return c, errors.New("ingest: no connection given")
	case c.Index == nil:
		return c, errors.New("ingest: no index given")
	case c.Partitions < 1 || c.MaxMessages < 1 || c.MaxBytes < 1 || c.HoldMessages < 1 || c.HoldBytes < 1 || c.MaxRanks < 1 || c.MaxWorkerRanks < 1:
		return c, errors.New("ingest: a bound is negative")
	case c.Recoveries < 1 || c.RecoverMessages < 1 || c.RecoverAttempts < 1 || c.RecoverRate < 1 || c.MaxSeries < 0:
		return c, errors.New("ingest: a bound on recoveries or series is negative")
	case c.RecoverTimeout < 0 || c.RecoverLimit < 0 || c.RecoverMin < 0 || c.DumpMin < 0 || c.RoomCheck < 0:
		return c, errors.New("ingest: a wait of recoveries is negative")
	case c.RecoverMax < c.RecoverMin || c.DumpMax < c.DumpMin:
		return c, errors.New("ingest: RecoverMax is below RecoverMin, or DumpMax below DumpMin")
	case c.Lease < 0 || c.DeleteStream < 0 || c.ForgetStream < 0 || c.Discover < 0 || c.GapWait < 0 || c.GapAsk < 0 || c.ForgetConsumer < 0 || c.StallAfter < 0:
		return c, errors.New("ingest: a duration is negative")
	}
	return c, nil
}
