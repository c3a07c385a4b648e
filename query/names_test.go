package query

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

type aPage struct{}

func (aPage) Needs(string) secure.Role     { return secure.Reader }
func (aPage) Answer(*edge.Ask) *edge.Reply { return edge.ReplyJSON(1) }

// A page of a site whose name means this machine reads nothing of a port that asks nobody
// for a token: no route, and not the console. Probes come by any name, and so does who asks
// the routes at another server's port.
func TestAPageOfASiteOfThisMachine(t *testing.T) {
	s := serveDeps(t, testConfig(t), Deps{Index: twoSpaces(), Access: access(t, secure.Settings{HostNames: []string{"kv.example"}})})
	s.SetConsole(aPage{})
	get := func(path, host string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // nothing of it is read
		return resp.StatusCode
	}
	for host, want := range map[string]int{"evil.example": 403, "evil.example:8090": 403, "kv.example": 0, "localhost": 0, "127.0.0.1:1": 0} {
		for _, r := range append(routes(), route{path: "/console/", needs: secure.Reader}, route{path: "/nowhere", needs: secure.Reader}) {
			got := get(r.path, host)
			if refused := got == 403; refused != (want == 403 && r.needs > secure.Anybody) {
				t.Errorf("%s by %s: %d", r.path, host, got)
			}
		}
	}
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/v1/spaces", nil)
	if s.Handler().ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("at another server's port: %d", w.Code)
	}
}
