package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/porttest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A router that is started while NATS is away is ready for the engines of its settings as long as one can take
// requests, tells nobody that workers hold nothing, and stays ready while it reads what NATS has when that is back.
func TestReadyWithoutNATS(t *testing.T) {
	e, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	var sick atomic.Bool
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		e.ServeHTTP(w, r)
	}))
	t.Cleanup(engine.Close)
	port, dir := porttest.Free(t, 1), t.TempDir()
	var nats *server.Server
	t.Cleanup(func() { // once the router, which takes leave of others there, has ended
		if nats != nil {
			nats.Shutdown()
		}
	})
	log := new(logged)
	url, _ := startLogged(t, slog.New(slog.NewTextHandler(log, nil)), "--nats=nats://"+porttest.Local(port), "--ready-without-nats=1ms", "--admin-listen=127.0.0.1:0",
		"--engines="+engine.URL, "--model=m", "--block-size=4", "--health-every=20ms", "--unhealthy-after=1") // returns when it is ready
	admin := log.admin(t)
	state := func(ready int, says, find string) {
		t.Helper()
		waittest.Until(t, func() error {
			for _, at := range []string{url, admin} {
				if status, text, _ := ask("GET", at+"/readyz?verbose", ""); status != ready || !strings.Contains(text, says) {
					return fmt.Errorf("%s: %d %s, want %d with %s", at, status, text, ready, says)
				}
			}
			if status, text, _ := ask("POST", admin+"/v1/find_matches", `{"model":"m","token_ids":[1,2,3,4]}`); !strings.Contains(fmt.Sprint(status, text), find) {
				return fmt.Errorf("what is held: %d %s, want %s", status, text, find)
			}
			unknown := strings.Contains(find, "not_ready")
			if _, text, _ := ask("POST", url+"/v1/select", `{"model_name":"m","token_ids":[1,2,3,4]}`); ready == 200 && (!strings.Contains(text, `"overlap"`) || strings.Contains(text, `"unknown":true`) != unknown) {
				return fmt.Errorf("a choice: %s, want unknown %v", text, unknown)
			}
			_, text, _ := ask("GET", url+"/metrics", "")
			alone := map[bool]int{true: 1}[find == "not_ready"]
			for name, want := range map[string]int{"kvatlas_ready": map[int]int{200: 1}[ready], "kvatlas_router_without_nats": alone} {
				if !strings.Contains(text, fmt.Sprintf("\n%s %d\n", name, want)) {
					return fmt.Errorf("%s is not %d", name, want)
				}
			}
			return nil
		})
	}
	const away = `{"name":"ingest","ok":false,"reason":"not connected to NATS yet"}`
	state(200, away, "not_ready")
	if status, text, _ := ask("POST", url+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":1}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if status, text, header := ask("POST", url+"/v1/completions", `{"model":"n","prompt":[1,2,3],"max_tokens":1}`); status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("a model of nobody who is known: %d %s", status, text)
	}
	sick.Store(true)
	state(503, "no worker of the settings can take requests", "not_ready")
	sick.Store(false)
	state(200, away, "not_ready")

	if nats, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true}); err != nil {
		t.Fatal(err)
	}
	nats.Start()
	done, polled := make(chan struct{}), make(chan string)
	go func() {
		defer close(polled)
		for {
			select {
			case <-done:
				return
			default:
			}
			if status, text, _ := ask("GET", url+"/readyz", ""); status != 200 {
				polled <- text
				return
			}
		}
	}()
	state(200, `{"name":"ingest","ok":true}`, "200")
	close(done)
	if text, left := <-polled; left {
		t.Errorf("it was not ready while it read what NATS has: %s", text)
	}
	if !strings.Contains(log.String(), "NATS is away") {
		t.Error("the log says nothing of it")
	}
}

// Workers that --ready-workers wants are wanted by the gauge, too.
func TestReadyGaugeIsReadyz(t *testing.T) {
	url, _ := startUnready(t, slog.New(slog.DiscardHandler), "--nats=none", "--kv-events=false", "--ready-workers=1")
	status, text, _ := ask("GET", url+"/readyz?verbose", "")
	if _, metrics, _ := ask("GET", url+"/metrics", ""); status != 503 || !strings.Contains(metrics, "\nkvatlas_ready 0\n") {
		t.Errorf("%d %s", status, text)
	}
}
