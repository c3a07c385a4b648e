package kvatlas

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

var (
	space  = event.Space{Model: "m", BlockSize: 4}
	tokens = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t *testing.T, cfg Config) (*Atlas, *route.Router) {
	t.Helper()
	cfg.Replica.Log = quiet()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	a, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(context.Background()); err != nil { //nolint:usetesting // t's context has ended
			t.Error(err)
		}
	})
	r, err := a.Router(space)
	if err != nil {
		t.Fatal(err)
	}
	return a, r
}

// What workers register and publish through NATS is chosen by; two processes with
// an index each see each other's load; a worker that leaves is forgotten.
func TestOverNATS(t *testing.T) {
	dir := t.TempDir()
	cfg := replica.Config{NATS: replica.NATS{URL: replica.Embedded, DataDir: dir}, Namespace: "n"}
	one, r1 := open(t, Config{Replica: cfg})
	_, r2 := open(t, Config{Replica: cfg})
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() }) // the server may have gone first
	local, err := blockhash.LocalHashes(nil, tokens, 4, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var last *registry.Announcement
	for id := range uint64(2) {
		pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Namespace: "n", Space: space, Worker: id, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pub.Close(context.Background()) }) //nolint:usetesting // t's context has ended
		if id == 1 {
			if err := pub.Stored(ctx, 0, event.Device, publish.Parent{}, []uint64{7, 8}, local); err != nil {
				t.Fatal(err)
			}
		}
		last, err = registry.Register(ctx, registry.Worker{ID: id, Model: "m", BlockSize: 4, Transport: registry.JetStream},
			registry.AnnounceConfig{Conn: b.Conn(), Namespace: "n", Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*route.Router{r1, r2} {
		waittest.Until(t, func() error {
			best, err := r.BestWorker(ctx, route.Prompt{Tokens: tokens}, route.Options{})
			if err != nil || best.Worker != 1 || best.CachedTokens != 8 || len(r.Workers()) != 2 {
				return fmt.Errorf("%+v %v", best, err)
			}
			return nil
		})
	}
	if err := one.WaitReady(ctx); err != nil {
		t.Error(err)
	}
	if _, err := r1.BestWorker(ctx, route.Prompt{Tokens: tokens}, route.Options{RequestID: "r"}); err != nil {
		t.Fatal(err)
	}
	load := func(requests int) {
		t.Helper()
		waittest.Until(t, func() error {
			if got := r2.Stats().Live; got != requests {
				return fmt.Errorf("the other sees %d requests, want %d", got, requests)
			}
			return nil
		})
	}
	load(1)
	if !r1.MarkPrefillComplete("r") || !r1.Free("r") {
		t.Error("the booking is not known")
	}
	load(0)
	if err := one.Apply(ctx, &event.Batch{Space: space}); !errors.Is(err, ErrFed) {
		t.Errorf("events past NATS: %v", err)
	}
	var metrics strings.Builder
	if one.Replica().WriteMetrics(&metrics); !strings.Contains(metrics.String(), "kvatlas_") {
		t.Error("no metrics")
	}
	if _, r3 := open(t, Config{Replica: cfg}); len(r3.Workers()) != 2 {
		t.Errorf("%d workers may be chosen right after Open, want 2", len(r3.Workers()))
	}
	if err := last.Close(ctx); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		var blocks int
		if err := r1.DumpEvents(ctx, func(shard.RankID, shard.Dumped) bool { blocks++; return true }); err != nil {
			return err
		}
		if n := len(r1.Workers()); n != 1 || blocks != 0 {
			return fmt.Errorf("%d workers and %d dumped events after one left", n, blocks)
		}
		return nil
	})
}

// In approximate mode choices are what is known; with weight 0 nothing is.
func TestWithoutEvents(t *testing.T) {
	for name, c := range map[string]struct {
		cfg    Config
		cached int
		dump   error
	}{
		"approximate": {Config{Approximate: true}, 8, nil},
		"weight 0":    {Config{Routing: weightless()}, 0, route.ErrNoDump},
	} {
		t.Run(name, func(t *testing.T) {
			a, r := open(t, c.cfg)
			for id := range uint64(4) {
				if err := r.SetWorker(route.Worker{ID: id}); err != nil {
					t.Fatal(err)
				}
			}
			first, err := r.BestWorker(t.Context(), route.Prompt{Tokens: tokens}, route.Options{RequestID: "a"})
			if err != nil {
				t.Fatal(err)
			}
			r.Free("a")
			again, err := r.BestWorker(t.Context(), route.Prompt{Tokens: tokens}, route.Options{Worker: &first.Worker})
			if err != nil || again.CachedTokens != c.cached {
				t.Errorf("%d tokens cached, want %d: %v", again.CachedTokens, c.cached, err)
			}
			if err := r.DumpEvents(t.Context(), func(shard.RankID, shard.Dumped) bool { return true }); !errors.Is(err, c.dump) {
				t.Errorf("dump: %v", err)
			}
			err = a.Apply(t.Context(), &event.Batch{Space: space, Events: []event.Event{{Kind: event.Cleared}}})
			if fed := errors.Is(err, ErrFed); fed != c.cfg.Approximate || !fed && err != nil {
				t.Errorf("events: %v", err)
			}
			if got := a.Spaces(); len(got) != 1 || got[0] != space || a.Ready() != nil {
				t.Errorf("spaces %v, %v", got, a.Ready())
			}
		})
	}
}

func weightless() route.Settings {
	s := route.DefaultSettings()
	s.OverlapWeight = 0
	return s
}

// What is said of the decisions that are kept leaves the rest as it is by default.
func TestSomeDecisions(t *testing.T) {
	for keep, want := range map[int]bool{-1: false, 0: true, 5: true} {
		a, err := Open(t.Context(), Config{Replica: replica.Config{Log: quiet()}, Decisions: account.Config{Keep: keep, Run: "r"}})
		if err != nil {
			t.Fatal(err)
		}
		if kept := a.Decisions().Sample(time.Now(), 1); kept != want {
			t.Errorf("with a Keep of %d: %v", keep, kept)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What cannot be opened leaves nothing behind.
func TestRefused(t *testing.T) {
	before := runtime.NumGoroutine()
	for name, cfg := range map[string]Config{
		"mode":   {Routing: route.Settings{Mode: "x"}},
		"none":   {Routing: route.Settings{Lease: time.Minute}}, // else it would have another silently
		"nats":   {Replica: replica.Config{NATS: replica.NATS{URL: "nats://127.0.0.1:1"}}},
		"scheme": {Replica: replica.Config{NATS: replica.NATS{URL: "http://127.0.0.1:1"}}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		cfg.Replica.Log = quiet()
		if a, err := Open(ctx, cfg); err == nil {
			t.Errorf("%s: opened: %v", name, a.Close(ctx))
		}
		cancel()
	}
	a, err := Open(t.Context(), Config{Replica: replica.Config{Log: quiet()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Router(event.Space{Model: "m"}); !errors.Is(err, blockhash.ErrBlockSize) {
		t.Errorf("a space without a block size: %v", err)
	}
	if err := errors.Join(a.Close(t.Context()), a.Close(t.Context())); err != nil {
		t.Error(err)
	}
	waittest.Until(t, func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// What has no meaning is refused, and what is not stored is counted.
func TestWhatApplyRefuses(t *testing.T) {
	a, _ := open(t, Config{})
	for name, ev := range map[string]event.Event{
		"kind":   {Engine: []uint64{1}, Local: []uint64{1}},
		"tier":   {Kind: event.Stored, Tier: event.NumTiers, Engine: []uint64{1}, Local: []uint64{1}},
		"rank":   {Kind: event.Stored, DPRank: event.PoolRank, Engine: []uint64{1}, Local: []uint64{1}},
		"hashes": {Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{1}},
	} {
		if err := a.Apply(t.Context(), &event.Batch{Space: space, Events: []event.Event{ev}}); !errors.Is(err, event.ErrEncode) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.Apply(t.Context(), nil); !errors.Is(err, event.ErrEncode) {
		t.Errorf("nothing: %v", err)
	}
	orphan := event.Event{Kind: event.Stored, HasParent: true, Parent: 9, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}
	if err := a.Apply(t.Context(), &event.Batch{Space: space, Events: []event.Event{orphan}}); err != nil {
		t.Fatal(err)
	}
	if out := a.Replica().Set().Lookup(space).Stats().Outcome; out.UnknownParent != 2 || out.Stored != 0 {
		t.Errorf("%+v of two blocks whose parent nobody knows", out)
	}
}

// The lines in docs/router.md are those that are compiled here.
func TestDocs(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join("docs", "router.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "ctx context.Context, tokens []uint32) error {\n")
	code, _, _ = strings.Cut(code, "\t}\n\t_ = serve")
	code = regexp.MustCompile(` +//nolint:.*`).ReplaceAllString(code, "")
	if code = strings.ReplaceAll("\n"+code, "\n\t\t", "\n"); len(code) < 500 || !strings.Contains(string(doc), code) {
		t.Errorf("docs/router.md does not have the example:\n%s", code)
	}
}

// What a program links this library by has no NATS and no HTTP server in it.
func TestNoForeignTypes(t *testing.T) {
	for _, dir := range []string{".", "route", "route/load", "shard", "core", "event"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				for _, foreign := range []string{"nats-io", "fasthttp", "net/http"} {
					if foreign == "net/http" && dir == "." {
						continue // of handlers, to mount
					}
					if strings.Contains(i.Path.Value, foreign) {
						t.Errorf("%s imports %s", name, i.Path.Value)
					}
				}
			}
		}
	}
}
