package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A server without JetStream is no use to any program: each ends, as for wrong settings,
// and says what to do.
func TestWithoutJetStreamProgramsSayWhatToDo(t *testing.T) {
	lists, dir := listed(t)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start() // ends with Shutdown
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(waittest.Patience) {
		t.Fatal("the server does not start")
	}
	for _, l := range lists {
		if l.Program == "kvpods" {
			continue // it has nothing of NATS
		}
		ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
		cmd := exec.CommandContext(ctx, filepath.Join(dir, l.Program), append(start(&l), "--nats="+s.ClientURL())...) //nolint:gosec // our own programs
		cmd.Env = []string{"HOME=" + t.TempDir()}
		out, _ := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "start it with -js") {
			t.Errorf("%s: exit %d\n%s", l.Program, code, out)
		}
	}
}
