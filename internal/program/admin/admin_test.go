package admin

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

const (
	reader   = "reader-0123456789abcdef"
	tenant   = "tenant-0123456789abcdef"
	operator = "operator-0123456789abcdef"
)

// started is an admin port of a test.
type started struct {
	*Server
	t     *testing.T
	level *slog.LevelVar
	why   string // it is not ready; "" if it is
}

func start(t *testing.T, c Settings, access secure.Settings) *started {
	t.Helper()
	a, err := access.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &started{t: t, level: new(slog.LevelVar)}
	set := conf.New("test", "A test.")
	var secret, plain string
	set.String(&plain, "plain", "shown", "A setting.")
	set.String(&secret, "where", "user:hidden@host", "A secret.", conf.Secret())
	if _, err := set.Run(nil, nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	s.Server, err = Start(t.Context(), c, Deps{
		Access: a, Metrics: obs.NewMetrics(), Settings: set, Level: s.level, Log: slog.New(slog.DiscardHandler),
		Health: &edge.Health{Checks: []edge.Check{{Name: "test", Reason: func() string { return s.why }}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *started) do(method, path, body, token string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.Address()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	checkExchange(s.t, apitest.Exchange{Method: method, Path: path, Request: []byte(body), Status: resp.StatusCode,
		AnswerType: resp.Header.Get("Content-Type"), Answer: data})
	return resp.StatusCode, string(data)
}

func TestThePortShowsAndChanges(t *testing.T) {
	s := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{})
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz?verbose": `{"name":"test","ok":true}]`, "/readyz": `{"status":"ready"}`, "/version": `"go":"go1`, "/metrics": "# TYPE kvatlas_build_info",
		"/config": `plain: "shown"`, "/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/symbol": "num_symbols", "/debug/pprof/profile?seconds=1": "", "/debug/pprof/trace?seconds=0.01": "go 1.",
	} {
		if status, got := s.do("GET", path, "", ""); status != 200 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %.300s, want %q", path, status, got, want)
		}
	}
	if _, got := s.do("GET", "/config", "", ""); strings.Contains(got, "hidden") {
		t.Errorf("a secret is shown: %s", got)
	}
	s.why = "a test"
	if status, got := s.do("GET", "/readyz?verbose", "", ""); status != 503 || !strings.Contains(got, `"reason":"a test"`) {
		t.Errorf("not ready: %d %s", status, got)
	}
	for _, path := range []string{"/debug/pprof/cmdline", "/debug/pprof/none"} { // the command line may hold secrets
		if status, got := s.do("GET", path, "", ""); status != 404 {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	if status, got := s.do("PUT", "/log_level", `{"level":"debug"}`, ""); status != 200 || !strings.Contains(got, "DEBUG") || s.level.Level() != slog.LevelDebug {
		t.Errorf("%d %s", status, got)
	}
	for _, body := range []string{`{"level":"loud"}`, `{`, `{"x":1}`, `{"level":"` + strings.Repeat("x", 2000) + `"}`} {
		if status, _ := s.do("PUT", "/log_level", body, ""); status != 400 || s.level.Level() != slog.LevelDebug {
			t.Errorf("%.30s: %d", body, status)
		}
	}
	if status, _ := s.do("DELETE", "/log_level", "", ""); status != 405 {
		t.Errorf("DELETE: %d", status)
	}
}

func TestThePortAsksWhoItIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	tokens := fmt.Sprintf("- {token: %s, role: reader}\n- {token: %s, role: operator, tenant: x}\n- {token: %s, role: operator}\n", reader, tenant, operator)
	if err := os.WriteFile(path, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{TokensFile: path})
	for route, want := range map[string][5]int{ // without, wrong, reader, tenant, operator
		"GET /livez": {200, 200, 200, 403, 200}, "GET /metrics": {401, 401, 200, 403, 200}, "GET /config": {401, 401, 403, 403, 200},
		"PUT /log_level": {401, 401, 403, 403, 400}, "GET /debug/pprof/": {401, 401, 403, 403, 200}, "GET /debug/pprof/heap": {401, 401, 403, 403, 200},
	} {
		method, path, _ := strings.Cut(route, " ")
		for i, token := range []string{"", "wrong-0123456789abcdef", reader, tenant, operator} {
			if route == "GET /livez" && token == tenant {
				continue // no token is looked at
			}
			if status, got := s.do(method, path, "", token); status != want[i] {
				t.Errorf("%s with %q: %d %.100s, want %d", route, token, status, got, want[i])
			}
		}
	}
}

func TestATakenPort(t *testing.T) {
	first := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{})
	// The address that nobody asked for gives way.
	second := start(t, Settings{Listen: first.Address(), Usual: first.Address()}, secure.Settings{})
	if second.Address() == first.Address() {
		t.Error("both have one address")
	}
	a := new(secure.Access)
	if _, err := Start(t.Context(), Settings{Listen: first.Address()}, Deps{Access: a, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("an address that was asked for gave way")
	}
	if s, err := Start(t.Context(), Settings{}, Deps{Access: a}); s != nil || err != nil || s.Close() != nil {
		t.Errorf("without an address: %v %v", s, err)
	}
	_, err := Start(t.Context(), Settings{Listen: "0.0.0.0:0"}, Deps{Access: a, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--admin-listen") {
		t.Errorf("it listens to everybody: %v", err)
	}
	var c Settings
	set := conf.New("test", "A test.")
	c.Declare(set, "127.0.0.1:1")
	var out bytes.Buffer
	if _, err := set.Run([]string{"--admin-listen="}, nil, &out); err != nil || c.Listen != "" {
		t.Errorf("%v %q", err, c.Listen)
	}
	for _, asked := range []bool{false, true} {
		var args []string
		if asked {
			args = []string{"--admin-listen", first.Address()}
		}
		var c Settings
		set := conf.New("test", "A test.")
		c.Declare(set, first.Address())
		if _, err := set.Run(args, nil, &out); err != nil {
			t.Fatal(err)
		}
		s, err := Start(t.Context(), c, Deps{Access: a, Log: slog.New(slog.DiscardHandler), Settings: set})
		if (err != nil) != asked {
			t.Errorf("the usual address, asked for %v, is taken: %v", asked, err)
		}
		if s != nil {
			_ = s.Close()
		}
	}
}
