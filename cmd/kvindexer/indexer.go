package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// indexer is the running program: events flow from the broker through ingest
// into the set; the server reads the set.
type indexer struct {
	cfg    *config
	log    *slog.Logger
	set    *shard.Set
	server *query.Server

	service *proc.Service
	broker  *broker.Broker
	ingest  atomic.Pointer[ingest.Ingest] // nil until the broker is connected

	registry registryRoutes
	workers  *workers // nil until the registry is read
	keeper   atomic.Pointer[keeper.Keeper]
	starting startup.Progress
}

// run runs the program until ctx ends or something fails, and stops it in
// order.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	m := obs.NewMetrics()
	x := &indexer{cfg: cfg, log: log}
	cfg.Index.EngineScheme = x.registry.engineScheme
	x.set = shard.New(cfg.Index)
	x.service = proc.NewService(cfg.Service, log, m, x.behind)
	registerMetrics(m, x.set)
	cfg.Broker.Log, cfg.Ingest.Log, cfg.Ingest.Metrics = log, log, m.Set
	access, err := cfg.Access.Open(log)
	if err != nil {
		return err
	}
	x.server, err = query.New(cfg.HTTP, query.Deps{
		Index: query.Shards{Set: x.set}, Registry: &x.registry, Streams: x.streams, At: x.at, Access: access, Log: log, Metrics: m,
		Progress: x.progress,
		Checks:   []query.Check{{Name: "ingest", Reason: x.behind}, {Name: "memory", Reason: x.full, Note: true}},
	})
	if err != nil {
		return err
	}
	ln, err := x.server.Listen(ctx)
	if err != nil {
		return err
	}
	port, err := admin.Start(ctx, cfg.Admin, admin.Deps{
		Access: access, Metrics: m, Settings: cfg.settings, Level: cfg.Log.Var, Ready: x.server.Ready, Log: log,
	})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	served := make(chan error, 1)
	go func() { served <- x.server.Serve(ln) }() // ends with Shutdown

	err = x.serve(ctx, ln, served)
	return errors.Join(err, x.stop(), port.Close())
}

// serve connects what fills the index and waits for the end.
func (x *indexer) serve(ctx context.Context, ln net.Listener, served <-chan error) error {
	if err := x.service.Listening(ln.Addr().String()); err != nil {
		return err
	}
	x.log.Info("listening", "address", ln.Addr().String(), "version", obs.ReadVersion().String())
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	defer told.Wait()
	defer stop()
	told.Go(func() {
		startup.Tell(telling, time.Second, startup.LineTo(os.Stderr, x.cfg.Log.Format, x.log), x.progress)
	})
	if err := x.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the broker was there
		}
		return err
	}
	x.service.Started(x.set.Alive) // behind takes the locks of ingest
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// connect opens the broker and starts reading its streams.
func (x *indexer) connect(ctx context.Context) (err error) {
	if x.broker, err = broker.Open(ctx, x.cfg.Broker); err != nil {
		return err
	}
	if err := x.openRegistry(ctx); err != nil {
		return err
	}
	cfg := x.cfg.Ingest
	cfg.Left = x.workers.left
	cfg.Conn, cfg.MaxBytes = x.broker.Conn(), int(x.cfg.IngestBytes)
	cfg.MaxLag = uint64(x.cfg.MaxLag)
	cfg.Index = ingest.Into(x.set)
	if cfg.Start, err = x.restore(ctx, &cfg); err != nil {
		return err
	}
	if k := x.keeper.Load(); k != nil {
		cfg.Reload = k.Reload
	}
	in, err := ingest.Open(ctx, cfg)
	if err != nil {
		return err
	}
	x.ingest.Store(in)
	if k := x.keeper.Load(); k != nil {
		k.Run(in)
	}
	x.workers.follow()
	x.log.Info("reading events", "nats", x.broker.Address(), "namespace", cfg.Namespace, "replica", cfg.Replica)
	return nil
}

// behind says why the index is not to be asked yet; "" if it is.
func (x *indexer) behind() string {
	in := x.ingest.Load()
	if in == nil {
		if r := x.starting.Report(); r.Phase != startup.Connecting {
			return r.String()
		}
		return "not connected to NATS yet"
	}
	if err := in.Ready(); err != nil {
		return err.Error()
	}
	return x.workers.behindEngines()
}

// full says that the memory budget is reached; "" if it is not.
func (x *indexer) full() string {
	if !x.set.Full() {
		return ""
	}
	used, budget := x.set.MemoryBudget()
	return fmt.Sprintf("the memory budget is reached, new blocks are refused or soon will be: %d of %d bytes; raise --memory-budget", used, budget)
}

// stop ends everything that was started, from the requests inwards: what they
// read goes on being true until the last of them is answered. A second signal
// ends the process anywhere in it.
func (x *indexer) stop() error {
	return x.service.Stop(x.server.Drain,
		proc.Step{Name: "answering the requests under way", Run: x.server.Shutdown},
		proc.Step{Name: "reading no more events", Run: x.stopReading},
		// Nothing changes the index any more, and the broker is still there.
		proc.Step{Name: "taking the last snapshots", Run: x.lastSnapshot},
		proc.Step{Name: "closing the index", Run: func(context.Context) error { x.set.Close(); return nil }},
		proc.Step{Name: "leaving the broker", Run: x.leaveBroker},
	)
}

func (x *indexer) stopReading(context.Context) error {
	if x.workers != nil {
		x.workers.close()
	}
	if in := x.ingest.Load(); in != nil {
		in.Close()
	}
	return nil
}

func (x *indexer) leaveBroker(context.Context) error {
	if x.broker == nil {
		return nil
	}
	return x.broker.Close()
}
