package main

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The names of adapters are known from the first request on: a router that has just been started says of none
// that it is not served, which clients take for final; nor does one long of a worker that has come.
func TestAdaptersAreKnownAtOnce(t *testing.T) {
	args := []string{"--data-dir=" + t.TempDir(), "--admin-listen=127.0.0.1:0", "--models-every=1h"}
	asked := func(url, model string) error {
		if status, text, _ := ask("POST", url+"/v1/completions", `{"model":"`+model+`","prompt":[1,2,3],"max_tokens":1}`); status != 200 {
			return fmt.Errorf("%s: %d %s", model, status, text)
		}
		return nil
	}
	log := new(logged)
	url, stop := startLogged(t, slog.New(slog.NewTextHandler(log, nil)), args...)
	for i, adapter := range []string{"sql", "chat"} {
		body := fmt.Sprintf(`{"worker_id":%d,"model":"m","block_size":4,"transport":"none","endpoints":{"http":%q}}`, i+1, engine(t, mockapi.Config{Loras: []string{adapter}}))
		if status, text, _ := ask("POST", log.admin(t)+"/register", body); status != 201 {
			t.Fatal(status, text)
		}
		waittest.Until(t, func() error { return asked(url, adapter) })
	}
	stop()
	url, _ = start(t, args...)
	for _, adapter := range []string{"sql", "chat"} {
		if err := asked(url, adapter); err != nil {
			t.Error("after a restart:", err)
		}
	}
}
