package query

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
	"github.com/kvatlas/kvatlas/registry"
)

// The tokens of serveGuarded.
const (
	tokenReader   = "reader-0123456789abcdef"
	tokenOperator = "operator-0123456789abcdef"
	tokenTenant   = "tenant-0123456789abcdef"
	tokenBoss     = "tenants-operator-0123456789"
	tokenDefault  = "default-group-0123456789"
	tokenExpired  = "expired-0123456789abcdef"
)

func access(t testing.TB, c secure.Settings) *secure.Access {
	t.Helper()
	a, err := c.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// serveGuarded serves twoSpaces with a registry, to callers with tokens.
func serveGuarded(t *testing.T, flags ...string) (*served, *fakeRegistry) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	var content strings.Builder
	for token, rest := range map[string]string{
		tokenReader: "role: reader", tokenOperator: "role: operator", tokenTenant: "role: reader, tenant: g",
		tokenBoss: "role: operator, tenant: g", tokenDefault: "role: reader, tenant: ''", tokenExpired: "role: operator, expires: 2020-01-01T00:00:00Z",
	} {
		fmt.Fprintf(&content, "- {name: n, token: %s, %s}\n", token, rest)
	}
	if err := os.WriteFile(path, []byte(content.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := &fakeRegistry{asked: make(chan string, 100)}
	for id, group := range map[uint64]string{7: "g", 8: ""} {
		w := registry.Worker{ID: id, Model: "m", BlockSize: 4, Group: group, Transport: registry.JetStream, Role: registry.Decode}
		reg.entries = append(reg.entries, registry.Entry{Worker: w, Key: w.Key()})
	}
	return serveDeps(t, testConfig(t, flags...), Deps{Index: twoSpaces(), Registry: func() Registry { return reg }, Access: access(t, secure.Settings{TokensFile: path})}), reg
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// TestEveryRouteAsksWhoItIs tries every route with every kind of credential.
func TestEveryRouteAsksWhoItIs(t *testing.T) {
	s, reg := serveGuarded(t, "--http-slow-query=1ns")
	for _, r := range routes() {
		method, body := "GET", ""
		if r.post {
			method, body = "POST", `{"model":"m"}`
		}
		for token, role := range map[string]secure.Role{
			"": secure.Anybody, "wrong-0123456789abcdef": secure.Anybody, tokenExpired: secure.Anybody,
			tokenReader: secure.Reader, tokenOperator: secure.Operator,
		} {
			var headers []string
			if token != "" {
				headers = bearer(token)
			}
			resp, data := s.do(t, method, r.path, body, headers...)
			want := 0 // whatever the route has to say
			switch {
			case role >= r.needs:
			case role == secure.Anybody:
				want = 401
			default:
				want = 403
			}
			if refused := resp.StatusCode == 401 || resp.StatusCode == 403; refused != (want != 0) || refused && resp.StatusCode != want {
				t.Errorf("%s with %q: %d %s, want %d", r.path, token, resp.StatusCode, data, want)
			}
			if resp.StatusCode == 401 && resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: no challenge", r.path)
			}
		}
	}
	for len(reg.asked) > 0 {
		<-reg.asked
	}
	if s.counter(`kvatlas_http_refused_total{reason="unauthenticated"}`) == "0" || s.counter(`kvatlas_http_refused_total{reason="forbidden"}`) == "0" {
		t.Error("refusals are not counted")
	}
	if text := s.log.String(); strings.Contains(text, "0123456789") {
		t.Errorf("a token is in the log: %s", text)
	}
}

// TestTenantsSeeTheirOwn asks as two tenants: nothing of the other is to be
// seen, not even that it is there.
func TestTenantsSeeTheirOwn(t *testing.T) {
	s, reg := serveGuarded(t)
	text := func(token, method, path, body string, headers ...string) (int, string) {
		resp, data := s.do(t, method, path, body, append(headers, bearer(token)...)...)
		return resp.StatusCode, string(data)
	}
	find := func(token, fields string) string {
		_, data := text(token, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]`+fields+`}`)
		return data
	}
	if got := find(tokenTenant, ""); strings.Count(got, `"group"`) != 1 || !strings.Contains(got, `"group":"g"`) {
		t.Errorf("%s", got)
	}
	if got := find(tokenDefault, ""); strings.Count(got, `"group"`) != 1 || !strings.Contains(got, `"group":""`) {
		t.Errorf("%s", got)
	}
	for _, fields := range []string{`,"group":""`, `,"block_size":2`} {
		if got := find(tokenTenant, fields); strings.Contains(got, `"spaces"`) || strings.Contains(got, "2 ") {
			t.Errorf("%s: %s", fields, got)
		}
	}
	if _, got := text(tokenTenant, "POST", "/v1/find_matches", `{"model":"n\"é","hashes":[9]}`); !strings.Contains(got, "unknown_model") {
		t.Errorf("another tenant's model: %s", got)
	}
	_, got := text(tokenTenant, "POST", "/v1/find_matches?model=m", "\x01\x00\x00\x00\x00\x00\x00\x00", "Content-Type", "application/octet-stream")
	if spaces := readBinary(t, []byte(got)); len(spaces) != 1 || spaces[0].group != "g" {
		t.Errorf("%+v", spaces)
	}
	for _, path := range []string{"/v1/spaces", "/v1/workers", "/v1/workers?model=m"} {
		if _, got := text(tokenTenant, "GET", path, ""); strings.Count(got, `"group"`) != 1 || !strings.Contains(got, `"group":"g"`) || strings.Contains(got, `"8"`) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if _, got := text(tokenTenant, "POST", "/v1/explain", `{"model":"m","hashes":[1]}`); strings.Contains(got, `"group":""`) {
		t.Errorf("%s", got)
	}
	if _, got := text(tokenTenant, "POST", "/v1/find_matches/batch", `{"requests":[{"model":"m","hashes":[1]},{"model":"m","group":"","hashes":[1]}]}`); strings.Count(got, `"block_size":`) != 1 {
		t.Errorf("%s", got)
	}
	for body, status := range map[string]int{
		`{"model_name":"m","block_hashes":[1],"routing_group":"g"}`:       200,
		`{"model_name":"m","block_hashes":[1]}`:                           404, // the default group
		`{"model_name":"m","block_hashes":[1],"routing_group":"default"}`: 404,
		`{"model":"m","seq_hashes":[1],"block_size":4,"tenant_id":"g"}`:   200,
		`{"model":"m","seq_hashes":[1],"block_size":2}`:                   404,
	} {
		if got, data := text(tokenTenant, "POST", "/query_by_hash", body); got != status {
			t.Errorf("%s: %d %s, want %d", body, got, data, status)
		}
	}
	if status, _ := text(tokenTenant, "GET", "/metrics", ""); status != 403 {
		t.Errorf("a tenant sees everybody's metrics: %d", status)
	}
	if status, data := text(tokenBoss, "POST", "/drain", `{"worker_id":1}`); status != 403 || len(reg.asked) > 0 {
		t.Errorf("a tenant drains everybody's worker: %d %s", status, data)
	}
	// Who may register may do so for the own group only.
	for body, status := range map[string]int{
		`{"model_name":"m","routing_group":"g"}`:     201,
		`{"modelname":"m","tenant_id":"g"}`:          201,
		`{"model_name":"m","routing_group":"x"}`:     403,
		`{"model_name":"m","tenant_id":"g"}`:         403,
		`{"modelname":"m"}`:                          403,
		`{"modelname":"m","routing_group":"g"}`:      403,
		`{"model_name":"m","routing_group":"other"}`: 403,
	} {
		if got, data := text(tokenBoss, "POST", "/register", body); got != status {
			t.Errorf("%s: %d %s, want %d", body, got, data, status)
		}
	}
	for len(reg.asked) > 0 {
		<-reg.asked
	}
	for query, want := range map[string]string{"": "workers  g", "?routing_group=g": "workers  g", "?routing_group=default": ""} {
		_, data := text(tokenTenant, "GET", "/workers"+query, "")
		asked := ""
		select {
		case asked = <-reg.asked:
		default:
		}
		if asked != want || !json.Valid([]byte(data)) {
			t.Errorf("%q asked %q, want %q; %s", query, asked, want, data)
		}
	}
}

// TestTLSOnTheServer asks over TLS, with certificates on both sides.
func TestTLSOnTheServer(t *testing.T) {
	ca, dir := securetest.New(t), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	ca.Issue("server", path("cert"), path("key"))
	ca.Issue("client", path("client"), path("clientkey"))
	s := serveDeps(t, testConfig(t, "--http-max-connections=2"), Deps{Index: twoSpaces(),
		Access: access(t, secure.Settings{CertFile: path("cert"), KeyFile: path("key"), ClientCA: ca.File})})
	post := func(cfg *tls.Config) (string, error) {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, Timeout: time.Minute}
		resp, err := c.Post("https://"+s.addr+"/v1/find_matches", "application/json", strings.NewReader(`{"model":"m","hashes":[1]}`)) //nolint:noctx // the client has a timeout
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		return string(data), err
	}
	if got, err := post(ca.Client(path("client"), path("clientkey"))); err != nil || !strings.Contains(got, `"worker_id":"7"`) {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := post(ca.Client()); err == nil {
		t.Errorf("without a certificate: %s", got)
	}
	if answer := s.raw(t, "GET /v1/spaces HTTP/1.1\r\nHost: x\r\n\r\n"); strings.Contains(answer, "spaces") {
		t.Errorf("plain HTTP is answered: %q", answer)
	}
}

// TestAnotherTenantsIndexIsNotThere asks for a space of another group by name.
func TestAnotherTenantsIndexIsNotThere(t *testing.T) {
	v := &view{index: twoSpaces()}
	own := v.of("g").index
	if own.Space(event.Space{Model: "m", BlockSize: 2}) != nil || own.Space(event.Space{Model: "m", BlockSize: 4, Group: "g"}) == nil || len(own.Spaces()) != 1 {
		t.Error("a view shows more or less than its tenant's spaces")
	}
}

// Without tokens nobody's page in a browser changes the fleet, wherever the page is from;
// with them the token says who it is.
func TestPagesDoNotChangeTheFleet(t *testing.T) {
	reg := &fakeRegistry{asked: make(chan string, 9)}
	open := serveRegistry(t, &fakeIndex{}, reg)
	for _, path := range []string{"/register", "/unregister", "/drain", "/resume"} {
		got, body := open.do(t, "POST", path, "{}", "Content-Type", "text/plain", "Origin", "https://evil.example")
		if got.StatusCode != 403 || len(reg.asked) > 0 {
			t.Errorf("%s: %d %s, asked %d", path, got.StatusCode, body, len(reg.asked))
		}
	}
	guarded, reg := serveGuarded(t)
	if got, body := guarded.do(t, "POST", "/drain", "{}", append(bearer(tokenOperator), "Origin", "https://ours.example")...); got.StatusCode != 200 || len(reg.asked) != 1 {
		t.Errorf("with a token: %d %s", got.StatusCode, body)
	}
}
