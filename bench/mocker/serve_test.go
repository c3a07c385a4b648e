package mocker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/registry"
)

// Workers listen, are registered with what a router has to know, publish what
// they compute, and are gone from the registry at the end.
func TestServe(t *testing.T) {
	var b fakeBroker
	cfg := settings(t, "--http", "--http-port=0", "--workers=2", "--dp-size=2", "--block-size=4", "--speed=0", "--role=prefill",
		"--kv-transfer=sglang", "--adapters=l", "--first-worker=5")
	ctx, cancel := context.WithCancel(t.Context())
	listening := make(chan []string, 1)
	var registered []registry.Worker
	withdrawn := make(chan uint64, 2)
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, cfg, b.broker(), func(_ context.Context, w registry.Worker) (func(context.Context) error, error) {
			registered = append(registered, w)
			return func(context.Context) error { withdrawn <- w.ID; return nil }, nil
		}, slog.New(slog.DiscardHandler), func(urls []string) { listening <- urls })
	}()
	var urls []string
	select {
	case urls = <-listening:
	case err := <-done:
		t.Fatal(err)
	}
	w := registered[1]
	if len(urls) != 2 || w.ID != 6 || w.Endpoints.HTTP != urls[1] || "http://"+w.Endpoints.Bootstrap != urls[1] || w.Role != registry.Prefill ||
		w.KVTransfer != registry.TransferSGLang || len(w.Ranks) != 2 || w.TotalBlocks != 16384 || w.MaxBatchedTokens != 8192 {
		t.Errorf("%v: %+v", urls, w)
	}
	resp, err := http.Post(urls[1]+"/v1/completions", "application/json", //nolint:noctx // a test's own server
		strings.NewReader(`{"model":"l","prompt":[1,2,3,4,5],"max_tokens":2,"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !strings.Contains(string(data), `"completion_tokens":2`) {
		t.Errorf("%d %s %v", resp.StatusCode, data, err)
	}
	_ = resp.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(withdrawn) != 2 || len(b.events[6]) != 1 || len(b.events[5]) != 0 {
		t.Errorf("%d withdrawn, %d events", len(withdrawn), len(b.events[6]))
	}
	if resp, err := http.Get(urls[1] + "/health"); err == nil { //nolint:noctx // it must not answer
		_ = resp.Body.Close()
		t.Error("it still answers")
	}
}

// A fleet that cannot be registered or published for is taken down again.
func TestServeFails(t *testing.T) {
	var b fakeBroker
	no := errors.New("no")
	err := Serve(t.Context(), settings(t, "--http", "--http-port=0", "--workers=2"), b.broker(),
		func(context.Context, registry.Worker) (func(context.Context) error, error) { return nil, no }, slog.New(slog.DiscardHandler), nil)
	if !errors.Is(err, no) {
		t.Error(err)
	}
	for _, host := range []string{"256.0.0.1", "0.0.0.0", "::", ""} {
		if err := Serve(t.Context(), settings(t, "--http", "--http-port=0", "--http-host="+host), b.broker(), nil, slog.New(slog.DiscardHandler), nil); err == nil {
			t.Errorf("%q: it listens nowhere, or is registered there, and does not say so", host)
		}
	}
}

// A fleet that is told to end while it starts ends well.
func TestServeEndsWhileItStarts(t *testing.T) {
	var b fakeBroker
	ctx, cancel := context.WithCancel(t.Context())
	withdrawn := 0
	err := Serve(ctx, settings(t, "--http", "--http-port=0", "--workers=2"), b.broker(),
		func(_ context.Context, w registry.Worker) (func(context.Context) error, error) {
			if w.ID == 2 {
				cancel()
				return nil, ctx.Err()
			}
			return func(context.Context) error { withdrawn++; return nil }, nil
		}, slog.New(slog.DiscardHandler), nil)
	if err != nil || withdrawn != 1 || b.open != 0 {
		t.Errorf("%v; %d withdrawn, %d publishers open", err, withdrawn, b.open)
	}
}
