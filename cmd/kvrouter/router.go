package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/loadsync"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// router is the running program: events flow from the broker through ingest into
// the set; the fleet's routers read the set; the proxy asks them.
type router struct {
	cfg      *config
	log      *slog.Logger
	metrics  *obs.Metrics
	set      *shard.Set
	fleet    *fleet.Fleet
	proxy    *proxy.Proxy
	http     *http.Server
	service  *proc.Service
	broker   *broker.Broker
	registry *registry.Registry
	ingest   atomic.Pointer[ingest.Ingest]
	keeper   atomic.Pointer[keeper.Keeper]
	starting startup.Progress
	ready    atomic.Bool // everything is connected

	stopWork context.CancelFunc
	work     sync.WaitGroup // follows the registry, probes, expires
}

// run runs the program until ctx ends or something fails, and stops it in order.
func run(ctx context.Context, cfg *config, log *slog.Logger) error {
	x := &router{cfg: cfg, log: log, metrics: obs.NewMetrics(), set: shard.New(cfg.Index), stopWork: func() {}}
	x.service = proc.NewService(cfg.Service, log, x.metrics, x.behind)
	if err := x.build(); err != nil {
		return err
	}
	access, err := cfg.Access.Open(log)
	if err != nil {
		return err
	}
	x.http.Handler = access.GuardBy(needs, x.proxy)
	ln, err := access.Listen(ctx, cfg.Proxy.Listen, "http-listen")
	if err != nil {
		return err
	}
	port, err := admin.Start(ctx, cfg.Admin, admin.Deps{
		Access: access, Metrics: x.metrics, Settings: cfg.settings, Level: cfg.Log.Var, Ready: x.readiness, Log: log,
	})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	served := make(chan error, 1)
	go func() { served <- x.http.Serve(access.TLS(x.limited(ln))) }() // ends with Shutdown
	err = x.serve(ctx, ln, served)
	return errors.Join(err, x.stop(), port.Close())
}

// build makes everything that needs no connection.
func (x *router) build() error {
	loras, err := x.cfg.loras()
	if err != nil {
		return err
	}
	id, err := newID()
	if err != nil {
		return err
	}
	fc := fleet.Config{
		ID: id, Route: x.cfg.Route, Index: x.cfg.index(), Set: x.set, Approx: x.cfg.Approx, Loras: loras,
		Transfer:  registry.KVTransfer(x.cfg.Transfer),
		MaxModels: x.cfg.MaxModels, Unhealthy: x.cfg.Unhealthy, Log: x.log,
	}
	if x.cfg.ReplicaSync && x.cfg.Broker.URL != broker.None {
		fc.Sync = func(sp event.Space, r *route.Router) (io.Closer, error) {
			return loadsync.Open(loadsync.Config{
				Conn: x.broker.Conn(), Namespace: x.cfg.Ingest.Namespace, Space: sp, ID: id, Router: r, Log: x.log,
			})
		}
	}
	x.fleet = fleet.New(fc)
	pc := x.cfg.Proxy
	pc.Fleet, pc.Metrics, pc.Log, pc.Ready = x.fleet, x.metrics, x.log, x.behind
	x.proxy = proxy.New(pc)
	for family, text := range ingest.Help() {
		x.metrics.Help(family, text)
	}
	for family, text := range keeper.Help() {
		x.metrics.Help(family, text)
	}
	for family, text := range registry.Help() {
		x.metrics.Help(family, text)
	}
	x.http = &http.Server{
		Handler:        x.proxy,
		ReadTimeout:    x.cfg.Proxy.ReadTimeout,
		WriteTimeout:   x.cfg.Proxy.WriteTimeout, // of all but engines' answers, which have it for each chunk
		IdleTimeout:    x.cfg.Proxy.IdleTimeout,
		MaxHeaderBytes: int(x.cfg.Proxy.MaxHeader),
		ErrorLog:       slog.NewLogLogger(x.log.Handler(), slog.LevelDebug),
	}
	return nil
}

// newID returns a number that no other router has, nor this one's next run.
func newID() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("naming the router: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// serve connects what the choices need and waits for the end.
func (x *router) serve(ctx context.Context, ln net.Listener, served <-chan error) error {
	if err := x.service.Listening(ln.Addr().String()); err != nil {
		return err
	}
	x.log.Info("listening", "address", ln.Addr().String(), "mode", x.cfg.Route.Mode, "version", obs.ReadVersion().String())
	work, cancel := context.WithCancel(context.Background())
	x.stopWork = cancel
	x.work.Go(func() {
		startup.Tell(work, time.Second, x.log, x.progress)
	})
	if err := x.connect(ctx, work); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the broker was there
		}
		return err
	}
	x.work.Go(func() { x.watch(work) })
	x.ready.Store(true)
	x.service.Started(x.alive)
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// connect finds the workers, and reads their events if they have weight.
func (x *router) connect(ctx, work context.Context) (err error) {
	var rc registry.Config
	if err := x.cfg.Registry.Apply(&rc); err != nil {
		return err
	}
	rc.Static = append(rc.Static, x.cfg.static()...)
	if x.cfg.Broker.URL == broker.None {
		for _, w := range rc.Static {
			if err := x.fleet.SetWorker(w, false); err != nil {
				return err
			}
		}
		x.log.Info("routing", "workers", len(rc.Static), "nats", broker.None)
		return nil
	}
	x.cfg.Broker.Name, x.cfg.Broker.Log = "kvrouter", x.log
	if x.broker, err = broker.Open(ctx, x.cfg.Broker); err != nil {
		return err
	}
	rc.Conn, rc.Namespace, rc.Replica = x.broker.Conn(), x.cfg.Ingest.Namespace, x.cfg.Ingest.Replica
	rc.Metrics, rc.Log = x.metrics.Set, x.log
	if x.registry, err = registry.Open(ctx, rc); err != nil {
		return err
	}
	if x.cfg.index() == fleet.Events {
		if err := x.readEvents(ctx); err != nil {
			return err
		}
	}
	x.work.Go(func() { x.fleet.Follow(work, x.registry) })
	x.work.Go(func() { x.fleet.Forget(work, x.registry, x.ingest.Load()) })
	x.log.Info("routing", "nats", x.broker.Address(), "namespace", x.cfg.Ingest.Namespace, "replica", x.cfg.Ingest.Replica)
	return nil
}

func (x *router) readEvents(ctx context.Context) error {
	cfg := x.cfg.Ingest
	cfg.Conn, cfg.MaxLag, cfg.Log, cfg.Metrics = x.broker.Conn(), uint64(x.cfg.MaxLag), x.log, x.metrics.Set
	cfg.Left = func(sp event.Space, worker uint64) (time.Time, bool) {
		return x.registry.Left(registry.Key{Space: sp, Worker: worker})
	}
	cfg.Index = ingest.Into(x.set)
	x.cfg.Gaps.Apply(&cfg)
	k, starts, err := x.cfg.Snapshots.Start(ctx, keeper.Config{
		Conn: cfg.Conn, Namespace: cfg.Namespace, Replica: cfg.Replica, Set: x.set,
		Program: obs.ReadVersion().String(), Progress: &x.starting, Metrics: cfg.Metrics, Log: x.log,
	}, func(k *keeper.Keeper) { x.keeper.Store(k) })
	if err != nil {
		return err
	}
	if cfg.Start = starts; k != nil {
		cfg.Reload = k.Reload
	}
	in, err := ingest.Open(ctx, cfg)
	if err != nil {
		return err
	}
	x.ingest.Store(in)
	if k != nil {
		k.Run(in)
	}
	return nil
}

// watch asks engines how they are and what they serve, and lets old bookings end.
func (x *router) watch(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}}
	defer client.CloseIdleConnections()
	within := x.cfg.HealthTimeout
	var all sync.WaitGroup
	for _, d := range []struct {
		every time.Duration
		do    func()
	}{
		{time.Second, x.fleet.Expire},
		{x.cfg.HealthEvery, func() { x.fleet.Probe(ctx, client, x.cfg.HealthPath, within) }},
		{x.cfg.LoadEvery, func() { x.fleet.AskLoad(ctx, client, x.cfg.LoadPath, within) }},
		{x.cfg.ModelsEvery, func() { x.fleet.AskModels(ctx, client, within) }},
	} {
		if d.every > 0 {
			all.Go(func() { repeat(ctx, d.every, d.do) })
		}
	}
	all.Wait()
}

func repeat(ctx context.Context, every time.Duration, do func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// behind says why requests should not come yet; "" if they may.
func (x *router) behind() string {
	if !x.ready.Load() {
		if r := x.starting.Report(); r.Phase != startup.Connecting {
			return r.String()
		}
		return "not connected yet"
	}
	if in := x.ingest.Load(); in != nil {
		if err := in.Ready(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// progress says how far the start is.
func (x *router) progress() startup.Report {
	r := x.starting.Report()
	if in := x.ingest.Load(); in != nil {
		r.Streams(in.Progress())
	} else if x.ready.Load() { // there is nothing to read
		r.Phase = startup.CaughtUp
	}
	return r
}

// alive takes the locks that every choice takes, and waits for those who apply
// events.
func (x *router) alive(ctx context.Context) error {
	for _, m := range x.fleet.Models() {
		m.Router.Stats()
	}
	return x.set.Alive(ctx)
}

// stop ends everything that was started: the answers first, then what they go
// by, and the broker last.
func (x *router) stop() error {
	return x.service.Stop(x.proxy.Drain,
		proc.Step{Name: "finishing the answers under way", Run: x.finishAnswers},
		proc.Step{Name: "leaving the other routers", Run: func(context.Context) error {
			x.proxy.Close()
			x.stopWork()
			x.work.Wait()
			return x.fleet.Close()
		}},
		proc.Step{Name: "reading no more events", Run: x.stopReading},
		// Nothing changes the index any more, and the broker is still there.
		proc.Step{Name: "taking the last snapshots", Run: func(ctx context.Context) error {
			if k := x.keeper.Load(); k != nil {
				k.Close(ctx)
			}
			return nil
		}},
		proc.Step{Name: "closing the index", Run: func(context.Context) error { x.set.Close(); return nil }},
		proc.Step{Name: "leaving the broker", Run: func(context.Context) error {
			if x.broker == nil {
				return nil
			}
			return x.broker.Close()
		}},
	)
}

func (x *router) finishAnswers(ctx context.Context) error {
	if err := x.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("%d answers were cut off: %w", x.proxy.InFlight(), errors.Join(err, x.http.Close()))
	}
	return nil
}

func (x *router) stopReading(context.Context) error {
	if in := x.ingest.Load(); in != nil {
		in.Close()
	}
	if x.registry != nil {
		x.registry.Close()
	}
	return nil
}
