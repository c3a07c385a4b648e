package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/console"
	"github.com/kvatlas/kvatlas/internal/discover/objective"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/program/traces"
	"github.com/kvatlas/kvatlas/internal/router/accesslog"
	"github.com/kvatlas/kvatlas/internal/router/downstream"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/loadsync"
	"github.com/kvatlas/kvatlas/internal/router/picker"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

// router is the running program: a replica of the index, the fleet's routers that
// read it, and the proxy that asks them.
type router struct {
	cfg        *config
	log        *slog.Logger
	metrics    *obs.Metrics
	replica    *replica.Replica
	fleet      *fleet.Fleet
	proxy      *proxy.Proxy
	http       *downstream.Server
	picker     *picker.Server  // nil: no gateway asks
	objectives *objective.Book // nil: none are read
	index      *query.Server   // of the admin port
	service    *proc.Service
	tenants    *loadsync.Tenants // nil: their limits are this router's alone
	console    *console.Console
	id         uint64                    // among routers
	place      uint64                    // where its other runs were, too
	access     *accesslog.Log            // nil: none
	spans      *traces.Sender            // nil: none
	tls        *reload.Value[tls.Config] // of https engines; nil: the usual
	ready      readiness
	turns      atomic.Pointer[loadsync.Turns] // nil until there are other routers to tell

	stopWork context.CancelFunc
	work     sync.WaitGroup // follows the registry, probes
}

// run runs the program until ctx ends or something fails, and stops it in order.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	x := &router{cfg: cfg, log: log, metrics: obs.NewMetrics(), stopWork: func() {}, ready: readiness{begun: time.Now()}}
	cfg.Replica.Metrics, cfg.Replica.Log = x.metrics, log
	if x.spans, err = traces.Open(ctx, "kvrouter", os.Getenv, log, x.metrics); err != nil {
		return err
	}
	cfg.Replica.Tracer = x.spans.Tracer()
	if x.replica, err = replica.New(cfg.Replica); err != nil {
		return err
	}
	x.service = proc.NewService(cfg.Service, log, x.metrics, x.notReady)
	x.metrics.Gauge("kvatlas_router_without_nats", "1 while the router is ready with the workers of its settings alone, as NATS has not answered since its start.", func() float64 {
		if x.withheld() != "" {
			return 1
		}
		return 0
	})
	access, err := cfg.Access.Open(log)
	if err != nil {
		return err
	}
	checks := x.checks()
	if cfg.Pool.Pool != "" {
		if x.objectives, err = objective.Open(cfg.Pool, x.metrics, log); err != nil {
			return err
		}
		checks = append(checks, edge.Check{Name: "objectives", Reason: x.objectives.Why, Note: true})
	}
	if x.index, err = x.replica.ServeBeside(query.Config{}, access, x.withheld, checks...); err != nil {
		return err
	}
	if err := x.build(access); err != nil {
		return err
	}
	ln, err := access.Listen(ctx, cfg.Proxy.Listen, "http-listen")
	if err != nil {
		return err
	}
	x.place = place(ln.Addr().String())
	deps := admin.Deps{
		Access: access, Metrics: x.metrics, Settings: cfg.settings, Level: cfg.Log.Var, Health: x.index.Health(), Index: x.index.Handler(), Log: log,
	}
	if cfg.Console.On {
		deps.Console = x.console
	}
	port, err := admin.Start(ctx, cfg.Admin, deps)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	served := make(chan error, 2)
	if err := x.servePicker(ctx, access, served); err != nil {
		return errors.Join(err, ln.Close(), port.Close())
	}
	go func() { served <- x.http.Serve(x.front(ln, access)) }() // ends with Shutdown
	err = x.service.Run(ctx, ln.Addr().String(), served, x.start, x.replica.Progress, x.alive)
	return errors.Join(err, x.stop(), port.Close())
}

// consolePrompts is how many bytes of sampled prompts' hashes are kept, by which the console
// counts how often prefixes are asked for.
const consolePrompts = 2 << 20

// build makes everything that needs no connection.
func (x *router) build(access *secure.Access) error {
	loras, aliases, err := x.cfg.names()
	if err != nil {
		return err
	}
	shown, err := x.cfg.Shown.Open(x.log)
	if err != nil {
		return err
	}
	x.tls = shown.TLS()
	id := rand.Uint64() // no other router has it, nor this one's next run
	x.cfg.Decisions.Run = strconv.FormatUint(id>>44, 36)
	decisions := account.New(x.cfg.Decisions)
	var prompts *account.Prompts
	if x.cfg.Console.On {
		prompts = account.NewPrompts(consolePrompts)
	}
	fc := fleet.Config{
		ID: id, Route: x.cfg.Route, Index: x.cfg.index(), Set: x.replica.Set(), Shares: x.replica.Shares(), Approx: x.cfg.Approx, Loras: loras, Aliases: aliases,
		Transfer: registry.KVTransfer(x.cfg.Transfer), PairLosses: x.cfg.PairLosses, PairRest: x.cfg.PairRest,
		MaxModels: x.cfg.Replica.MaxSpaces, Unhealthy: x.cfg.Unhealthy, Credentials: shown, Stale: x.replica.Stale, Contradicted: x.replica.Contradicted, Decisions: decisions, Prompts: prompts, Log: x.log,
	}
	x.id = id
	x.fleet = fleet.New(fc)
	pc := x.cfg.Proxy
	pc.Fleet, pc.Metrics, pc.Log, pc.Health, pc.Unknown, pc.Access = x.fleet, x.metrics, x.log, x.index.Health(), x.unknown, access
	if x.cfg.index() == fleet.Events {
		pc.Unread = x.behind
	}
	if x.cfg.Replica.HasNATS() {
		pc.Tokenizers.Fetch = x.fetch
	}
	pc.TLS, pc.Decisions, pc.Tracer = x.tls, decisions, x.spans.Tracer()
	x.console, err = console.New(console.Config{
		Settings: x.cfg.Console, Program: x.cfg.settings.Program(), Replica: x.replica, Models: x.fleet.Models, Decisions: decisions,
		Health: x.index.Health(), Declared: x.cfg.settings, Prompts: prompts, Explain: x.index.Explain, Tokens: x.tokens, Metrics: x.metrics, Log: x.log,
	})
	if err != nil {
		return err
	}
	if x.cfg.Console.On {
		pc.Console = x.console.Handler(access, "/console/")
	}
	if x.access, err = x.cfg.openAccessLog(x.log); err != nil {
		return err
	}
	pc.AccessLog = x.access
	if x.syncs() {
		pc.TellTurn = x.tellTurn
	}
	if x.proxy, err = proxy.New(pc); err != nil {
		return err
	}
	x.http = downstream.New(downstream.Config{
		Handler: x.proxy, ReadTimeout: pc.ReadTimeout, IdleTimeout: pc.IdleTimeout, MaxHeader: int(pc.MaxHeader),
		WriteTimeout: pc.WriteTimeout, // of all but engines' answers, which have it for each chunk
		HTTP2:        x.http2(), Refused: x.proxy.Refused, Log: x.log,
	})
	return nil
}

// start starts the replica, and what follows who is registered. Engines that the
// settings name are served from the beginning: NATS may be long in coming.
func (x *router) start(ctx context.Context) error {
	static, err := x.cfg.Replica.StaticWorkers()
	if err != nil {
		return err
	}
	for _, w := range static {
		if err := x.fleet.SetWorker(w, false); err != nil {
			return err // the settings are wrong
		}
	}
	work, cancel := context.WithCancel(context.Background())
	x.stopWork = cancel
	client := fleet.NewClient(x.tls)
	x.work.Go(func() { x.watch(work, client) })
	x.work.Go(func() { x.proxy.FollowTokens(work) })
	if x.objectives != nil {
		x.work.Go(func() { x.objectives.Follow(work) })
	}
	if err := x.replica.Start(ctx); err != nil {
		return err
	}
	if x.syncs() {
		if err := x.fleet.Link(x.link); err != nil {
			return err
		}
		if err := x.joinTenants(); err != nil {
			return err
		}
		t, err := loadsync.OpenTurns(x.replica.Conn(), x.cfg.Replica.Namespace, x.proxy.HearTurn)
		if err != nil {
			return err
		}
		x.turns.Store(t)
	}
	reg := x.replica.Registry()
	for _, e := range reg.Snapshot(false) {
		if err := x.fleet.SetWorker(e.Worker, e.Drained); err != nil && e.Static {
			return err // the settings are wrong
		}
	}
	if x.cfg.ModelsEvery > 0 { // a request for an adapter may be the first
		asking, done := context.WithTimeout(ctx, x.cfg.HealthTimeout)
		x.fleet.AskNew(asking, client, x.cfg.HealthTimeout)
		done()
	}
	x.ready.workersKnown.Store(true)
	x.work.Go(x.fleet.Follow(work, reg))
	x.log.Info("routing", "mode", x.cfg.Route.Mode)
	return nil
}

// tokens asks an engine for a text's tokens.
func (x *router) tokens(ctx context.Context, sp event.Space, text string) ([]uint32, error) {
	return x.proxy.TokensOf(ctx, sp, text)
}

// fetch fetches the files of a tokenizer, which a worker's registration names.
func (x *router) fetch(ctx context.Context, list []modelfiles.File) (modelfiles.Set, error) {
	conn := x.replica.Conn()
	if conn == nil {
		return nil, errors.New("there is no connection to NATS yet")
	}
	b, err := modelfiles.OpenBucket(ctx, conn, x.cfg.Replica.Namespace, 0, false)
	if err != nil {
		return nil, err
	}
	return b.Get(ctx, list)
}

// syncs reports whether there may be other routers of the same workers.
func (x *router) syncs() bool { return x.cfg.ReplicaSync && x.cfg.Replica.HasNATS() }

func (x *router) tellTurn(msg []byte) error {
	if t := x.turns.Load(); t != nil {
		return t.Tell(msg)
	}
	return nil
}

// link connects a space's router with those of other processes.
func (x *router) link(sp event.Space, r *route.Router) (io.Closer, error) {
	return loadsync.Open(loadsync.Config{
		Conn: x.replica.Conn(), Namespace: x.cfg.Replica.Namespace, Space: sp, ID: x.id, Router: r, Log: x.log,
		Relieved: func() { x.proxy.Relieved(r) },
	})
}

// place is what the runs of a router have in common, and no other that lives has: where it
// listens, and on which host. 0 is not known.
func place(address string) uint64 {
	host, err := os.Hostname()
	if err != nil {
		return 0
	}
	return xxh3.HashString(host + " " + address)
}

// joinTenants has tenants' limits hold for the routers of the namespace together.
func (x *router) joinTenants() (err error) {
	q := x.cfg.Quota
	q.ID, q.Place, q.Beat = x.id, x.place, min(time.Second, q.Silent/3)
	x.tenants, err = loadsync.OpenTenants(loadsync.TenantsConfig{
		Conn: x.replica.Conn(), Namespace: x.cfg.Replica.Namespace, Table: x.proxy.Quotas(), Quota: q, Log: x.log,
	})
	return err
}

// watch asks engines how they are and what they serve.
func (x *router) watch(ctx context.Context, client *http.Client) {
	defer client.CloseIdleConnections()
	within := x.cfg.HealthTimeout
	var all sync.WaitGroup
	for _, d := range []struct {
		every time.Duration
		do    func()
	}{
		{x.cfg.HealthEvery, func() { x.fleet.Probe(ctx, client, x.cfg.HealthPath, within) }},
		{x.cfg.LoadEvery, func() { x.fleet.AskLoad(ctx, client, x.cfg.LoadPath, within) }},
	} {
		if d.every > 0 {
			all.Go(func() { repeat(ctx, d.every, d.do) })
		}
	}
	if x.cfg.ModelsEvery > 0 {
		all.Go(func() { x.askModels(ctx, client) })
	}
	all.Wait()
}

// askModels asks engines what they serve: all of them from time to time, and who comes at once.
func (x *router) askModels(ctx context.Context, client *http.Client) {
	ticker := time.NewTicker(x.cfg.ModelsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			x.fleet.AskModels(ctx, client, x.cfg.HealthTimeout)
		case <-x.fleet.Came():
			x.fleet.AskNew(ctx, client, x.cfg.HealthTimeout)
		}
	}
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

// alive takes the locks that every choice takes, and waits for those who apply
// events.
func (x *router) alive(ctx context.Context) error {
	for _, m := range x.fleet.Models() {
		m.Router.Stats()
	}
	return x.replica.Set().Alive(ctx)
}

// stop ends everything that was started: the answers first, then what they go
// by, and the broker last.
func (x *router) stop() error {
	return x.service.Stop(x.index.Drain,
		proc.Step{Name: "finishing the answers under way", Run: x.finishAnswers},
		proc.Step{Name: "sending the last spans", Run: x.spans.Close},
		proc.Step{Name: "leaving the other routers", Run: func(context.Context) error {
			x.proxy.Close()
			x.stopWork()
			x.work.Wait()
			var told error
			if t := x.turns.Load(); t != nil {
				told = t.Close()
			}
			if x.tenants != nil {
				told = errors.Join(told, x.tenants.Close())
			}
			return errors.Join(told, x.fleet.Close())
		}},
		proc.Step{Name: "writing the access log", Run: func(context.Context) error { return x.access.Close() }},
		proc.Step{Name: "closing the index, with its last snapshots", Run: x.replica.Close},
	)
}

func (x *router) finishAnswers(ctx context.Context) error {
	x.console.Close() // its streams have no end of their own
	picked := make(chan error, 1)
	go func() { picked <- x.endPicker(ctx) }() // ends with ctx
	if err := x.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("%d answers were cut off: %w", x.proxy.InFlight(), errors.Join(err, x.http.Close())), <-picked)
	}
	return <-picked
}
