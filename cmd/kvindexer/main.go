// Command kvindexer is the standalone index: it reads the events that engines
// publish through NATS and answers over HTTP which workers hold which prefix.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/program/sysmem"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// config holds all settings of the program.
type config struct {
	Log    obs.LogConfig
	HTTP   query.Config
	Access secure.Settings
	Admin  admin.Settings
	Broker broker.Config
	Ingest ingest.Config

	Registry  registry.Settings
	Index     shard.Config
	Snapshots keeper.Settings

	Service     proc.ServiceConfig
	MaxLag      int
	IngestBytes int64

	settings *conf.Set
}

func (c *config) declare(set *conf.Set) {
	c.Service.Declare(set, 20*time.Second, "requests under way")
	c.Broker.Declare(set)
	set.Group("Events")
	set.String(&c.Ingest.Namespace, "namespace", "default", "Namespace of the streams to read: letters, digits, - and _.")
	set.String(&c.Ingest.Replica, "replica", proc.ReplicaName(), `Name of this process among the readers of the namespace, in the
		server's list of consumers. No two processes may have the same.`, conf.ShowDefault("host name and process id"))
	set.Duration(&c.Ingest.Discover, "discover-every", 2*time.Second, "How often new streams are looked for.",
		conf.Between(10*time.Millisecond, time.Hour))
	set.Int(&c.MaxLag, "ready-lag", 1000, `Most messages of a stream that may be waiting when the index first counts as caught
		up, which makes /readyz succeed.`, conf.Between(0, 1<<30))
	set.Int(&c.Ingest.MaxMessages, "ingest-max-messages", 65536, `Most messages of a stream that are read and not applied yet.
		Reading waits beyond.`, conf.Between(1, 1<<24))
	set.Bytes(&c.IngestBytes, "ingest-max-bytes", 64<<20, "Most bytes of messages of a stream that are read and not applied yet.",
		conf.Between[int64](1<<20, 1<<30))
	c.Registry.Declare(set)
	set.Group("Index")
	set.Int(&c.Index.Shards, "shards", runtime.GOMAXPROCS(0), "Goroutines that apply events, for each space.",
		conf.Between(1, 1024), conf.ShowDefault("number of processors"))
	set.Int(&c.Index.Queue, "shard-queue", 64, "Batches that wait at a shard before reading waits.", conf.Between(1, 1<<16))
	set.Int(&c.Index.MaxSpaces, "max-spaces", 1024, `Most index spaces: models, times block sizes, times groups. Streams of
		more are refused.`, conf.Between(1, 1<<20))
	set.Bytes(&c.Index.MemoryBudget, "memory-budget", defaultBudget(), `Bytes that the indexes may use together. Beyond, new
		blocks of workers that hold more than their share are refused until there is room, and a sixteenth further on
		all new blocks. 0: no limit.`,
		conf.Between[int64](0, 1<<50), conf.ShowDefault("half of the memory that the machine or the control group has"))
	c.Snapshots.Declare(set)
	c.Log.Declare(set)
	c.HTTP.Declare(set)
	c.Access.Declare(set)
	c.Admin.Declare(set, "127.0.0.1:8091")
	c.settings = set
}

// defaultBudget is half of the memory: the collector needs some of the rest.
func defaultBudget() int64 {
	n, _ := sysmem.Limit()
	return n / 2
}

func main() {
	var c config
	set := conf.New("kvindexer", "the standalone index of who holds which prefix.")
	c.declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.Log, Run: func(ctx context.Context, log *slog.Logger) error {
		return run(ctx, &c, log)
	}}))
}
