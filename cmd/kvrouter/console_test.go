package main

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// The console is at / of the admin port and at /console/ of the other, with a reader's
// token; no route is hidden by it; and without it both are as they were.
func TestTheConsolesPorts(t *testing.T) {
	const reader = "a-0123456789abcdef"
	log := new(logged)
	url, stop := startLogged(t, slog.New(slog.NewTextHandler(log, nil)), "--nats=none", "--kv-events=false", "--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4",
		"--admin-listen=127.0.0.1:0", "--tokens-file="+tenantsFile(t, "  a: {requests: 1000}\n"))
	admin := log.admin(t)
	for _, at := range []string{url + "/console/", admin + "/"} {
		if status, text, header := ask("GET", at, ""); status != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/html") || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %.100s %v", at, status, text, header)
		}
		if status, _, _ := ask("GET", at+"api/settings", ""); status != 401 {
			t.Errorf("%s without a token: %d", at, status)
		}
		if status, text, _ := askAs(t, reader, "GET", at+"api/decisions", ""); status != 200 || text != "{\"decisions\":[]}\n" {
			t.Errorf("%s: %d %s", at, status, text)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"api/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+reader)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		seen, b := "", make([]byte, 1<<16)
		for strings.Count(seen, "event: overview") < 2 {
			n, err := resp.Body.Read(b)
			if seen += string(b[:n]); err != nil {
				t.Fatalf("%s: %v after %s", at, err, seen)
			}
		}
		t.Cleanup(func() { _, _ = io.Copy(io.Discard, resp.Body) })
	}
	for at, want := range map[string]string{
		url + "/console": "307", url + "/livez": "ok", url + "/v1/models": `"object"`, admin + "/livez": "ok", admin + "/v1/workers": `"spaces"`,
		admin + "/version": `"go"`, admin + "/metrics": "kvatlas_", admin + "/nowhere": "no such route", url + "/console/../v1/models": "no such file", url + "/console/nowhere": "no such file",
	} {
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+reader)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := resp.Status + resp.Header.Get("Location") + string(text); !strings.Contains(got, want) {
			t.Errorf("%s: %.200s, want %q", at, got, want)
		}
	}
	stop() // while both streams are read

	off := new(logged)
	url, _ = startLogged(t, slog.New(slog.NewTextHandler(off, nil)), "--nats=none", "--kv-events=false", "--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4",
		"--admin-listen=127.0.0.1:0", "--console=false", "--engine-administration=none")
	routes := []string{"GET /", "GET /index.html", "GET /main.js", "GET /style.css", "GET /icon.svg"}
	for _, r := range append(routes, apitest.Once(api.Console)(t).Routes()...) {
		method, path, _ := strings.Cut(strings.ReplaceAll(r, "{id}", "x-1"), " ")
		for _, at := range []string{url + "/console", off.admin(t)} {
			status, text, header := ask(method, at+path, "{")
			if status != 404 && (at == off.admin(t) || status != 403) || !strings.HasPrefix(header.Get("Content-Type"), "application/json") || !strings.Contains(text, `"error"`) {
				t.Errorf("%s %s%s: %d %.100s", method, at, path, status, text)
			}
		}
	}
}
