package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The packages that agents are written with: conversations by each API, streamed and not, with
// tools and without, of which the second turn goes where the first one was; with engines that
// do all of it, and with prefill and decode workers. It is for make test-clients.
func TestPythonClients(t *testing.T) {
	python := os.Getenv("KVATLAS_CLIENTS_PYTHON")
	if python == "" {
		t.Skip("run it with make test-clients")
	}
	for _, split := range []bool{false, true} {
		t.Run(fmt.Sprintf("split %v", split), func(t *testing.T) {
			home := t.TempDir()
			_, url := startRouter(t, home, "--models-every", "100ms")
			fleet := func(args ...string) {
				start(t, home, "kvmocker", append([]string{"--data-dir", filepath.Join(home, "data"), "--http", "--http-port", "0", "--model", "m"}, args...)...)
			}
			args := []string{"testdata/clients.py", url}
			if split {
				fleet("--workers", "2", "--role", "prefill", "--kv-transfer", "vllm", "--first-worker", "100")
				fleet("--workers", "2", "--role", "decode", "--kv-transfer", "vllm")
				args = append(args, "split")
			} else {
				fleet("--workers", "3")
			}
			eventually(t, time.Minute, func() error { // until it is known what all engines are
				status, data, who := ask(url+"/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`)
				text, err := get(t.Context(), url+"/metrics")
				if err == nil && (status != http.StatusOK || sum(text, "kvatlas_router_tokenize_total", `from="engine"`)+sum(text, "kvatlas_router_tokenize_total", `from="cache"`) == 0) {
					err = fmt.Errorf("%d %s by %s: no engine was asked for tokens", status, data, who)
				}
				return err
			})
			out, err := exec.Command(python, args...).CombinedOutput() //nolint:gosec,noctx // a test's own program
			if t.Logf("%s", out); err != nil {
				t.Error(err)
			}
			text, err := get(t.Context(), url+"/metrics")
			if err != nil {
				t.Fatal(err)
			}
			if n := sum(text, "kvatlas_router_unread_conversations_total", `reason="unsupported"`) + sum(text, "kvatlas_router_unread_conversations_total", `reason="refused"`); n != 0 {
				t.Errorf("%v conversations were not read", n)
			}
		})
	}
}
