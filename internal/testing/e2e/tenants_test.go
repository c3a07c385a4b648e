package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/natstest"
)

// A tenant's limit is that of all routers together; one that dies leaves its part when it
// is sure to be gone: soon to the last router here, and not within the test to the one before.
func TestRoutersShareLimitsOfTenants(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":4,"completion_tokens":1}}`)
	}))
	t.Cleanup(engine.Close)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("tokens:\n- {name: a, token: a-0123456789abcdef, role: reader}\ntenants:\n  a: {requests: 20, per: 24h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nats := natstest.Start(t).URL("router")
	var processes []*process
	var urls []string
	for i := range 3 {
		forget := "1h"
		if i == 2 {
			forget = "2s"
		}
		p, url := startRouter(t, t.TempDir(), "--nats", nats, "--kv-events=false", "--engines", engine.URL, "--model", "m", "--health-every", "0s", "--tokens-file", tokens,
			"--tenants-every", "5ms", "--tenants-silent", "1s", "--tenants-forget", forget)
		processes, urls = append(processes, p), append(urls, url)
	}
	do := func(method, url, body string) (int, string, http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer a-0123456789abcdef")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text), resp.Header
	}
	metric := func(router int, name string, want float64) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			_, text, _ := do(http.MethodGet, urls[router]+"/metrics", "")
			if got := sum([]byte(text), "kvatlas_router_quota_"+name); got != want {
				return fmt.Errorf("router %d: %s is %v, want %v", router, name, got, want)
			}
			return nil
		})
	}
	for i := range processes {
		metric(i, "synced", 2)
	}
	chat := func(router int) (int, http.Header) {
		status, text, header := do(http.MethodPost, urls[router]+"/v1/completions", `{"model":"m","prompt":[1,2,3,4],"max_tokens":1}`)
		if status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Fatalf("%d %s", status, text)
		}
		return status, header
	}
	for i := range 14 {
		if status, header := chat(0); status != http.StatusOK {
			t.Fatalf("request %d: %d %v", i, status, header)
		}
	}
	metric(1, "tenants", 1) // told with the first, and all within the next interval
	let := 0
	eventually(t, time.Minute, func() error {
		status, header := chat(1)
		if status == http.StatusOK {
			let++
			return fmt.Errorf("%s are left after %d", header.Get("X-Ratelimit-Remaining-Requests"), let)
		}
		if let < 6 { // another was not heard for a moment
			return fmt.Errorf("%d are let in", let)
		}
		return nil
	})
	if let > 7 {
		t.Errorf("%d of 20 are let in by the other, after 14", let)
	}
	eventually(t, time.Minute, func() error {
		if status, _ := chat(0); status == http.StatusOK {
			return fmt.Errorf("the first lets more in")
		}
		return nil
	})
	processes[0].kill()
	metric(1, "part", 2.0/3)
	metric(2, "part", 1)
	processes[1].stop()
	processes[2].stop()
}
