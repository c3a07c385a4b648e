package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/broker"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
)

// indexer is the running program: events flow from the broker through ingest
// into the set; the server reads the set.
type indexer struct {
	cfg    *config
	log    *slog.Logger
	set    *shard.Set
	server *query.Server
	broker *broker.Broker
	ingest atomic.Pointer[ingest.Ingest] // nil until the broker is connected

	registry registryRoutes
	workers  *workers // nil until the registry is read
}

// run runs the program until ctx ends or something fails, and stops it in
// order.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	m := obs.NewMetrics()
	x := &indexer{cfg: cfg, log: log, set: shard.New(cfg.Index)}
	registerMetrics(m, x.set)
	cfg.Broker.Log, cfg.Ingest.Log, cfg.Ingest.Metrics = log, log, m.Set
	x.server = query.New(cfg.HTTP, query.Deps{
		Index: query.Shards{Set: x.set}, Registry: &x.registry, Log: log, Metrics: m,
		Checks: []query.Check{{Name: "ingest", Reason: x.behind}, {Name: "memory", Reason: x.full, Note: true}},
	})
	ln, err := x.server.Listen(ctx)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- x.server.Serve(ln) }() // ends with Shutdown

	err = x.serve(ctx, ln, served)
	return errors.Join(err, x.stop())
}

// serve connects what fills the index and waits for the end.
func (x *indexer) serve(ctx context.Context, ln net.Listener, served <-chan error) error {
	if x.cfg.AddressFile != "" {
		if err := writeAddress(x.cfg.AddressFile, ln.Addr().String()); err != nil {
			return err
		}
	}
	x.log.Info("listening", "address", ln.Addr().String(), "version", obs.ReadVersion().String())
	if err := x.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the broker was there
		}
		return err
	}
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
	cfg.Index = func(id event.Space) (ingest.Applier, error) {
		sp, err := x.set.Open(id)
		if err != nil {
			return nil, err // not sp: a nil *Space is no nil Applier
		}
		return sp, nil
	}
	in, err := ingest.Open(ctx, cfg)
	if err != nil {
		return err
	}
	x.ingest.Store(in)
	x.workers.follow()
	x.log.Info("reading events", "nats", x.broker.Address(), "namespace", cfg.Namespace, "replica", cfg.Replica)
	return nil
}

// behind says why the index is not to be asked yet; "" if it is.
func (x *indexer) behind() string {
	in := x.ingest.Load()
	if in == nil {
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

// stop ends everything that was started: readiness first, then the writing,
// then the reading, and the broker last. A second signal ends the process
// anywhere in it.
func (x *indexer) stop() error {
	x.server.Drain()
	if d := x.cfg.DrainDelay; d > 0 {
		x.log.Info("draining", "delay", d)
		time.Sleep(d)
	}
	if x.workers != nil {
		x.workers.close()
	}
	if in := x.ingest.Load(); in != nil {
		in.Close()
	}
	x.set.Close()
	ctx, cancel := context.WithTimeout(context.Background(), x.cfg.StopTimeout)
	defer cancel()
	err := x.server.Shutdown(ctx)
	if x.broker != nil {
		err = errors.Join(err, x.broker.Close())
	}
	if x.cfg.AddressFile != "" {
		if rmErr := os.Remove(x.cfg.AddressFile); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("removing the address file: %w", rmErr))
		}
	}
	if err == nil {
		x.log.Info("stopped")
	}
	return err
}

// writeAddress writes the address so that a reader sees all of it or nothing.
func writeAddress(path, address string) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, []byte(address+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the address file: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("writing the address file: %w", err)
	}
	return nil
}

func pid() string { return strconv.Itoa(os.Getpid()) }
