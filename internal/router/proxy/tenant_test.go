package proxy

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/registry"
)

// TestTenantsAreServedByTheirOwnGroup has an engine in each of two groups and
// asks with a token of each.
func TestTenantsAreServedByTheirOwnGroup(t *testing.T) {
	l := newLab(t, setup{engines: 2, registry: func(i int, w *registry.Worker) {
		w.Group = []string{"acme", "other"}[i]
	}})
	path := filepath.Join(t.TempDir(), "tokens")
	tokens := "- {token: acme-0123456789abcdef, role: reader, tenant: acme}\n- {token: none-0123456789abcdef, role: reader, tenant: none}\n" +
		"- {token: plain-0123456789abcdef, role: reader, tenant: ''}\n"
	if err := os.WriteFile(path, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	access, err := secure.Settings{TokensFile: path}.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(access.GuardBy(func(*http.Request) (secure.Role, bool) { return secure.Reader, true }, l.proxy.keepOut, l.proxy))
	defer front.Close()
	ask := func(method, path, token, body, group string) (int, string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, front.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if group != "" {
			req.Header.Set(headerGroup, group) // this caller's address is trusted
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("X-Kvatlas-Worker"), string(data)
	}
	const body = `{"model":"` + modelName + `","prompt":[1,2,3,4],"max_tokens":1}`
	for range 4 {
		for _, group := range []string{"", "other"} {
			if status, worker, text := ask("POST", "/v1/completions", "acme-0123456789abcdef", body, group); status != 200 || worker != "0" {
				t.Errorf("%d by worker %q: %s", status, worker, text)
			}
		}
	}
	for _, token := range []string{"none-0123456789abcdef", "plain-0123456789abcdef"} {
		if status, _, text := ask("POST", "/v1/completions", token, body, "acme"); status != 404 {
			t.Errorf("%s: %d %s", token, status, text)
		}
		if _, _, text := ask("GET", "/v1/models", token, "", ""); strings.Contains(text, modelName) {
			t.Errorf("%s sees %s", token, text)
		}
	}
	if _, _, text := ask("GET", "/v1/models", "acme-0123456789abcdef", "", ""); !strings.Contains(text, modelName) {
		t.Errorf("%s", text)
	}
}
