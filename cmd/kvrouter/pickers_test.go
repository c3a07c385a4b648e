package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/gateway"
	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Two pickers answer one gateway's requests in turns, and count each other's: nobody gets two
// while others have none, and when one is gone, so is what it had placed.
func TestPickersBesideEachOther(t *testing.T) {
	dir := t.TempDir()
	var urls []string
	var pickers []*gateway.Client
	var stop []func()
	engines := "http://10.0.0.1:8000,http://10.0.0.2:8000,http://10.0.0.3:8000,http://10.0.0.4:8000"
	for _, name := range []string{"a", "b"} {
		log := &addresses{slog.DiscardHandler, make(chan string, 1)}
		url, end := startLogged(t, slog.New(log), "--data-dir="+dir, "--replica="+name, "--kv-events=false", "--picker-listen=127.0.0.1:0", "--health-every=0s", "--models-every=0s",
			"--engines="+engines, "--model=m", "--block-size=4", "--admin-listen=", "--stop-timeout=0s", "--queue=0")
		urls, stop = append(urls, url), append(stop, end)
		pickers = append(pickers, dial(t, <-log.found, nil, func() {}))
	}
	both := func(want int) {
		t.Helper()
		waittest.Until(t, func() error {
			for i, url := range urls {
				if n, _ := bookings(t, url); n != want {
					return fmt.Errorf("picker %d knows of %d requests, want %d", i, n, want)
				}
			}
			return nil
		})
	}
	both(0)
	ctx, cancel := context.WithCancel(t.Context())
	var held sync.WaitGroup
	t.Cleanup(held.Wait)
	t.Cleanup(cancel)
	at := map[string]int{}
	for i := range 8 {
		picked := make(chan string, 1)
		held.Go(func() {
			body := []byte(fmt.Sprintf(`{"model":"m","stream":true,"prompt":"%s"}`, bytes.Repeat([]byte{'a' + byte(i)}, 4000)))
			_, err := pickers[i%2].Do(ctx, &gateway.Request{Path: "/v1/completions", Body: body, Answer: answerOf(),
				Picked: func(got *gateway.Result) { picked <- got.Endpoint; <-ctx.Done() }})
			if err == nil {
				t.Error("it was not held")
			}
		})
		at[<-picked]++
		both(i + 1)
		if i == 3 && len(at) != 4 {
			t.Errorf("the first four went to %v", at)
		}
	}
	if slices.Max(slices.Collect(maps.Values(at))) > 3 { // the first prompts may count as computed by now
		t.Errorf("eight went to %v", at)
	}
	stop[1]()
	waittest.Until(t, func() error {
		if n, _ := bookings(t, urls[0]); n != 4 {
			return fmt.Errorf("%d requests are booked, want the 4 of the picker that is left", n)
		}
		return nil
	})
	cancel()
	held.Wait()
	noBookings(t, urls[0])
}

// Priorities are those of the pool's InferenceObjectives, as the API server has them then.
func TestPickerFollowsObjectives(t *testing.T) {
	api := kubetest.New()
	server := httptest.NewServer(api)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	store := func(name string, priority int) {
		api.Store("inferenceobjectives", kubetest.Object{"metadata": map[string]any{"name": name},
			"spec": map[string]any{"priority": priority, "poolRef": map[string]any{"name": "pool"}}})
	}
	store("one", -1)
	store("given", -1)
	c, url, _ := startPicker(t, 1, "--picker-pool=pool", "--kube-namespace=n", "--kube-api="+server.URL, "--picker-objectives=given=3", "--busy-prefill-tokens=500", "--queue=10", "--queue-timeout=10s")
	known := func(n int) {
		t.Helper()
		waittest.Until(t, func() error {
			if _, text, _ := ask(http.MethodGet, url+"/metrics", ""); !strings.Contains(text, fmt.Sprintf("\nkvatlas_picker_objectives %d\n", n)) {
				return fmt.Errorf("no %d objectives are known", n)
			}
			return nil
		})
	}
	known(2)
	ctx, cancel := context.WithCancel(t.Context())
	var held sync.WaitGroup
	held.Go(func() {
		if got, err := c.Do(ctx, &gateway.Request{Path: "/v1/completions", Body: prompt(8000), Picked: func(*gateway.Result) { <-ctx.Done() }}); err == nil {
			t.Error("it was not held:", got.Status, string(got.Text))
		}
	})
	waittest.Until(t, func() error {
		if n, _ := bookings(t, url); n == 0 {
			return errors.New("nothing is booked")
		}
		return nil
	})
	with := func(objective string) (*gateway.Result, error) {
		return c.Do(t.Context(), &gateway.Request{Path: "/v1/completions", Body: prompt(40), Answer: answerOf(),
			Headers: []extproc.Header{{Name: "x-gateway-inference-objective", Value: objective}}})
	}
	if got, err := with("one"); err != nil || got.Status != http.StatusTooManyRequests {
		t.Error("one that does not wait:", err, got.Status)
	}
	store("one", 0)
	store("two", -5)
	known(3)
	if got, err := with("two"); err != nil || got.Status != http.StatusTooManyRequests {
		t.Error("one that is new:", err, got.Status)
	}
	for _, name := range []string{"one", "given"} { // they wait
		held.Go(func() {
			if got, err := with(name); err != nil || got.Status != 0 {
				t.Error(name, err, got.Status)
			}
		})
	}
	waittest.Until(t, func() error {
		if _, text, _ := ask(http.MethodGet, url+"/metrics", ""); !strings.Contains(text, `kvatlas_router_queue_length{model="m",block_size="4",group=""} 2`) {
			return errors.New("not both wait")
		}
		return nil
	})
	cancel()
	held.Wait()
	noBookings(t, url)
}

// At a picker with TLS, client certificates and tokens, who lacks one is told no, and the rest
// have their tenants' limits; the engine sees no token.
func TestPickerAccess(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	authority, other := securetest.New(t), securetest.New(t)
	authority.Issue("picker", file("cert"), file("key"))
	authority.Issue("gateway", file("gateway"), file("gateway-key"))
	other.Issue("stranger", file("stranger"), file("stranger-key"))
	cfg, err := read(t, "--http-listen=127.0.0.1:0", "--picker-listen=127.0.0.1:0", "--nats=none", "--kv-events=false", "--engines=http://10.0.0.1:8000", "--model=m", "--block-size=4",
		"--health-every=0s", "--models-every=0s", "--admin-listen=", "--tls-cert="+file("cert"), "--tls-key="+file("key"), "--tls-client-ca="+authority.File,
		"--tokens-file="+tenantsFile(t, "  a: {requests: 2, per: 1h}\n"))
	if err != nil {
		t.Fatal(err)
	}
	log := &addresses{slog.DiscardHandler, make(chan string, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, cfg, slog.New(log)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	at := <-log.found
	as := func(speak *tls.Config) *gateway.Client { return dial(t, at, speak, func() {}) }
	c := as(authority.Client(file("gateway"), file("gateway-key")))
	waittest.Until(t, func() error {
		if got, err := c.Health(t.Context(), "readiness"); err != nil || got != extproc.IsServing {
			return fmt.Errorf("not ready: %v %w", got, err)
		}
		return nil
	})
	short, end := context.WithTimeout(t.Context(), waittest.Patience)
	defer end()
	for name, stranger := range map[string]*gateway.Client{
		"plain": as(nil), "without a certificate": as(authority.Client()), "with a stranger's": as(func() *tls.Config {
			with := authority.Client()
			with.Certificates = other.Client(file("stranger"), file("stranger-key")).Certificates
			return with
		}()),
	} {
		if _, err := stranger.Health(short, "liveness"); err == nil {
			t.Error(name + ": it is answered")
		}
	}
	for _, step := range []struct {
		token string
		want  int
	}{{"", 401}, {"Bearer x-0123456789abcdef", 401}, {"Bearer a-0123456789abcdef", 0}, {"bearer a-0123456789abcdef", 0}, {"Bearer a-0123456789abcdef", 429}, {"Bearer b-0123456789abcdef", 0}} {
		r := &gateway.Request{Path: "/v1/completions", Body: prompt(400), Answer: answerOf()}
		if step.token != "" {
			r.Headers = []extproc.Header{{Name: "authorization", Value: step.token}, {Name: "x-goog-api-key", Value: "mine"}}
		}
		got, err := c.Do(t.Context(), r)
		if err != nil || got.Status != step.want {
			t.Fatalf("%q: %v %d %s", step.token, err, got.Status, got.Text)
		}
		switch step.want {
		case 0:
			if slices.Sort(got.Remove); strings.Join(got.Remove, " ") != "authorization x-goog-api-key" {
				t.Errorf("%q: %q is removed", step.token, got.Remove)
			}
		case 429:
			if got.Own["x-ratelimit-limit-requests"] != "2" || got.Own["retry-after"] == "" {
				t.Errorf("%v", got.Own)
			}
		case 401:
			if got.Own["www-authenticate"] == "" {
				t.Errorf("%v", got.Own)
			}
		}
	}
}

// A body that cannot be used is refused with what is wrong with it.
func TestPickerSaysWhatIsWrongWithABody(t *testing.T) {
	c, url, _ := startPicker(t, 1, "--http-max-body=10000", "--http-read-timeout=300ms")
	length := func(n int) []extproc.Header {
		return []extproc.Header{{Name: "content-length", Value: fmt.Sprint(n)}}
	}
	for name, f := range map[string]struct {
		r      gateway.Request
		status int
		says   string
	}{
		"too large":              {gateway.Request{Body: prompt(10_001), Part: 1000}, 413, "--http-max-body"},
		"said to be":             {gateway.Request{Body: prompt(100), Headers: length(10_001)}, 413, "--http-max-body"},
		"longer than it says":    {gateway.Request{Body: prompt(1000), Part: 100, Headers: length(500)}, 400, "longer or shorter than its Content-Length"},
		"shorter than it says":   {gateway.Request{Body: prompt(1000), Part: 100, Headers: length(1500)}, 400, "longer or shorter than its Content-Length"},
		"no JSON":                {gateway.Request{Body: []byte(`{"model":"m","prompt":"x`)}, 400, "malformed_json"},
		"late":                   {gateway.Request{Body: prompt(1000), Part: 100, Stuck: true}, 408, "--http-read-timeout"},
		"one message, too large": {gateway.Request{Body: prompt(500_000), Buffered: true}, 413, "--http-max-body"},
	} {
		f.r.Path, f.r.Answer = "/v1/completions", answerOf()
		got, err := c.Do(t.Context(), &f.r)
		if err != nil || got.Status != f.status || !strings.Contains(string(got.Text), f.says) {
			t.Errorf("%s: %v %d %s", name, err, got.Status, got.Text)
		}
	}
	noBookings(t, url)
}
