package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// asProgram makes the test binary be kvindexer, so that the tests run the real
// program as a process of its own.
const asProgram = "RUN_AS_KVINDEXER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a running kvindexer.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	exit chan error

	mu      sync.Mutex
	log     []string
	changed chan struct{} // closed and replaced at each line
}

// command returns a kvindexer that is not started, in an environment without
// settings.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...) //nolint:gosec // this very binary
	cmd.Env = []string{asProgram + "=1", progtest.NoSleep, "HOME=/nonexistent"}
	return cmd
}

// start runs kvindexer until the test ends and waits until it listens. What streams may set
// aside is not a share of what the disk has free.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, exit: make(chan error, 1), changed: make(chan struct{})}
	p.cmd = command(t.Context(), append([]string{"--http-listen=127.0.0.1:0", "--log-format=json", "--discover-every=20ms",
		"--nats-max-store=64GiB"}, args...)...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.mu.Lock()
			p.log = append(p.log, lines.Text())
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		p.exit <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		if t.Failed() {
			t.Logf("log of kvindexer %v:\n%s", args, strings.Join(p.lines(), "\n"))
		}
	})
	p.url = "http://" + p.waitLog("listening", "address")
	return p
}

func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

// waitLog waits for a log line with the message and returns its field.
func (p *process) waitLog(msg, field string) string {
	p.t.Helper()
	deadline := time.After(waittest.Patience)
	for {
		p.mu.Lock()
		changed, lines := p.changed, slices.Clone(p.log)
		p.mu.Unlock()
		for _, line := range lines {
			var l map[string]any
			if json.Unmarshal([]byte(line), &l) == nil && l["msg"] == msg {
				return fmt.Sprint(l[field])
			}
		}
		select {
		case <-changed:
		case err := <-p.exit:
			p.t.Fatalf("ended with %v before it logged %q:\n%s", err, msg, strings.Join(p.lines(), "\n"))
		case <-deadline:
			p.t.Fatalf("no log line %q in\n%s", msg, strings.Join(lines, "\n"))
		}
	}
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case err := <-p.exit:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(waittest.Patience):
		p.t.Fatal("kvindexer did not end")
		return 0
	}
}

// ask sends a request and returns the status and the body.
func (p *process) ask(method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// answers waits until the request gets the status and the text in its answer.
func (p *process) answers(method, path, body string, status int, text string) {
	p.t.Helper()
	waittest.Until(p.t, func() error {
		got, data, err := p.ask(method, path, body)
		if err == nil && (got != status || !strings.Contains(data, text)) {
			err = fmt.Errorf("%s %s: got %d %s, want %d and %q in it", path, body, got, data, status, text)
		}
		return err
	})
}

func (p *process) ready() { p.t.Helper(); p.answers("GET", "/readyz", "", 200, "ready") }

// join connects to the embedded server of a data directory.
func join(t *testing.T, dir string) *broker.Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if b.Owner() {
		t.Error("the test owns the server, not kvindexer")
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fleet publishes for a few workers, and tells the oracle the same.
type fleet struct {
	t      *testing.T
	space  event.Space
	pubs   []*publish.Publisher
	oracle *core.Oracle
	chains [][]uint64
	rand   *rand.Rand
}

const fleetWorkers, fleetRanks = 5, 2

func newFleet(t *testing.T, b *broker.Broker, change ...func(*publish.Config)) *fleet {
	t.Helper()
	f := &fleet{t: t, space: event.Space{Model: "org/model", BlockSize: 16, Group: "g"},
		oracle: core.NewOracle(), rand: rand.New(rand.NewPCG(3, 4))}
	for w := range fleetWorkers {
		cfg := publish.Config{Conn: b.Conn(), Space: f.space, Worker: uint64(w) + 1<<63, Log: slog.New(slog.DiscardHandler)}
		for _, f := range change {
			f(&cfg)
		}
		pub, err := publish.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), waittest.Patience) //nolint:usetesting // t's context has ended
			defer cancel()
			if err := pub.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		f.pubs = append(f.pubs, pub)
	}
	for range 20 { // chains that share prefixes
		chain := []uint64{f.rand.Uint64()}
		if len(f.chains) > 0 {
			old := f.chains[f.rand.IntN(len(f.chains))]
			chain = slices.Clone(old[:1+f.rand.IntN(len(old))])
		}
		for range 1 + f.rand.IntN(12) {
			chain = append(chain, f.rand.Uint64())
		}
		f.chains = append(f.chains, chain)
	}
	return f
}

// publish makes n random events and waits for their acknowledgements.
func (f *fleet) publish(n int) {
	f.t.Helper()
	for range n {
		w, rank := f.rand.IntN(fleetWorkers), uint32(f.rand.IntN(fleetRanks))
		chain := f.chains[f.rand.IntN(len(f.chains))]
		chain = chain[:1+f.rand.IntN(len(chain))]
		// The engine names a block by its sequence hash.
		names := blockhash.SequenceHashes(nil, chain)
		ev := event.Event{Kind: event.Stored, DPRank: rank, Engine: names, Local: chain, Tier: event.Tier(f.rand.IntN(3))}
		switch f.rand.IntN(20) {
		case 0:
			ev = event.Event{Kind: event.Cleared, DPRank: rank, AllTiers: true}
		case 1, 2, 3, 4, 5, 6:
			ev.Kind, ev.Local, ev.Engine = event.Removed, nil, names[len(names)-1:]
		}
		if err := f.pubs[w].Publish(f.t.Context(), ev); err != nil {
			f.t.Fatal(err)
		}
		h := core.Holder(w*fleetRanks) + rank
		switch ev.Kind {
		case event.Stored:
			f.oracle.Store(h, &ev, false)
		case event.Removed:
			f.oracle.Remove(h, &ev, false)
		case event.Cleared:
			f.oracle.Clear(h, ev.Tier, ev.AllTiers)
		}
	}
	for _, p := range f.pubs {
		if err := p.Flush(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
}

// compare waits until every prompt gets the oracle's answer.
func (f *fleet) compare(p *process) {
	f.t.Helper()
	var m core.Matches
	for _, chain := range f.chains {
		want := map[string][event.NumTiers]uint32{}
		f.oracle.Find(chain, &m)
		for t := range event.Tier(event.NumTiers) {
			m.Each(t, func(h core.Holder, depth uint32) {
				id := fmt.Sprint(uint64(h/fleetRanks)+1<<63, "/", h%fleetRanks)
				d := want[id]
				d[t] = depth
				want[id] = d
			})
		}
		var body strings.Builder
		body.WriteString(`{"model":"org/model","hashes":[`)
		for i, h := range chain {
			if i > 0 {
				body.WriteByte(',')
			}
			body.WriteString(strconv.FormatUint(h, 10))
		}
		body.WriteString("]}")
		waittest.Until(f.t, func() error {
			status, data, err := p.ask("POST", "/v1/find_matches", body.String())
			if err != nil {
				return err
			}
			have, err := holders(data)
			if err != nil || status != 200 || fmt.Sprint(have) != fmt.Sprint(want) {
				return fmt.Errorf("status %d, error %w:\n have %v\n want %v", status, err, have, want)
			}
			return nil
		})
	}
}

// holders reads the ranks of an answer with one space.
func holders(data string) (map[string][event.NumTiers]uint32, error) {
	var m struct {
		Spaces []struct {
			Workers []struct {
				ID    string `json:"worker_id"`
				Ranks []struct {
					DPRank     uint32 `json:"dp_rank"`
					Device     uint32
					HostPinned uint32 `json:"host_pinned"`
					Disk       uint32
					External   uint32
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return nil, err
	}
	if len(m.Spaces) != 1 {
		return nil, fmt.Errorf("not one space in %s", data)
	}
	have := map[string][event.NumTiers]uint32{}
	for _, w := range m.Spaces[0].Workers {
		for _, r := range w.Ranks {
			have[fmt.Sprint(w.ID, "/", r.DPRank)] = [event.NumTiers]uint32{r.Device, r.HostPinned, r.Disk, r.External}
		}
	}
	return have, nil
}

func TestEventsReachTheAnswersAndSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir)
	p.ready()
	p.answers("POST", "/v1/find_matches", `{"model":"org/model","hashes":[1]}`, 404, "unknown_model")
	if got, err := filepath.EvalSymlinks(p.waitLog("embedded NATS server is up", "data")); err != nil || got == "" {
		t.Errorf("the log states the data directory as %q, %v", got, err)
	}

	b := join(t, dir)
	f := newFleet(t, b)
	f.publish(300)
	f.compare(p)

	// A message that is no event is skipped and counted; those after it apply.
	if err := b.Conn().Publish(stream.Subject("default", f.space, 1<<63), []byte("not an event")); err != nil {
		t.Fatal(err)
	}
	f.publish(100)
	f.compare(p)
	p.answers("GET", "/metrics", "", 200, "kvatlas_ingest_malformed")

	// Killed, it has the same answers again from the stream alone.
	_ = p.cmd.Process.Kill()
	p.wait()
	p = start(t, "--data-dir", dir)
	p.ready()
	f.compare(p)
	f.publish(100)
	f.compare(p)

	p.answers("GET", "/v1/dump?model=org/model", "", 200, `"last_event_id":`)
	_, workers, err := p.ask("GET", "/v1/workers", "")
	if err != nil || strings.Count(workers, `"worker_id"`) != fleetWorkers {
		t.Errorf("%v: %s", err, workers)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestASecondIndexerJoinsTheFirstOnesServer(t *testing.T) {
	dir := t.TempDir()
	first := start(t, "--data-dir", dir)
	first.ready()
	second := start(t, "--data-dir", dir)
	second.waitLog("joined the NATS server of another process", "address")
	second.ready()
	f := newFleet(t, join(t, dir))
	f.publish(100)
	f.compare(first)
	f.compare(second)
}

func TestEveryMetricHasHelp(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir)
	p.ready()
	b := join(t, dir)
	f := newFleet(t, b)
	f.publish(20)
	if err := b.Conn().Publish(stream.Subject("default", f.space, 1<<63), []byte("not an event")); err != nil {
		t.Fatal(err)
	}
	f.publish(20)
	f.compare(p)
	_, data, err := p.ask("GET", "/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	families := 0
	for line := range strings.SplitSeq(data, "\n") {
		if help, ok := strings.CutPrefix(line, "# HELP kvatlas_"); ok {
			families++
			if name, text, _ := strings.Cut(help, " "); text == "" {
				t.Errorf("no help text for kvatlas_%s", name)
			}
		}
	}
	for _, want := range []string{
		`kvatlas_index_ranks{model="org/model",block_size="16",group="g"} `,
		`kvatlas_index_blocks{model="org/model",block_size="16",group="g",tier="device"} `, "kvatlas_index_spaces 1\n", "kvatlas_ingest_malformed_total{",
	} {
		if !strings.Contains(data, want) {
			t.Errorf("no %s", want)
		}
	}
	if families < 20 {
		t.Errorf("only %d families", families)
	}
}

func TestReadinessFailsFirstThenItDrainsAndEnds(t *testing.T) {
	dir := t.TempDir()
	addressFile := filepath.Join(dir, "address")
	p := start(t, "--data-dir", filepath.Join(dir, "data"), "--drain-delay=2s", "--address-file", addressFile)
	p.ready()
	if data, err := os.ReadFile(addressFile); err != nil || "http://"+string(data) != p.url+"\n" { //nolint:gosec // the test's own file
		t.Errorf("%v: address file has %q, want that of %s", err, data, p.url)
	}
	p.signal(syscall.SIGTERM)
	p.waitLog("draining", "delay")
	status, data, err := p.ask("GET", "/readyz?verbose", "")
	if err != nil || status != 503 || !strings.Contains(data, "shutting down") {
		t.Errorf("%v %d %s", err, status, data)
	}
	if status, _, err := p.ask("GET", "/v1/workers", ""); err != nil || status != 200 {
		t.Errorf("while draining: %v %d", err, status)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.waitLog("stopped", "")
	if _, err := os.Stat(addressFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the address file is still there: %v", err)
	}
}

func TestTheSecondSignalEndsAtOnce(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		p := start(t, "--data-dir", t.TempDir(), "--drain-delay=1h")
		p.ready()
		p.signal(syscall.SIGTERM)
		p.waitLog("draining", "delay")
		// Right after the first, a signal counts as its echo.
		waittest.Until(t, func() error {
			if err := p.cmd.Process.Signal(sig); errors.Is(err, os.ErrProcessDone) {
				return nil
			}
			return errors.New("it goes on after a second signal")
		})
		if code := p.wait(); code != want {
			t.Errorf("%v: exit code %d, want %d", sig, code, want)
		}
	}
}

func TestWithoutNATSItLivesButIsNotReady(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // accepts, and never speaks
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // only to free it
	p := start(t, "--nats", "nats://"+ln.Addr().String())
	p.answers("GET", "/livez", "", 200, "ok")
	p.answers("GET", "/readyz?verbose", "", 503, "not connected to NATS yet")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestWrongUseAndFailuresSayWhatToDo(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only holds the port
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // only to free it
	dir := t.TempDir()
	for _, tc := range []struct {
		name   string
		args   []string
		env    string
		code   int
		stderr string
	}{
		{"unknown flag", []string{"--http-lisen=x"}, "", 2, "the nearest is --http-listen"},
		{"unknown variable", nil, "KVATLAS_SHARDX=3", 2, "the nearest is KVATLAS_SHARDS"},
		{"bad value", []string{"--shards=0"}, "", 2, "flag --shards: 0 is not between 1 and 1024"},
		{"port in use", []string{"--http-listen", ln.Addr().String(), "--data-dir", dir}, "", 1, "--http-listen"},
		{"bad namespace", []string{"--http-listen=127.0.0.1:0", "--data-dir", dir, "--namespace=a.b"}, "", 1, "a.b"},
		{"no data directory", []string{"--http-listen=127.0.0.1:0", "--data-dir=/dev/null/x"}, "", 1, "data directory"},
		{"no address file", []string{"--http-listen=127.0.0.1:0", "--data-dir", dir, "--address-file=/nonexistent/x"}, "", 1, "address file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
			defer cancel()
			cmd := command(ctx, tc.args...)
			cmd.Env = append(cmd.Env, tc.env)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			if code := cmd.ProcessState.ExitCode(); err == nil || code != tc.code || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("%v: exit code %d, want %d; %s, want %q in it", err, code, tc.code, stderr.String(), tc.stderr)
			}
		})
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	cmd := command(t.Context(), "--help")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--nats string (default \"embedded\")", "--data-dir", "--http-listen", "--log-format", "--drain-delay", "--ready-lag"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %s in %s", want, out)
		}
	}
}
