package secure

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// A site whose name means this machine is refused where nobody is asked for a token, and
// only there; addresses, localhost and names that were given are not.
func TestNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("- {token: 0123456789abcdef0123, role: reader}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(c Settings) *Access {
		a, err := c.Open(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	given, plain := open(Settings{HostNames: []string{"kv.example", "other"}}), open(Settings{})
	for host, want := range map[string]bool{
		"evil.example": false, "evil.example:8090": false, "localhost.evil.example": false, "127.0.0.1.evil.example:80": false, "2130706433": false,
		"[evil.example]": false, "kv.example.evil.example": false, "kv.example:": true, "": true,
		"localhost": true, "LOCALHOST:1": true, "127.0.0.1": true, "[::1]:8090": true, "[::1]": true, "10.1.2.3:80": true, "KV.example:8090": true, "other": true,
	} {
		for _, address := range []string{"127.0.0.1:8090", "localhost:0", "[::1]:1", "127.9.9.9:1"} {
			if got := given.Names(address).Has(host); got != want {
				t.Errorf("%s at %s: %v", host, address, got)
			}
		}
		for _, n := range []*Names{plain.Names("0.0.0.0:8090"), plain.Names(":8090"), open(Settings{TokensFile: file}).Names("127.0.0.1:1"), nil} {
			if !n.Has(host) {
				t.Errorf("%s is refused where it need not be", host)
			}
		}
	}
	if plain.Names("127.0.0.1:1").Has("kv.example") {
		t.Error("a name that nobody gave is served")
	}
}

// Without tokens a page of another site does nothing that is an operator's.
func TestAPageIsNoOperator(t *testing.T) {
	for role, want := range map[Role]int{Operator: 403, Reader: 200} {
		h := new(Access).Guard(role, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for origin, want := range map[string]int{"https://evil.example": want, "null": want, "http://example.com": 200, "": 200} {
			r, w := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), httptest.NewRecorder()
			if r.Header.Set("Origin", origin); origin == "" {
				r.Header.Del("Origin")
			}
			if h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%v from %q: %d, want %d", role, origin, w.Code, want)
			}
		}
	}
}
