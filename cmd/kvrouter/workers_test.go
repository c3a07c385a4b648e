package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// logged is the log of a router.
type logged struct{ waittest.Log }

var adminPort = regexp.MustCompile(`msg="admin port" address=(\S+)`)

// admin returns the URL of the admin port that the log names.
func (l *logged) admin(t *testing.T) string {
	t.Helper()
	m := adminPort.FindStringSubmatch(l.String())
	if m == nil {
		t.Fatal("the log names no admin port")
	}
	return "http://" + m[1]
}

// askAs asks with a bearer token, and headers by name and value.
func askAs(t *testing.T, token, method, url, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
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
	return resp.StatusCode, string(data), resp.Header
}

// Without NATS workers come and go by operators at the admin port, and by a file.
func TestWorkersComeAndGoWithoutNATS(t *testing.T) {
	dir := t.TempDir()
	list, tokens := filepath.Join(dir, "workers"), filepath.Join(dir, "tokens")
	securetest.Replace(t, tokens, []byte("[{name: r, token: reader-0123456789abcdef, role: reader}, {name: o, token: operator-0123456789abcdef, role: operator}]"))
	securetest.Replace(t, list, []byte("[]"))
	log := new(logged)
	url, _ := startLogged(t, slog.New(slog.NewTextHandler(log, nil)), "--nats=none", "--kv-events=false", "--registry-workers="+list,
		"--tokens-file="+tokens, "--admin-listen=127.0.0.1:0")
	admin := log.admin(t)
	const reader, operator = "reader-0123456789abcdef", "operator-0123456789abcdef"
	served := func(want int, by string) {
		t.Helper()
		waittest.Until(t, func() error {
			status, text, header := askAs(t, reader, "POST", url+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":1}`)
			if status != want || header.Get("X-Kvatlas-Worker") != by {
				return fmt.Errorf("%d by %q, %s, want %d by %q", status, header.Get("X-Kvatlas-Worker"), text, want, by)
			}
			return nil
		})
	}
	worker := func(id int) string {
		return fmt.Sprintf(`{"worker_id":%d,"model":"m","block_size":4,"transport":"none","endpoints":{"http":%q}}`, id, engine(t, mockapi.Config{}))
	}
	served(404, "")
	body := worker(1)
	if status, text, _ := askAs(t, reader, "POST", admin+"/register", body); status != 403 {
		t.Errorf("a reader registers: %d %s", status, text)
	}
	if status, text, _ := askAs(t, operator, "POST", admin+"/register", strings.Replace(body, "127.0.0.1", "10.9.8.7", 1)); status != 403 || !strings.Contains(text, "--registry-allow") {
		t.Errorf("an address that is not allowed: %d %s", status, text)
	}
	if status, text, _ := askAs(t, operator, "POST", admin+"/register", body); status != 201 {
		t.Fatalf("%d %s", status, text)
	}
	served(200, "1")
	if status, text, _ := askAs(t, reader, "POST", admin+"/drain", `{"worker_id":1}`); status != 403 {
		t.Errorf("a reader drains: %d %s", status, text)
	}
	if status, text, _ := askAs(t, operator, "POST", admin+"/drain", `{"worker_id":1}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	served(503, "")
	if status, text, _ := askAs(t, operator, "POST", admin+"/resume", `{"worker_id":1}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	served(200, "1")
	if status, text, _ := askAs(t, operator, "POST", admin+"/unregister", `{"worker_id":1,"model":"m"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	served(503, "") // the model is known, and nobody serves it

	two, three := worker(2), worker(3)
	securetest.Replace(t, list, []byte("["+two+","+three+"]"))
	served(200, "2")
	served(200, "3")
	securetest.Replace(t, list, []byte("[{worker_id: 2"))
	waittest.Until(t, func() error {
		if status, text, _ := ask("GET", url+"/readyz?verbose", ""); status != 200 || !strings.Contains(text, "--registry-workers is not taken") || strings.Count(text, `"name":"workers"`) != 1 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	if text := log.String(); !strings.Contains(text, "a changed file is not taken") {
		t.Error("the log says nothing of a damaged file")
	}
	served(200, "2")
	securetest.Replace(t, list, []byte("["+three+"]"))
	for range 20 {
		served(200, "3")
	}
	waittest.Until(t, func() error {
		if _, text, _ := ask("GET", url+"/readyz?verbose", ""); strings.Contains(text, "is not taken") {
			return errors.New(text)
		}
		return nil
	})
}
