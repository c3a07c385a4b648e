package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startRouter starts kvrouter and returns its URL when it is ready.
func startRouter(t *testing.T, home string, flags ...string) (*process, string) {
	t.Helper()
	p, address := listeningRouter(t, home, flags...)
	url := "http://" + address
	eventually(t, time.Minute, func() error {
		_, err := get(t.Context(), url+"/readyz")
		return err
	})
	return p, url
}

// listeningRouter starts kvrouter and returns its address when it listens.
func listeningRouter(t *testing.T, home string, flags ...string) (*process, string) {
	t.Helper()
	address := filepath.Join(home, "router-address")
	p := start(t, home, "kvrouter", append([]string{"--data-dir", filepath.Join(home, "data"), "--http-listen", "127.0.0.1:0",
		"--address-file", address, "--discover-every", "50ms", "--worker-header", "--health-every", "200ms"}, flags...)...)
	var text []byte
	eventually(t, time.Minute, func() (err error) {
		if text, err = os.ReadFile(address); err == nil && len(text) == 0 {
			err = errors.New("no address yet")
		}
		return err
	})
	return p, strings.TrimSpace(string(text))
}

// ask posts and returns status, body, and who answered after whom.
func ask(url, body string) (status int, data, who string) {
	status, data, who, _ = askFor(url, body, "")
	return status, data, who
}

// askFor is ask, and returns a header of the answer.
func askFor(url, body, header string) (status int, text, who, value string) {
	resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec,noctx // a test's own server
	if err != nil {
		return 0, err.Error(), "", ""
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), "", ""
	}
	who = resp.Header.Get("X-Kvatlas-Worker")
	if first := resp.Header.Get("X-Kvatlas-Prefill-Worker"); first != "" {
		who = first + " then " + who
	}
	return resp.StatusCode, string(data), who, resp.Header.Get(header)
}

// What the README shows: kvrouter and kvmocker --http, started by hand, find each
// other. A chat that is said again goes where it is cached, and the engine says
// that it was. Engines that die are left out, and new ones are found.
func TestRouterAndMockEngines(t *testing.T) {
	home := t.TempDir()
	router, url := startRouter(t, home)
	fleet := start(t, home, "kvmocker", "--data-dir", filepath.Join(home, "data"), "--http", "--http-port", "0", "--workers", "3", "--speed", "20", "--model", "m")
	chat := func(question string) string {
		return `{"model":"m","max_tokens":4,"messages":[{"role":"system","content":"` + strings.Repeat("You are a helpful assistant. ", 20) +
			`"},{"role":"user","content":"` + question + `"}]}`
	}
	eventually(t, time.Minute, func() error {
		if status, data, _ := ask(url+"/v1/chat/completions", chat("first")); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, data)
		}
		return nil
	})
	eventually(t, time.Minute, func() error { // its events take a moment
		status, data, _ := ask(url+"/v1/chat/completions", chat("second"))
		var answer struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != http.StatusOK || answer.Usage.Details.Cached < 100 {
			return fmt.Errorf("%d %s", status, data)
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), url+"/metrics")
		if err == nil && !strings.Contains(string(text), "kvatlas_router_reported_cached_tokens_total") {
			err = fmt.Errorf("no cached tokens are reported")
		}
		return err
	})
	fleet.kill()
	eventually(t, time.Minute, func() error {
		if status, data, _ := ask(url+"/v1/chat/completions", chat("third")); status != http.StatusServiceUnavailable && status != http.StatusBadGateway {
			return fmt.Errorf("without engines: %d %s", status, data)
		}
		return nil
	})
	again := start(t, home, "kvmocker", "--data-dir", filepath.Join(home, "data"), "--http", "--http-port", "0", "--workers", "2", "--speed", "0",
		"--model", "m", "--first-worker", "10")
	eventually(t, time.Minute, func() error {
		if status, data, worker := ask(url+"/v1/chat/completions", chat("fourth")); status != http.StatusOK || worker != "10" && worker != "11" {
			return fmt.Errorf("%d %s from worker %s", status, data, worker)
		}
		return nil
	})
	again.stop()
	router.stop()
}

// Two fleets, one that computes prompts and one that goes on with them, in each
// way; the second is enough when the first has died.
func TestPrefillAndDecodeFleets(t *testing.T) {
	for _, way := range []string{"vllm", "sglang", "mooncake"} {
		t.Run(way, func(t *testing.T) {
			home := t.TempDir()
			_, url := startRouter(t, home, "--booking-lease", "1m")
			fleet := func(role, id string) *process {
				return start(t, home, "kvmocker", "--data-dir", filepath.Join(home, "data"), "--http", "--http-port", "0", "--workers", "1",
					"--speed", "0", "--model", "m", "--role", role, "--kv-transfer", way, "--first-worker", id)
			}
			prefill := fleet("prefill", "100")
			fleet("decode", "1")
			body := `{"model":"m","max_tokens":3,"stream":true,"prompt":"` + strings.Repeat("a long prompt ", 20) + `"}`
			answered := func(by string) {
				t.Helper()
				eventually(t, time.Minute, func() error {
					if status, data, who := ask(url+"/v1/completions", body); status != http.StatusOK || who != by || !strings.Contains(data, "[DONE]") {
						return fmt.Errorf("%d %s by %s, want %s", status, data, who, by)
					}
					return nil
				})
			}
			answered("100 then 1")
			prefill.kill()
			answered("1")
		})
	}
}
