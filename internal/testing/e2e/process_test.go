package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
)

// binaries are the programs. TestMain closes it.
var binaries = &progtest.Programs{Root: filepath.Join("..", "..", ".."), Packages: []string{
	"./cmd/kvctl", "./cmd/kvpods", "./cmd/kvindexer", "./cmd/kvmocker", "./cmd/kvpublisher", "./cmd/kvrouter", "./internal/testing/e2e/judge",
}}

func TestMain(m *testing.M) {
	natstest.RunServer()
	code := m.Run()
	binaries.Close()
	os.Exit(code)
}

// process is a running program. Its standard error is logged if the test fails.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	stdout io.ReadCloser
	stderr string         // file
	lines  *bufio.Scanner // of stdout
	done   chan struct{}  // closed when it has ended
	err    error          // how; valid when done is closed
}

// start starts a program with its own home, away from the user's settings. It
// is killed at the end of the test if it still runs.
func start(t *testing.T, home, name string, args ...string) *process {
	t.Helper()
	dir, err := binaries.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return startPath(t, home, filepath.Join(dir, name), args...)
}

// startPath is start for the program of a path.
func startPath(t *testing.T, home, path string, args ...string) *process {
	t.Helper()
	name := filepath.Base(path)
	stderr, err := os.CreateTemp(home, name+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, stderr: stderr.Name(), cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home}
	p.cmd.Stderr = stderr
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout, p.lines, p.cmd.Stdout = read, bufio.NewScanner(read), write
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close() // the child has it
	go func() {       // ends with the process
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		_, _ = read.Close(), stderr.Close()
		if t.Failed() {
			text, _ := os.ReadFile(stderr.Name())
			t.Logf("standard error of %s, its end:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return p
}

// logged returns a field of the process's first log line with the message.
func (p *process) logged(msg, field string) (value string) {
	p.t.Helper()
	eventually(p.t, time.Minute, func() error {
		text, err := os.ReadFile(p.stderr)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if _, rest, found := strings.Cut(line, `msg="`+msg+`"`); found {
				_, value, _ = strings.Cut(rest, " "+field+"=")
				value, _, _ = strings.Cut(strings.TrimSpace(value), " ")
				return nil
			}
		}
		return fmt.Errorf("%s has not logged %q", p.name, msg)
	})
	return value
}

// wait waits for the process to end well.
func (p *process) wait(within time.Duration) {
	p.t.Helper()
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Fatalf("%s: %v", p.name, p.err)
		}
	case <-time.After(within):
		p.t.Fatalf("%s has not ended within %v", p.name, within)
	}
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end and waits until it has, with exit code 0.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.wait(time.Minute)
}

// eventually waits until f returns nil.
func eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %v", within, err)
		}
	}
}

// indexer is a running kvindexer.
type indexer struct {
	*process
	url string
}

// startIndexer starts kvindexer with an embedded server and waits until it is
// ready.
func startIndexer(t *testing.T, home string, flags ...string) indexer {
	t.Helper()
	address := filepath.Join(home, "address")
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	in := indexer{process: start(t, home, "kvindexer", append([]string{"--data-dir", filepath.Join(home, "data"),
		"--nats-max-store=64GiB", // not a share of what the disk has free: streams only set it aside
		"--http-listen", "127.0.0.1:0", "--address-file", address}, flags...)...)}
	eventually(t, 30*time.Second, func() error {
		select {
		case <-in.done:
			t.Fatalf("kvindexer has ended: %v", in.err)
		default:
		}
		text, err := os.ReadFile(address)
		if err != nil {
			return err
		}
		in.url = "http://" + strings.TrimSpace(string(text))
		_, err = get(t.Context(), in.url+"/readyz")
		return err
	})
	return in
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, res.Status, body)
	}
	return body, err
}

// drained waits until the indexer has applied so many events and lags behind
// nothing.
func (in indexer) drained(events int64) {
	in.t.Helper()
	eventually(in.t, 3*time.Minute, func() error {
		text, err := get(in.t.Context(), in.url+"/metrics")
		if err != nil {
			return err
		}
		applied := sum(text, "kvatlas_ingest_events_total")
		lag := sum(text, "kvatlas_ingest_lag_messages") + sum(text, "kvatlas_ingest_in_flight_messages")
		if applied != float64(events) || lag != 0 {
			return fmt.Errorf("%.0f of %d events applied, %.0f messages behind", applied, events, lag)
		}
		return nil
	})
}

// sum adds a metric up over its labels, those series of it that have the label if
// one is given.
func sum(text []byte, name string, label ...string) (total float64) {
	for line := range bytes.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if family, labels, _ := strings.Cut(series, "{"); family == name && strings.Contains(labels, strings.Join(label, "")) {
			v, _ := strconv.ParseFloat(value, 64)
			total += v
		}
	}
	return total
}

// startMocker starts kvmocker on the indexer's embedded server.
func startMocker(t *testing.T, home string, args ...string) *process {
	t.Helper()
	return start(t, home, "kvmocker", append([]string{"--data-dir", filepath.Join(home, "data"), "--progress", "json"}, args...)...)
}

// progress calls f for each progress line until it returns false or the lines
// end, and returns the last one.
func (p *process) progress(f func(mocker.Progress) bool) (last mocker.Progress) {
	p.t.Helper()
	for p.lines.Scan() {
		last = mocker.Progress{}
		if err := json.Unmarshal(p.lines.Bytes(), &last); err != nil {
			p.t.Fatalf("progress line %s: %v", p.lines.Bytes(), err)
		}
		if !f(last) {
			break
		}
	}
	return last
}

// judged runs the judge and returns its verdict, which is free of differences.
func judged(t *testing.T, home string, args ...string) (v Verdict) {
	t.Helper()
	p := start(t, home, "judge", args...)
	out, err := io.ReadAll(p.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil && len(out) > 0 {
		t.Fatalf("verdict %s: %v", out, err)
	}
	if v.Differences > 0 {
		t.Fatalf("%d answers differ from the oracle's; the first: %s", v.Differences, v.First)
	}
	p.wait(time.Minute)
	return v
}
