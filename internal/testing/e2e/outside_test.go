package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A router of somebody else's, which asks this one only whom to send to, tells of
// failures: the worker that fails is left out for all who ask.
func TestOutsideRouterTellsFailures(t *testing.T) {
	p, url := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines=http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3", "--model=m",
		"--health-every=0s", "--admin-listen=127.0.0.1:0", "--breaker-failures=2", "--breaker-wait=1h", "--breaker-max-wait=1h")
	for i := range 2 {
		id := fmt.Sprint("r", i)
		if status, text, _ := ask(url+"/v1/reservations", `{"selection_id":"`+id+`","model_name":"m","worker_id":1,"isl_tokens":4}`); status != http.StatusCreated {
			t.Fatalf("%d %s", status, text)
		}
		if status, text, _ := ask(url+"/v1/reservations/"+id+"/failed", ""); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url+"/v1/reservations/"+id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err != nil {
			t.Error(err)
		} else {
			_ = resp.Body.Close()
		}
	}
	for range 30 {
		if status, text, _ := ask(url+"/v1/select", `{"model_name":"m","token_ids":[1,2,3]}`); status != http.StatusOK || strings.Contains(text, `"worker_id":1,`) {
			t.Fatalf("%d %s", status, text)
		}
	}
	if text, err := get(t.Context(), url+"/metrics"); err != nil || sum(text, "kvatlas_router_breaker_state", `state="open"`) != 1 {
		t.Errorf("%v", err)
	}
	p.stop()
}

// A file of a key that the changed credentials name is read as soon as it changes.
func TestEnginesKeyThatChanges(t *testing.T) {
	home := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(home, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
		return true
	})
	list := file("list", "[{token: first}]")
	p, url := startRouter(t, home, "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0", "--engine-credentials="+list)
	shown := func(want string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if status, text, _ := ask(url+"/v1/completions", `{"model":"m","prompt":"x"}`); status != http.StatusOK || text != "Bearer "+want {
				return fmt.Errorf("%d %s", status, text)
			}
			return nil
		})
	}
	shown("first")
	file("list", "[{token_file: "+file("key", "second")+"}]")
	shown("second")
	file("key", "third")
	shown("third")
	p.stop()
}
