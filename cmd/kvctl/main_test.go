package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
	"github.com/kvatlas/kvatlas/registry"
)

// asProgram makes the test binary be kvctl, so that the tests run the real
// program as a process of its own.
const asProgram = "RUN_AS_KVCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// kvctl runs the program and returns its exit code and what it printed.
func kvctl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...) //nolint:gosec // this very binary
	cmd.Env = []string{asProgram + "=1", progtest.NoSleep, "HOME=/nonexistent", "USER=op"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestWorkers(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // the test is over
	lives, err := registry.Register(ctx, registry.Worker{ID: 7, Model: "org/model", BlockSize: 16, Group: "g", Ranks: []uint32{0, 1},
		Transport: registry.JetStream, HashScheme: "other"}, registry.AnnounceConfig{Conn: b.Conn()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"worker list", 0, "7       live   org/model  16          g      0,1    aggregated  jetstream", ""},
		{"worker list", 0, "never match", ""},
		{"worker drain 7", 0, "worker 7 is drained", ""},
		{"worker drain 7", 4, "", "worker 7 is drained: already so"},
		{"worker list", 0, "live, drained", ""},
		{"worker list", 0, "drained by op", ""},
		{"worker resume 7", 0, "gets requests again", ""},
		{"worker resume 7", 4, "", "is not drained"},
		{"worker drain vllm-0", 3, "", "no such worker is registered; --force"},
		{"worker drain vllm-0 --force", 0, "it is not registered", ""},
		{"worker list", 0, "unregistered, drained", ""},
		{"worker remove vllm-0", 0, "is removed", ""},
		{"worker remove vllm-0", 3, "", "no such worker"},
		{"worker remove 7", 4, "", "would be back with its next heartbeat"},
		{"worker remove 7 --force", 0, "is removed", ""},
		{"worker drain", 2, "", "takes one worker"},
		{"worker list 7", 2, "", "takes no argument"},
		{"worker fire 7", 2, "", `no command "fire"`},
		{"workers", 2, "", `"workers" is no whole command; give one of`},
		{"", 2, "", "give one of"},
		{"worker list --namespace a.b", 2, "", "a.b"},
		{"worker list --nats nats://127.0.0.1:1 --wait 200ms", 1, "", "check the address"},
		{"worker list --data-dir " + dir + "/none --wait 200ms", 1, "", "no process runs a NATS server"},
	} {
		args := append([]string{"--data-dir", dir}, strings.Fields(c.args)...)
		code, stdout, stderr := kvctl(t, args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || code == 0 && stderr != "" {
			t.Errorf("kvctl %s: exit code %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"worker drain 7 --force", 0, `{"done":"drain","registered":`},
		{"worker drain 7 --force", 4, `{"error":"`}, {"worker resume 7", 0, `{"done":"resume"`}, {"worker fire 7", 2, `{"error":"no command`},
	} {
		code, stdout, stderr := kvctl(t, append([]string{"--json", "--data-dir", dir}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.HasPrefix(stdout, c.want) || stderr != "" || !json.Valid([]byte(stdout)) {
			t.Errorf("kvctl --json %s: exit code %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
	}
	if _, err := os.Stat(dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("it made a data directory: %v", err)
	}
	if err := lives.Update(ctx, lives.Worker()); err != nil { // it is back after the removal by force
		t.Fatal(err)
	}
	_, stdout, _ := kvctl(t, "worker", "list", "--json", "--data-dir", dir, "--model=org/model")
	var list struct {
		Workers []struct {
			ID    string `json:"worker_id"`
			State string
			Lease float64 `json:"lease_seconds"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.Workers) != 1 || list.Workers[0].ID != "7" ||
		list.Workers[0].State != "live" || list.Workers[0].Lease != 15 {
		t.Errorf("%v: %s", err, stdout)
	}
	if _, stdout, _ := kvctl(t, "worker", "list", "--data-dir", dir, "--model=none"); strings.Contains(stdout, "org/model") {
		t.Error(stdout)
	}
	if err := lives.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestReady(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	var now atomic.Pointer[answer]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL)
		}
		a := now.Load()
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(a.body))
	}))
	defer s.Close()
	for _, c := range []struct {
		status int
		body   string
		args   string
		code   int
		stdout string
		stderr string
	}{
		{200, "{}", "ready " + s.URL, 0, "ready\n", ""},
		{200, "{}", "ready --json " + s.URL, 0, `"ready":true`, ""},
		{503, "catching up", "ready " + s.URL, 1, "", "not ready: catching up"},
		{503, "catching up", "ready --json " + s.URL, 1, `"reason":"catching up"`, ""},
		{404, "", "ready " + s.URL, 1, "", "answers 404"},
		{200, "", "ready http://127.0.0.1:1", 1, "", "asking"},
		{200, "", "ready 127.0.0.1:8090", 2, "", "is no URL"},
		{200, "", "ready", 2, "", "give one of"},
	} {
		now.Store(&answer{c.status, c.body})
		code, stdout, stderr := kvctl(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit code %d, want %d: %s%s", c.args, code, c.code, stdout, stderr)
		}
	}
	code, stdout, _ := kvctl(t, "--help")
	if code != 0 || !strings.Contains(stdout, "Exit codes: 0 done") || !strings.Contains(stdout, "ready <url>") {
		t.Errorf("%d: %s", code, stdout)
	}
}
