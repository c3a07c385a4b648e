package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/kvatlas/kvatlas/internal/console"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/traces"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/replica"
)

// indexer is the running program: a replica, and the server that answers from it.
type indexer struct {
	cfg     *config
	log     *slog.Logger
	replica *replica.Replica
	server  *query.Server
	service *proc.Service
	spans   *traces.Sender // nil: none
	console *console.Console
}

// run runs the program until ctx ends or something fails, and stops it in
// order.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	m := obs.NewMetrics()
	cfg.Replica.Metrics, cfg.Replica.Log = m, log
	x := &indexer{cfg: cfg, log: log}
	if x.spans, err = traces.Open(ctx, "kvindexer", os.Getenv, log, m); err != nil {
		return err
	}
	cfg.Replica.Tracer = x.spans.Tracer()
	if x.replica, err = replica.New(cfg.Replica); err != nil {
		return err
	}
	x.service = proc.NewService(cfg.Service, log, m, x.replica.Behind)
	access, err := cfg.Access.Open(log)
	if err != nil {
		return err
	}
	if x.server, err = x.replica.Serve(cfg.HTTP, access, edge.Check{Name: "nats", Reason: x.replica.Silent}); err != nil {
		return err
	}
	x.console, err = console.New(console.Config{
		Settings: cfg.Console, Program: cfg.settings.Program(), Replica: x.replica, Health: x.server.Health(), Lookups: x.server.Lookups, Explain: x.server.Explain, Declared: cfg.settings, Metrics: m, Log: log,
	})
	if err != nil {
		return err
	}
	deps := admin.Deps{
		Access: access, Metrics: m, Settings: cfg.settings, Level: cfg.Log.Var, Health: x.server.Health(), Index: x.server.Handler(), Log: log,
	}
	if cfg.Console.On {
		deps.Console = x.console
		x.server.SetConsole(x.console)
	}
	ln, err := x.server.Listen(ctx)
	if err != nil {
		return err
	}
	port, err := admin.Start(ctx, cfg.Admin, deps)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	served := make(chan error, 1)
	go func() { served <- x.server.Serve(ln) }() // ends with Shutdown

	// The signs of life take the locks of ingest, too: readiness does.
	err = x.service.Run(ctx, ln.Addr().String(), served, x.replica.Start, x.replica.Progress, x.replica.Set().Alive)
	return errors.Join(err, x.stop(), port.Close())
}

// stop ends everything that was started, from the requests inwards: what they
// read goes on being true until the last of them is answered. A second signal
// ends the process anywhere in it.
func (x *indexer) stop() error {
	return x.service.Stop(x.server.Drain,
		proc.Step{Name: "answering the requests under way", Run: func(ctx context.Context) error {
			x.console.Close() // its streams have no end of their own
			return x.server.Shutdown(ctx)
		}},
		proc.Step{Name: "sending the last spans", Run: x.spans.Close},
		proc.Step{Name: "closing the index, with its last snapshots", Run: x.replica.Close},
	)
}
