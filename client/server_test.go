package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/selection"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

const (
	patience    = time.Minute
	readerToken = "reader-0123456789abcdef"
	blockSize   = 4
)

// fleet is three workers of two ranks. Worker 2, rank 1 holds the first two
// blocks of the prompt 0, 1, 2, …; rank 0 of it the first; worker 1<<63+1 the
// first on disk.
type fleet struct {
	set    *shard.Set
	space  *shard.Space
	router *route.Router
}

func prompt(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

func localHashes(n int) []uint64 {
	local, err := blockhash.LocalHashes(nil, prompt(n), blockSize, blockhash.Options{})
	if err != nil {
		panic(err) // a constant of the tests
	}
	return local
}

func newFleet() (*fleet, error) {
	f := &fleet{set: shard.New(shard.Config{})}
	var err error
	for _, group := range []string{"", "tenant"} {
		id := event.Space{Model: "org/model", BlockSize: blockSize, Group: group}
		sp, err := f.set.Open(id)
		if err != nil {
			return nil, err
		}
		for _, b := range []event.Batch{
			{Worker: 2, Events: []event.Event{
				{Kind: event.Stored, DPRank: 1, Engine: []uint64{11, 12}, Local: localHashes(8)},
				{Kind: event.Stored, DPRank: 0, Engine: []uint64{11}, Local: localHashes(4)},
			}},
			{Worker: 1<<63 + 1, Events: []event.Event{{Kind: event.Stored, Engine: []uint64{11}, Local: localHashes(4), Tier: event.Disk}}},
		} {
			b.Space = id
			if _, err := sp.ApplyWait(context.Background(), &b); err != nil {
				return nil, err
			}
		}
		if group == "" {
			f.space = sp
		}
	}
	if f.router, err = route.New(route.Config{BlockSize: blockSize, Index: f.space, Settings: route.DefaultSettings()}); err != nil {
		return nil, err
	}
	for _, id := range []uint64{1, 2, 1<<63 + 1} {
		if err := f.router.SetWorker(route.Worker{ID: id, Ranks: 2, TotalBlocks: 100}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// startIndexer serves the fleet as kvindexer does, and returns its URL and what
// ends it.
func (f *fleet) startIndexer(dir string) (url string, stop func(), err error) {
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("- {name: test, role: reader, token: "+readerToken+"}\n"), 0o600); err != nil {
		return "", nil, err
	}
	log := slog.New(slog.DiscardHandler)
	access, err := secure.Settings{TokensFile: tokens}.Open(log)
	if err != nil {
		return "", nil, err
	}
	var cfg query.Config
	set := conf.New("test", "test")
	cfg.Declare(set)
	if _, err := set.Run([]string{"--http-listen=127.0.0.1:0"}, nil, io.Discard); err != nil {
		return "", nil, err
	}
	s, err := query.New(cfg, query.Deps{Index: query.Shards{Set: f.set}, Access: access, Log: log, Metrics: obs.NewMetrics()})
	if err != nil {
		return "", nil, err
	}
	ln, err := s.Listen(context.Background())
	if err != nil {
		return "", nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln) // nil after Shutdown
	}()
	return "http://" + ln.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = s.Shutdown(ctx) // the test is over
		<-done
	}, nil
}

// serveRouter answers kvrouter's routes of choices.
func (f *fleet) serveRouter() http.Handler {
	service := selection.New(selection.Config{Models: func() []*selection.Model {
		return []*selection.Model{{Space: f.space.Key(), Router: f.router, Endpoint: func(w uint64) string { return fmt.Sprintf("http://engine-%d:8000", w) }}}
	}})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		a := service.Serve(r.Context(), selection.Request{
			Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, ContentType: r.Header.Get("Content-Type"), Body: body,
		})
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // the client may be gone
	})
}

func start(t *testing.T) (f *fleet, indexer, router string) {
	t.Helper()
	f, err := newFleet()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.set.Close)
	indexer, stop, err := f.startIndexer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	r := httptest.NewServer(f.serveRouter())
	t.Cleanup(r.Close)
	return f, indexer, r.URL
}
