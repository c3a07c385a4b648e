package kvatlas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/console"
	"github.com/kvatlas/kvatlas/internal/router/decisions"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/loadsync"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

// Config holds what an Atlas is made with. Its zero value is an index of its own,
// without NATS, with the default settings.
type Config struct {
	// Replica holds the settings of the index and of what fills it, those of
	// kvindexer and kvrouter: which NATS, snapshots, the memory budget. Whether
	// events are read (Fed) is not among them: it follows from the fields below.
	Replica replica.Config
	// Routing holds the settings of all routers; its zero value is route.DefaultSettings, which
	// is where others begin, as each zero in them means something. Where nothing weighs what is
	// cached no index is kept.
	Routing route.Settings
	// Approximate reads no events: a prompt counts as cached where it was sent of
	// late.
	Approximate bool
	// Decisions says which choices are kept with all that the policy saw; what is 0 is that
	// of account.DefaultConfig, and a Keep below 0 keeps none.
	Decisions account.Config
	// Alone keeps the load of these routers from others of the namespace.
	Alone bool
}

// Atlas is an open index. Its methods are safe for concurrent use.
type Atlas struct {
	replica   *replica.Replica
	fleet     *fleet.Fleet
	decisions *account.Log
	prompts   *account.Prompts
	byNATS    bool // workers publish and register there

	stop  context.CancelFunc
	work  sync.WaitGroup // follows the registry
	close sync.Once
	err   error // of Close

	mu       sync.Mutex // of the next two
	consoles []*console.Console
	closed   bool // they are ended, and no more begin
}

// Open opens an index. With NATS it finds the workers and begins to read their
// events; WaitReady tells when it has caught up. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Atlas, error) {
	if reflect.ValueOf(cfg.Routing).IsZero() {
		cfg.Routing = route.DefaultSettings()
	}
	if cfg.Routing.Mode == "" {
		return nil, errors.New("opening an index: Routing has settings and no Mode: begin with route.DefaultSettings(), and change what is to be another")
	}
	if err := cfg.Routing.Check(); err != nil {
		return nil, fmt.Errorf("opening an index: %w", err)
	}
	def := account.DefaultConfig()
	cfg.Decisions.Keep, cfg.Decisions.Memory = cmp.Or(cfg.Decisions.Keep, def.Keep), cmp.Or(cfg.Decisions.Memory, def.Memory)
	cfg.Decisions.Rows = cmp.Or(cfg.Decisions.Rows, def.Rows)
	a := &Atlas{byNATS: cfg.Replica.HasNATS(), decisions: account.New(cfg.Decisions), prompts: account.NewPrompts(promptBytes)}
	index := fleet.KindOf(&cfg.Routing, !cfg.Approximate)
	cfg.Replica.Fed = !a.byNATS || index != fleet.Events
	var err error
	if a.replica, err = replica.New(cfg.Replica); err != nil {
		return nil, fmt.Errorf("opening an index: %w", err)
	}
	fc := fleet.Config{
		ID: rand.Uint64(), Route: cfg.Routing, Index: index, Set: a.replica.Set(), Shares: a.replica.Shares(), Addressless: true, Stale: a.replica.Stale, Contradicted: a.replica.Contradicted, Decisions: a.decisions, Prompts: a.prompts, Log: cfg.Replica.Log,
	}
	a.fleet = fleet.New(fc)
	work, stop := context.WithCancel(context.Background())
	a.stop = stop
	if err := a.replica.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("opening an index: %w", err), a.Close(ctx))
	}
	if a.byNATS && !cfg.Alone {
		link := func(sp event.Space, r *route.Router) (io.Closer, error) {
			return loadsync.Open(loadsync.Config{
				Conn: a.replica.Conn(), Namespace: a.replica.Namespace(), Space: sp, ID: fc.ID, Router: r, Log: cfg.Replica.Log,
			})
		}
		if err := a.fleet.Link(link); err != nil {
			return nil, errors.Join(fmt.Errorf("opening an index: %w", err), a.Close(ctx))
		}
	}
	a.work.Go(a.fleet.Follow(work, a.replica.Registry())) // its workers may be chosen when Open returns
	return a, nil
}

// Replica returns what fills the index and tells of it: its state, its metrics, and
// the routes that it serves.
func (a *Atlas) Replica() *replica.Replica { return a.replica }

// Router returns the router of an index space, made if absent. With NATS its
// workers are those that are registered; without, tell it with SetWorker.
func (a *Atlas) Router(sp event.Space) (*route.Router, error) {
	m, err := a.fleet.Open(sp)
	if err != nil {
		return nil, fmt.Errorf("opening model %q: %w", sp.Model, err)
	}
	return m.Router, nil
}

// Decisions returns the choices that are kept: why requests went where they went, and what
// was to be found there. Sums are in the Totals of each Router.
func (a *Atlas) Decisions() *account.Log { return a.decisions }

// promptBytes is how much is kept of the last sampled prompts, as hashes, for the console to
// count how often prefixes are asked for.
const promptBytes = 1 << 20

// Console returns a page that shows the fleet, with what it asks for, for readers pages at
// once; 0 is 64. It is for a path that ends with a slash: http.StripPrefix takes away what is
// before that. It lets everybody ask, and ends with Close.
func (a *Atlas) Console(readers int) (http.Handler, error) {
	index, err := a.replica.Serve(query.Config{}, nil)
	if err != nil {
		return nil, fmt.Errorf("opening the console: %w", err)
	}
	c, err := console.New(console.Config{
		Settings: console.Settings{On: true, Readers: readers}, Program: "kvatlas", Replica: a.replica, Models: a.fleet.Models, Decisions: a.decisions,
		Prompts: a.prompts, Health: index.Health(), Explain: index.Explain,
	})
	if err != nil {
		return nil, fmt.Errorf("opening the console: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed { // what its pages ask goes on working, as lookups do; what they follow ends at once
		c.Close()
	}
	a.consoles = append(a.consoles, c)
	return c.Handler(nil, "/"), nil
}

// DecisionsHandler answers for them as kvrouter does, at /v1/decisions and below it, to everybody:
// it is for a port that only those can reach who run the program.
func (a *Atlas) DecisionsHandler() http.Handler { return decisions.Handler(a.decisions) }

// Spaces returns the index spaces that there are, sorted.
func (a *Atlas) Spaces() []event.Space {
	var list []event.Space
	for _, m := range a.fleet.Models() {
		list = append(list, m.Space)
	}
	return list
}

// ErrFed is returned by Apply of an Atlas that is fed in another way.
var ErrFed = errors.New("the index is fed by NATS, by shares, or by the routers' choices")

// Apply puts a worker's events into the index and returns when lookups see them.
// It is for an Atlas without NATS that is not approximate. Batches of one worker
// must not overtake each other.
//
// An error that wraps event.ErrEncode means that the batch has no meaning, and nothing of it is
// applied. Blocks without a place, or without room, are no error: they are counted in
// Replica().Set().Lookup(b.Space).Stats(). Of a worker that is gone Router.RemoveWorker is to be
// told, and RemoveWorker of that Space, which takes out what it held.
func (a *Atlas) Apply(ctx context.Context, b *event.Batch) error {
	if err := b.Check(); err != nil {
		return fmt.Errorf("applying events: %w", err)
	}
	m, err := a.fleet.Open(b.Space)
	if err != nil {
		return fmt.Errorf("applying events: %w", err)
	}
	if a.byNATS || m.Cache != nil || a.replica.Shares() != nil {
		return ErrFed
	}
	sp := a.replica.Set().Lookup(b.Space)
	if sp == nil {
		return nil // nothing weighs what is cached
	}
	if _, err := sp.ApplyWait(ctx, b); err != nil {
		return fmt.Errorf("applying events: %w", err)
	}
	return nil
}

// Ready returns why choices do not know yet what workers hold; nil if they do.
func (a *Atlas) Ready() error {
	if why := a.replica.Away(); why != "" {
		return errors.New(why)
	}
	return a.replica.Ready()
}

// readyPoll is how often WaitReady looks.
const readyPoll = 10 * time.Millisecond

// WaitReady returns when the index has caught up with what workers published, or
// when ctx ends, with why it has not.
func (a *Atlas) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := a.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Close ends everything that Open began, with a last snapshot of what has changed;
// ctx bounds that. Routers may be asked no more.
func (a *Atlas) Close(ctx context.Context) error {
	a.close.Do(func() {
		a.mu.Lock()
		a.closed = true
		consoles := a.consoles
		a.mu.Unlock()
		for _, c := range consoles {
			c.Close()
		}
		a.stop()
		a.work.Wait()
		a.err = errors.Join(a.fleet.Close(), a.replica.Close(ctx))
	})
	return a.err
}
