package console

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

// Of the two groups of a fleet of tests, all names of the other one begin so.
const (
	hidden      = "hidden"
	otherWorker = 7770001
	ownWorker   = 5
)

var (
	ownSpace   = event.Space{Model: "m", BlockSize: 4, Group: "acme"}
	otherSpace = event.Space{Model: "hidden-model", BlockSize: 4, Group: "hidden-group"}
)

// fixture is a console of a fleet with two groups, whose index the test fills.
type fixture struct {
	*Console
	t       *testing.T
	replica *replica.Replica
	fleet   *fleet.Fleet
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	f := &fixture{t: t}
	workers := []registry.Worker{
		{ID: ownWorker, Model: "m", BlockSize: 4, Group: "acme", Transport: registry.NoEvents, TotalBlocks: 10, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:1"}},
		{ID: otherWorker, Model: otherSpace.Model, BlockSize: 4, Group: otherSpace.Group, Transport: registry.NoEvents, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:1"}},
	}
	f.replica, err = replica.New(replica.Config{Fed: true, Static: workers, Log: log, Replica: "test"})
	if err != nil {
		t.Fatal(err)
	}
	index, err := f.replica.Serve(query.Config{}, nil, edge.Check{Name: "named", Reason: func() string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.replica.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	decisions, prompts := account.New(account.DefaultConfig()), account.NewPrompts(1<<20)
	f.fleet = fleet.New(fleet.Config{Route: route.DefaultSettings(), Index: fleet.Events, Set: f.replica.Set(), Decisions: decisions, Prompts: prompts, Log: log})
	for _, w := range workers {
		if err := f.fleet.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
	}
	declared := conf.New("test", "A test.")
	var secret string
	declared.String(&secret, "hidden-setting", "user:password@host", "A secret.", conf.Secret())
	cfg := Config{
		Settings: Settings{On: true, Readers: 8}, Program: "test", Replica: f.replica, Models: f.fleet.Models, Decisions: decisions, Prompts: prompts,
		Health: index.Health(), Explain: index.Explain, Lookups: func() uint64 { return 0 }, Declared: declared, Log: log,
	}
	if change != nil {
		change(&cfg)
	}
	if f.Console, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		if err := f.fleet.Close(); err != nil {
			t.Error(err)
		}
		if err := f.replica.Close(context.Background()); err != nil { //nolint:usetesting // t's context has ended
			t.Error(err)
		}
	})
	return f
}

// store has a worker hold a chain: local hashes, of which the engine's are by the worker.
func (f *fixture) store(sp event.Space, worker uint64, local ...uint64) {
	f.t.Helper()
	f.apply(sp, worker, event.Event{Kind: event.Stored, Local: local, Engine: engineHashes(worker, local)})
}

func engineHashes(worker uint64, local []uint64) (engine []uint64) {
	h := worker
	for _, l := range local {
		h = h*31 + l
		engine = append(engine, h)
	}
	return engine
}

func (f *fixture) apply(sp event.Space, worker uint64, e event.Event) {
	f.t.Helper()
	x, err := f.replica.Set().Open(sp)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := x.ApplyWait(f.t.Context(), &event.Batch{Space: sp, Worker: worker, Events: []event.Event{e}}); err != nil {
		f.t.Fatal(err)
	}
}

// chat routes a prompt and ends it, with so many tokens found.
func (f *fixture) chat(sp event.Space, id string, local []uint64, found int) {
	f.t.Helper()
	m, err := f.fleet.Open(sp)
	if err != nil {
		f.t.Fatal(err)
	}
	p := route.Prompt{Local: local, Length: 4 * len(local)}
	if _, err := m.Router.BestWorker(f.t.Context(), p, route.Options{RequestID: id, Name: id}); err != nil {
		f.t.Fatal(err)
	}
	m.Router.MarkPrefillComplete(id)
	m.Router.Reported(id, route.Whole, p, route.Usage{Prompt: 4 * len(local), Cached: found})
	m.Router.Free(id)
}

// ask asks as a tenant, or as who may see all.
func (f *fixture) ask(tenant *string, role secure.Role, method, path, body string) *edge.Reply {
	path, query, _ := strings.Cut(path, "?")
	return f.Answer(&edge.Ask{Method: method, Path: path, Query: query, Body: []byte(body), Tenant: tenant, Role: role})
}

func (f *fixture) get(path string) *edge.Reply { return f.ask(nil, secure.Operator, "GET", path, "") }

// frames returns the next so many parts of a stream.
func frames(t *testing.T, s edge.Stream, n int) (parts []string) {
	t.Helper()
	gone := make(chan struct{})
	timer := time.AfterFunc(time.Minute, func() { close(gone) })
	defer timer.Stop()
	for range n {
		part, err := s.Next(gone)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, string(part))
	}
	return parts
}
