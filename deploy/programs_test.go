package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/progtest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// bin are the programs, built as the image has them but for paths and versions, and
// the server of the compose file's image, by the version in go.mod. TestMain closes it.
var bin = &progtest.Programs{Root: "..", Packages: []string{
	"./cmd/kvindexer", "./cmd/kvrouter", "./cmd/kvpublisher", "./cmd/kvpods", "./cmd/kvmocker", "./cmd/kvctl", "github.com/nats-io/nats-server/v2",
}}

func TestMain(m *testing.M) {
	code := m.Run()
	bin.Close()
	os.Exit(code)
}

// program returns the path of a program.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := bin.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// accepts fails the test if the program does not accept the arguments and
// variables.
func accepts(t *testing.T, name string, args, env []string) {
	t.Helper()
	cmd := exec.Command(program(t, name), append([]string{"config", "check"}, args...)...)
	cmd.Env = append([]string{"HOME=/nonexistent"}, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %v with %v: %v\n%s", name, args, env, err, out)
	}
}

// process is a running program.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *waittest.Log
	done chan error
}

// start runs a command until the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return run(t, exec.Command(program(t, name), args...))
}

func run(t *testing.T, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, log: new(waittest.Log), done: make(chan error, 1)}
	cmd.Env = append([]string{"HOME=/nonexistent", "KVATLAS_ADMIN_LISTEN=127.0.0.1:0"}, env...) // other tests run too
	cmd.Stderr = p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { p.done <- cmd.Wait(); close(ended) }() // ends with the process
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, p.log)
		}
	})
	return p
}

// stop asks the program to end and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case err := <-p.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(waittest.Patience):
		p.t.Fatal("it does not end")
		return 0
	}
}

// address waits for the address that the program writes to the file.
func (p *process) address(file string) string {
	p.t.Helper()
	var text string
	p.eventually(func() error {
		data, err := os.ReadFile(file)
		text = "http://" + strings.TrimSpace(string(data))
		return err
	})
	return text
}

// adminAddress waits until the program, which logs JSON, says where its admin
// port is.
func (p *process) adminAddress() string {
	p.t.Helper()
	var text string
	p.eventually(func() error {
		for line := range strings.Lines(p.log.String()) {
			var l struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "admin port" {
				text = "http://" + l.Address
				return nil
			}
		}
		return errors.New("the admin port's address is not logged")
	})
	return text
}

func (p *process) eventually(f func() error) {
	p.t.Helper()
	waittest.Until(p.t, f)
}

// get returns the body of an answer with status 200.
func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, body)
	}
	return string(body), err
}
