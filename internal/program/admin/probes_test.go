package admin

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// Where the admin port wants certificates and tokens, a probe without any is told yes or no at
// the port for probes, and nothing more.
func TestProbes(t *testing.T) {
	authority, dir := securetest.New(t), t.TempDir()
	authority.Issue("server", dir+"/cert", dir+"/key")
	securetest.Replace(t, dir+"/tokens", []byte("- {token: "+operator+", role: operator}"))
	s := start(t, Settings{Listen: "127.0.0.1:0", Probes: "127.0.0.1:0"}, secure.Settings{
		TokensFile: dir + "/tokens", CertFile: dir + "/cert", KeyFile: dir + "/key", ClientCA: authority.File})
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: authority.Client()}}
	if resp, err := client.Get("https://" + s.Address() + "/livez"); err == nil {
		t.Errorf("the admin port answers without a certificate: %s %v", resp.Status, resp.Body.Close())
	}
	ask := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.probes.ln.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text strings.Builder
		if err := resp.Write(&text); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, text.String()
	}
	for path, want := range map[string]int{"GET /livez": 200, "HEAD /readyz": 200, "GET /readyz?verbose": 200, "GET /metrics": 404, "GET /": 404, "GET /debug/pprof/": 404, "POST /readyz": 405} {
		method, at, _ := strings.Cut(path, " ")
		if got, text := ask(method, at); got != want || strings.Contains(text, `"checks"`) {
			t.Errorf("%s: %d\n%s", path, got, text)
		}
	}
	s.why = "a secret of the fleet"
	if got, text := ask("GET", "/readyz?verbose"); got != 503 || strings.Contains(text, s.why) {
		t.Errorf("not ready: %d\n%s", got, text)
	}
}
