package enginetest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
)

// patience is how long a publisher may take to start, or to publish a history.
const patience = 2 * time.Minute

// Harness is the program that runs the engines' own publishers.
type Harness struct {
	python, script, cache string
}

// Open finds the harness, or skips the test: without KVATLAS_TEST_ENGINES=1 it
// does not run, as it downloads the releases' packages. `make test-engines`
// sets that and the rest: KVATLAS_ENGINES (the folder of engine_publisher.py,
// an absolute path), KVATLAS_ENGINES_PYTHON (with pyzmq, msgspec and pydantic)
// and KVATLAS_ENGINES_CACHE (where the packages are kept).
func Open(t testing.TB) *Harness {
	t.Helper()
	if os.Getenv("KVATLAS_TEST_ENGINES") != "1" {
		t.Skip("the engines' own publishers run with `make test-engines` only: it downloads their packages")
	}
	h := &Harness{
		python: os.Getenv("KVATLAS_ENGINES_PYTHON"),
		script: filepath.Join(os.Getenv("KVATLAS_ENGINES"), "engine_publisher.py"),
		cache:  os.Getenv("KVATLAS_ENGINES_CACHE"),
	}
	if _, err := os.Stat(h.script); err != nil {
		t.Skipf("KVATLAS_ENGINES does not name the folder of engine_publisher.py: %v", err)
	}
	if h.python == "" || h.cache == "" {
		t.Skip("KVATLAS_ENGINES_PYTHON or KVATLAS_ENGINES_CACHE is not set; use `make test-engines`")
	}
	return h
}

// Fetch downloads the release, or skips the test if it is not to be had.
func (h *Harness) Fetch(t testing.TB, r Release) {
	t.Helper()
	// Printing its test vectors makes the harness load the release.
	if out, err := exec.Command(h.python, h.script, "vectors", "--engine", r.Name, "--cache", h.cache).CombinedOutput(); err != nil {
		t.Skipf("%s cannot be fetched or loaded: %v\n%s", r.Name, err, out[max(0, len(out)-2000):])
	}
}

// Publisher says how one rank publishes.
type Publisher struct {
	Release  Release
	Rank     uint32
	Topic    string
	Drop     []uint64 // numbers of batches that subscribers do not get
	Endpoint string   // of rank 0; empty: ports that are free
	Replay   string   // of rank 0
}

// Process is a publisher that runs.
type Process struct {
	Publisher
	RankEndpoint, RankReplay string // of its own rank

	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	lines  chan string
	once   sync.Once
}

// Start runs a publisher and waits until it listens. It is killed when the test
// ends. Start those of one release one after the other: they share a file.
func (h *Harness) Start(t testing.TB, p Publisher) *Process {
	t.Helper()
	if p.Endpoint == "" {
		p.Endpoint, p.Replay = freeEndpoint(t, p.Rank), freeEndpoint(t, p.Rank)
	}
	var drop []string
	for _, n := range p.Drop {
		drop = append(drop, strconv.FormatUint(n, 10))
	}
	proc := &Process{Publisher: p, t: t, lines: make(chan string, 1)}
	var err error
	if proc.RankEndpoint, err = zmqfeed.RankEndpoint(p.Endpoint, p.Rank); err != nil {
		t.Fatal(err)
	}
	if proc.RankReplay, err = zmqfeed.RankEndpoint(p.Replay, p.Rank); err != nil {
		t.Fatal(err)
	}
	// It waits for the test rather than for the clock, and stays until killed.
	proc.cmd = exec.Command(h.python, h.script, "publish", "--engine", p.Release.Name, "--cache", h.cache,
		"--endpoint", p.Endpoint, "--replay", p.Replay, "--rank", strconv.FormatUint(uint64(p.Rank), 10),
		"--topic", p.Topic, "--drop", strings.Join(drop, ","), "--wait", "0", "--hold", "3600")
	proc.cmd.Stderr = &proc.stderr
	if proc.stdin, err = proc.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := proc.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proc.Kill)
	go func() {
		defer close(proc.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			proc.lines <- s.Text()
		}
	}()
	for _, endpoint := range []string{proc.RankEndpoint, proc.RankReplay} {
		proc.listening(endpoint)
	}
	return proc
}

// listening waits until something listens at the endpoint.
func (p *Process) listening(endpoint string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		nc, err := net.DialTimeout("tcp", strings.TrimPrefix(endpoint, "tcp://"), time.Second)
		if err == nil {
			_ = nc.Close() // it has shown what it was for
			return
		}
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.Kill()
				p.t.Fatalf("%s has ended: %s", p.Release.Name, p.stderr.String())
			}
			p.t.Fatalf("%s says %q before it was told anything", p.Release.Name, line)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not listen at %s: %v", p.Release.Name, endpoint, err)
		}
	}
}

// Publish makes the process publish the batches.
func (p *Process) Publish(batches []Batch) {
	p.t.Helper()
	for _, b := range batches {
		if _, err := p.stdin.Write(b.Line); err != nil {
			p.Kill()
			p.t.Fatalf("%s takes no more batches: %v\n%s", p.Release.Name, err, p.stderr.String())
		}
	}
}

// End tells the process that there is no more, and waits until it has taken
// everything. It stays, to replay.
func (p *Process) End(batches int) {
	p.t.Helper()
	if err := p.stdin.Close(); err != nil {
		p.t.Fatal(err)
	}
	select {
	case line := <-p.lines:
		if want := fmt.Sprintf(`{"published_batches": %d}`, batches); line != want {
			p.Kill()
			p.t.Fatalf("%s says %q, want %q\n%s", p.Release.Name, line, want, p.stderr.String())
		}
	case <-time.After(patience):
		p.t.Fatalf("%s has not published %d batches", p.Release.Name, batches)
	}
}

// Kill ends the process at once and waits for its end.
func (p *Process) Kill() {
	p.once.Do(func() {
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		for range p.lines {  // its output is read before it is waited for
		}
		p.cmd.Wait() //nolint:errcheck // killed
	})
}

// freeEndpoint returns rank 0's endpoint for a rank whose port is free.
func freeEndpoint(t testing.TB, rank uint32) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it has given its port
	port := l.Addr().(*net.TCPAddr).Port - int(rank)
	return fmt.Sprintf("tcp://127.0.0.1:%d", port)
}
