package replica

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/sysmem"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// NATS says where workers publish and register: URL, Embedded with a DataDir or one or more
// addresses (nats://host:port,nats://…; also tls:// and ws://); of an embedded server Port, MaxStore,
// Sync, SyncAlways and JoinOnly; of others' CredsFile, NKeyFile, CAFile, CertFile and KeyFile;
// Replicas of what is made there, Name and Log.
type NATS = broker.Config

// Embedded as the URL of [NATS] runs a server in this process, or joins the process
// that runs one on the same data directory.
const Embedded = broker.Embedded

// Config holds the settings of a Replica. Zero in any field means the default,
// which is that of the programs' flag, but for NATS: without a URL there is none.
type Config struct {
	NATS NATS // its Name and Log are set here unless given
	// Namespace names the streams, the registry and the routers that share their
	// load: letters, digits, - and _.
	Namespace string
	// Replica names this process among those of the namespace. No two may have the
	// same.
	Replica string

	// Share is the part of the fleet that is read, as "1/4": of a space with four
	// streams the second. Empty: spaces that have one stream.
	Share string
	// Shares are the indexers of a divided fleet, of which this process knows nothing
	// itself: it asks them. URLs are their addresses (http://host:port), that of 0/n first; Wait
	// is how long one may take to answer (250 ms), Every how often they are asked what ranks hold in all (1 s),
	// Inflight the most requests to one at a time (1024), Token a file with a reader's token, and Dial
	// the files of TLS.
	Shares shares.Config

	Discover       time.Duration // how often new streams are looked for
	ReadyLag       int           // messages of a stream behind which the index still counts as caught up; below 0: none
	IngestMessages int           // of a stream, read and not applied
	IngestBytes    int64         // likewise; 0 is the setting's default
	Ingest         ingest.Settings

	Registry registry.Settings

	Shards     int // goroutines that apply events, for each space
	Queue      int // batches of a space that wait before reading does
	MaxSpaces  int
	PoolBlocks int // of each pool that has a stream of its own, that are followed; 0 is 8,388,608
	// MemoryBudget is how many bytes all indexes may use together: half of the
	// memory that the machine or the control group has unless told, below 0
	// without limit.
	MemoryBudget int64
	// HugePages asks for huge pages for the heap; see AskHugePages.
	HugePages bool

	// Snapshots are read at the start and taken by whichever replica of the
	// namespace gets to it first.
	Snapshots keeper.Settings

	// Fed says that the caller fills the index: no events are read, and no
	// snapshots kept. Without NATS there is no other way: engines' own sockets are not read either.
	Fed bool
	// Static workers are registered beside those that Registry names.
	Static []registry.Worker

	Tracer  trace.Tracer // of the servers' spans; nil: none
	Metrics *obs.Metrics // nil: those of this Replica alone
	Log     *slog.Logger // nil: slog.Default()

	budget   int64 // the setting, of which 0 is no limit
	readyLag int   // likewise none
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	c.NATS.Declare(set)
	set.Group("Events")
	set.String(&c.Namespace, "namespace", "default", "Namespace of the streams, the registry and the replicas: letters, digits, - and _.")
	set.String(&c.Replica, "replica", proc.ReplicaName(), `Name of this process among the readers of the namespace, in the
		server's list of consumers. No two processes may have the same.`, conf.ShowDefault("host name and process id"))
	set.String(&c.Share, "share", "", `The part of every space's workers that is read, of a fleet whose publishers have
		--stream-partitions: 0/4 to 3/4 for four. Empty: all of it, however many streams a space has.`)
	set.Duration(&c.Discover, "discover-every", 2*time.Second, "How often new streams are looked for.",
		conf.Between(10*time.Millisecond, time.Hour))
	set.Int(&c.readyLag, "ready-lag", 1000, `Most messages of a stream that may be waiting when the index first counts as caught
		up, which makes /readyz succeed.`, conf.Between(0, 1<<30))
	set.Int(&c.IngestMessages, "ingest-max-messages", 65536, `Most messages of a stream that are read and not applied yet.
		Reading waits beyond.`, conf.Between(1, 1<<24))
	set.Bytes(&c.IngestBytes, "ingest-max-bytes", defaultInFlight(sysmem.Limit()), "Most bytes of messages of a stream that are read and not applied yet.",
		conf.Between[int64](1<<20, 1<<30), conf.ShowDefault("a 32nd of the memory that the machine or the control group has, 4MiB to 64MiB, which it is where nobody knows"))
	c.Ingest.Declare(set)
	c.Registry.Declare(set)
	c.Shares.Declare(set)
	set.Group("Index")
	set.Int(&c.Shards, "shards", shard.DefaultShards(), `Goroutines that apply events, for each space. More than two are
		seldom faster: each looks at every name of the ranks that it has chains of.`,
		conf.Between(1, shard.MaxShards), conf.ShowDefault("2, or 1 on one processor"))
	set.Int(&c.Queue, "shard-queue", 64, "Batches that wait at a shard before reading waits.", conf.Between(1, shard.MaxQueue))
	set.Int(&c.MaxSpaces, "max-spaces", 1024, `Most index spaces: models, times block sizes, times groups. Streams of
		more are refused.`, conf.Between(1, 1<<20))
	set.Int(&c.PoolBlocks, "pool-blocks", 1<<23, `Most blocks of a pool with a stream of its own that are followed, some 36 bytes each,
		and twice that while keys are listed. More are left out and counted.`, conf.Between(1, 1<<28))
	set.Bytes(&c.budget, "memory-budget", defaultBudget(), `Bytes that the indexes may use together. Beyond, new
		blocks of workers that hold more than their share are refused until there is room, and a sixteenth further on
		all new blocks. 0: no limit.`,
		conf.Between[int64](0, 1<<50), conf.ShowDefault("half of the memory that the machine or the control group has"))
	set.Bool(&c.HugePages, "huge-pages", false, `Ask the system for huge pages for the heap, as many as half of the memory
		has. Lookups and events lose less time to address translation; a page's first use waits while it is cleared.`)
	c.Snapshots.Declare(set)
	set.Check(func() error {
		if c.MemoryBudget = c.budget; c.budget == 0 {
			c.MemoryBudget = -1
		}
		if c.ReadyLag = c.readyLag; c.readyLag == 0 {
			c.ReadyLag = -1
		}
		return c.check()
	})
}

// check refuses what cannot go together.
func (c *Config) check() error {
	switch _, err := stream.ParseShare(c.Share); {
	case err != nil:
		return fmt.Errorf("--share: %w", err)
	case c.Share != "" && len(c.Shares.URLs) > 0:
		return errors.New("--share and --shares: a program has one share of the fleet, or asks those that have one")
	}
	c.Fed = c.Fed || len(c.Shares.URLs) > 0
	if !c.HasNATS() && !c.Fed {
		return errors.New("without NATS there are no events to keep an index by: give --nats an address, or \"embedded\"")
	}
	return nil
}

// withDefaults returns c with the defaults of what is not left to those who get it.
func (c Config) withDefaults() Config {
	c.Namespace = cmp.Or(c.Namespace, "default")
	if c.Replica == "" {
		c.Replica = fmt.Sprintf("%s-%08x", proc.ReplicaName(), rand.Uint32()) // a process may have several
	}
	if c.NATS.URL == Embedded {
		c.NATS.DataDir = cmp.Or(c.NATS.DataDir, broker.DefaultDataDir(os.Getenv))
	}
	c.MemoryBudget = cmp.Or(c.MemoryBudget, defaultBudget())
	c.IngestBytes = cmp.Or(c.IngestBytes, defaultInFlight(sysmem.Limit()))
	c.Registry.Forget = cmp.Or(c.Registry.Forget, registry.DefaultForget) // snapshots go by it, too
	c.Log = cmp.Or(c.Log, slog.Default())
	c.NATS.Log = cmp.Or(c.NATS.Log, c.Log)
	if c.Metrics == nil {
		c.Metrics = obs.NewSet()
	}
	return c
}

// AskHugePages does what HugePages says, to the whole process: programs call it once, before their heap is large.
func (c *Config) AskHugePages(log *slog.Logger) {
	if c.HugePages && !hugemem.Heap(int(min(defaultBudget(), math.MaxInt/2))) {
		log.Warn("no huge pages for the heap: the system has none, or gives none to who asks (/sys/kernel/mm/transparent_hugepage/enabled), or not so much memory")
	}
}

// StaticWorkers returns the workers that the settings name: those of Static, and those
// of the file that Registry names.
func (c *Config) StaticWorkers() ([]registry.Worker, error) {
	if c.Registry.Workers == "" {
		return c.Static, nil
	}
	list, err := registry.ReadStatic(c.Registry.Workers)
	return slices.Concat(c.Static, list), err
}

// HasNATS reports whether there is to be a broker.
func (c *Config) HasNATS() bool { return c.NATS.URL != "" && c.NATS.URL != broker.None }

// defaultInFlight is little where little may be used: what is in flight takes up to twice as much, and the process
// would be ended for it while it reads a long stream, at each start again.
func defaultInFlight(limit int64, known bool) int64 {
	const most = 64 << 20
	if !known {
		return most
	}
	return min(max(limit/32, 4<<20), most)
}

// defaultBudget is half of the memory: the collector needs some of the rest.
func defaultBudget() int64 {
	n, _ := sysmem.Limit()
	return n / 2
}
