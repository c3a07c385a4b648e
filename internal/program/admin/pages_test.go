package admin

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// ask asks with the headers of a browser.
func (s *started) ask(method, path, body string, header map[string]string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.Address()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range header {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode
}

// A page whose site's name means this machine now reads nothing of a port that asks
// nobody who it is; probes may come by any name.
func TestAPageOfAnotherSite(t *testing.T) {
	open := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{})
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("- {token: "+operator+", role: operator}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	asks := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{TokensFile: file})
	for host, want := range map[string]int{
		"evil.example": 403, "evil.example:8001": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:80": 403, "2130706433": 403,
		"localhost": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "[::1]:8001": 200, "::1": 200, "10.1.2.3:80": 200,
	} {
		for _, path := range []string{"/config", "/metrics", "/log_level", "/debug/pprof/"} {
			if got := open.ask("GET", path, "", map[string]string{"Host": host}); got != want {
				t.Errorf("GET %s of %s: %d, want %d", path, host, got, want)
			}
		}
		for _, path := range []string{"/livez", "/readyz", "/version"} {
			if got := open.ask("GET", path, "", map[string]string{"Host": host}); got != 200 {
				t.Errorf("GET %s of %s: %d", path, host, got)
			}
		}
		if got := asks.ask("GET", "/config", "", map[string]string{"Host": host, "Authorization": "Bearer " + operator}); got != 200 {
			t.Errorf("with a token, of %s: %d", host, got)
		}
	}
	for origin, want := range map[string]int{"https://evil.example": 403, "null": 403, "": 200, "http://" + open.Address(): 200} {
		header := map[string]string{"Content-Type": "text/plain"}
		if origin != "" {
			header["Origin"] = origin
		}
		if got := open.ask("PUT", "/log_level", `{"level":"info"}`, header); got != want {
			t.Errorf("PUT from %q: %d, want %d", origin, got, want)
		}
	}
}
