// Command kvmocker runs a fleet of mock engines that publish what real ones
// would: the KV cache events of prompts from a trace or a generated workload.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// config is all settings of the program.
type config struct {
	fleet     mocker.Config
	broker    broker.Config
	stream    stream.Config
	dryRun    bool
	namespace string
	linger    time.Duration
	register  bool
	lease     time.Duration
	loseEvery time.Duration
	indexer   withIndexer
	log       obs.LogConfig

	settings *conf.Set
}

func main() {
	set := conf.New("kvmocker", "A fleet of mock engines that publishes KV cache events.")
	c := config{settings: set}
	c.fleet.Declare(set)
	c.stream.Declare(set)
	c.broker.Declare(set)
	set.Group("Publishing")
	set.Bool(&c.dryRun, "dry-run", false, "Publish nowhere, to try settings or for --events-out alone.")
	set.String(&c.namespace, "namespace", "default", "Namespace of the streams, the registry and the replicas: letters, digits, - and _.")
	set.Duration(&c.linger, "linger", 2*time.Millisecond, "How long a worker's event may wait for others to share its message.",
		conf.Between(time.Microsecond, time.Minute))
	set.Bool(&c.register, "register", false, `Announce the worker in the registry, with heartbeats. All of them; --http does in any case. When the fleet
		ends they are gone, and their blocks with them; see --at-end wait.`)
	set.Duration(&c.lease, "lease", registry.DefaultLease, `How long the worker counts as there without a heartbeat; one is sent
		each third of it.`, conf.Between(time.Second, time.Hour))
	set.Duration(&c.loseEvery, "lose-every", 0, `How often the last worker's publisher has too little room, and an event of it never reaches the
		stream: those who read it find a gap, and ask for it. 0s is never.`, conf.Between(0, time.Hour))
	c.indexer.declare(set)
	c.log.Declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.log, Run: c.run}))
}

func (c *config) run(ctx context.Context, log *slog.Logger) error {
	if c.dryRun || c.fleet.HTTP.On && c.fleet.HTTP.Events > 0 {
		return c.mock(ctx, nowhere(), nil, log)
	}
	c.broker.Name, c.broker.Log = "kvmocker", log
	c.broker.JoinOnly = c.fleet.HTTP.On // who sends requests has it: it outlives its engines
	if c.indexer.On {
		return c.runWithIndexer(ctx, log)
	}
	b, err := broker.Open(ctx, c.broker)
	if err != nil {
		return err
	}
	err = c.publish(ctx, b.Conn(), log)
	if closeErr := b.Close(); closeErr != nil && err == nil {
		err = fmt.Errorf("close the broker: %w", closeErr)
	}
	return err
}

// publish runs the fleet, whose workers publish at the connection.
func (c *config) publish(ctx context.Context, nc *nats.Conn, log *slog.Logger) error {
	set := metrics.NewSet()
	streams, bucket := c.stream, registry.BucketConfig{Replicas: c.broker.Replicas}
	streams.Replicas, streams.Batches = c.broker.Replicas, c.broker.SyncAlways
	group := &publish.Group{}
	return c.mock(ctx, mocker.Broker{
		Open: func(ctx context.Context, sp event.Space, worker uint64) (mocker.Publisher, error) {
			cfg := publish.Config{
				Conn: nc, Namespace: c.namespace, Space: sp, Worker: worker, Linger: c.linger, Stream: streams, Group: group, Metrics: set, Log: log,
			}
			if c.register && !c.fleet.HTTP.On { // whose workers are registered once they listen
				cfg.Registration = &publish.Registration{Worker: c.fleet.Worker(worker), Lease: c.lease}
			}
			if c.fleet.Dies(worker) {
				return openMortal(ctx, cfg)
			}
			if c.loseEvery > 0 && worker == uint64(c.fleet.FirstWorker+c.fleet.Workers-1) {
				return openLossy(ctx, cfg, c.loseEvery)
			}
			return publish.Open(ctx, cfg)
		},
		Pending: func() int64 { return int64(set.GetOrCreateGauge("kvatlas_publish_pending_bytes", nil).Get()) },
	}, func(ctx context.Context, w registry.Worker) (func(context.Context) error, error) {
		a, err := registry.Register(ctx, w, registry.AnnounceConfig{Conn: nc, Namespace: c.namespace, Bucket: bucket, Lease: c.lease, Log: log})
		if err != nil {
			return nil, err
		}
		return a.Close, nil
	}, log)
}

// mock runs the fleet in the way that the settings ask for.
func (c *config) mock(ctx context.Context, to mocker.Broker, register mocker.Register, log *slog.Logger) error {
	if c.fleet.HTTP.On {
		if c.fleet.DieEvery > 0 {
			return errors.New("--die-every is not for --http: kill the process that is to die")
		}
		return mocker.Serve(ctx, &c.fleet, to, register, log, nil)
	}
	return mocker.Run(ctx, &c.fleet, to, os.Stdout)
}

// nowhere accepts events and drops them.
func nowhere() mocker.Broker {
	return mocker.Broker{
		Open:    func(context.Context, event.Space, uint64) (mocker.Publisher, error) { return discard{}, nil },
		Pending: func() int64 { return 0 },
	}
}

type discard struct{}

func (discard) Publish(context.Context, event.Event) error { return nil }
func (discard) Flush(context.Context) error                { return nil }
func (discard) Close(context.Context) error                { return nil }
