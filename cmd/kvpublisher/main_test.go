package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// asProgram makes the test binary be kvpublisher, so that the tests run the real
// program as a process of its own, which they can kill.
const asProgram = "RUN_AS_KVPUBLISHER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	code := m.Run()
	released.Close()
	os.Exit(code)
}

// released is the program as it is released, for what starts it many times: the race detector makes each
// start ten times as long, and is beside it in the other tests. TestMain closes it.
var released = &progtest.Programs{Root: filepath.Join("..", ".."), Packages: []string{"./cmd/kvpublisher"}}

var space = event.Space{Model: "m", BlockSize: enginetest.BlockSize}

// fleet is a broker and an index that reads what sidecars publish to it.
type fleet struct {
	t      *testing.T
	dir    string
	broker *broker.Broker
	in     *ingest.Ingest
	set    *shard.Set
	path   string // of the program; empty: this test's own
}

func newFleet(t *testing.T) *fleet {
	return newSchemeFleet(t, "")
}

// newSchemeFleet is newFleet where all workers have the engine hash scheme.
func newSchemeFleet(t *testing.T, scheme string) *fleet {
	f := &fleet{t: t, dir: t.TempDir(), set: shard.New(shard.Config{Shards: 2,
		EngineScheme: func(event.Space, uint64) string { return scheme }})}
	var err error
	if f.broker, err = broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: f.dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.broker.Close() })
	f.in, err = ingest.Open(t.Context(), ingest.Config{Conn: f.broker.Conn(), Replica: "test", Discover: 20 * time.Millisecond,
		Index: func(id event.Space) (ingest.Applier, error) { return f.set.Open(id) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.in.Close(); f.set.Close() })
	return f
}

// process is a running kvpublisher.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	log     bytes.Buffer
	done    chan struct{}
	address string
}

func (f *fleet) start(args ...string) *process {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "address")
	p := &process{t: f.t, done: make(chan struct{})}
	p.cmd = exec.Command(cmp.Or(f.path, os.Args[0]), append([]string{"--data-dir", f.dir, "--admin-listen=127.0.0.1:0", "--address-file", file,
		"--worker=7", "--model=m", fmt.Sprintf("--block-size=%d", enginetest.BlockSize), "--state-every=50ms"}, args...)...)
	p.cmd.Env = []string{asProgram + "=1", progtest.NoSleep, "HOME=/nonexistent"}
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its exit code tells
		close(p.done)
	}()
	f.t.Cleanup(func() {
		p.kill()
		if f.t.Failed() {
			f.t.Logf("log of kvpublisher:\n%s", p.log.String())
		}
	})
	waittest.Until(f.t, func() error {
		b, err := os.ReadFile(file)
		if err == nil && !strings.HasSuffix(string(b), "\n") {
			err = io.ErrUnexpectedEOF
		}
		p.address = strings.TrimSpace(string(b))
		return err
	})
	return p
}

// ended waits for the process's end.
func (p *process) ended() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(waittest.Patience):
		p.t.Fatal("kvpublisher does not end")
		return 0
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		p.t.Fatalf("exit code %d:\n%s", code, p.log.String())
	}
}

// get returns what the admin server answers.
func (p *process) get(path string) (int, string) {
	resp, err := http.Get("http://" + p.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (p *process) ready() {
	p.t.Helper()
	waittest.Until(p.t, func() error {
		if code, why := p.get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("not ready: %s", why)
		}
		return nil
	})
}

// metric returns the sum of the series of a family that have all the labels.
func (p *process) metric(family string, labels ...string) float64 {
	_, text := p.get("/metrics")
	var sum float64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, " ")
		if name != family && !strings.HasPrefix(name, family+"{") {
			continue
		}
		ok := true
		for _, l := range labels {
			ok = ok && strings.Contains(name, l)
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); ok && err == nil {
			sum += v
		}
	}
	return sum
}

// equal waits until the index holds what the batches from base on say.
func equal(f *fleet, m *enginetest.Mock, base int) {
	f.t.Helper()
	for i := range m.Ranks {
		want := m.Oracle(i, base)
		waittest.Until(f.t, func() error {
			sp := f.set.Lookup(space)
			if sp == nil {
				return fmt.Errorf("there is no space")
			}
			return enginetest.CompareSpace(sp, shard.RankID{Worker: 7, DPRank: uint32(i)}, want, 0)
		})
	}
}

func args(m *enginetest.Mock) []string {
	events, replay := m.Endpoint(0)
	return []string{"--engine=" + events, "--engine-replay=" + replay, "--dp-ranks=0-1"}
}

// TestKilledInTheMiddle kills the sidecar and the engine at random in the course
// of a history of which live messages are lost on purpose.
func TestKilledInTheMiddle(t *testing.T) {
	racetest.Without(t, "the sidecar is a program of its own, and what invents the engine's history takes ten times as long")
	for _, transport := range []string{"jetstream", "core"} {
		t.Run(transport, func(t *testing.T) { killedInTheMiddle(t, transport) })
	}
}

func killedInTheMiddle(t *testing.T, transport string) {
	f := newFleet(t)
	dir, err := released.Dir()
	if err != nil {
		t.Fatal(err)
	}
	f.path = filepath.Join(dir, "kvpublisher")
	m := enginetest.NewMock(t, 1, 2, 0)
	rnd := rand.New(rand.NewPCG(1, 3))
	all := append(args(m), "--transport="+transport)
	p := f.start(all...)
	p.ready()
	for range 8 {
		m.Publish(50 + rnd.IntN(200))
		switch rnd.IntN(4) {
		case 0:
			p.ready()
			p.stop()
			m.Publish(rnd.IntN(100))
			p = f.start(all...)
		case 1:
			m.Restart() // the engine restarts under the sidecar
		default:
			<-time.After(time.Duration(rnd.IntN(200)) * time.Millisecond)
			p.kill()
			m.Publish(rnd.IntN(100))
			if rnd.IntN(3) == 0 {
				m.Restart()
			}
			p = f.start(all...)
		}
	}
	m.Publish(100)
	p.ready()
	if p.metric("kvatlas_publisher_incomplete") > 0 {
		t.Log("the engine did not answer in time: it restarts once more")
		m.Restart()
		m.Publish(100)
	}
	equal(f, m, 0)
	var total ingest.RankStatus
	for _, r := range f.in.Ranks() {
		total.Gaps += r.Gaps
		total.UnknownParents += r.UnknownParents
		total.Duplicates += r.Duplicates
		total.Restarts += r.Restarts
		total.Events += r.Events
	}
	t.Logf("%d events, %d duplicates, %d incarnations after the first", total.Events, total.Duplicates, total.Restarts)
	// Where the engine restarted and did not answer in time its batches count as
	// lost, and parents may be unknown: that is another matter.
	if total.Gaps != 0 {
		t.Errorf("readers missed something: %+v", total)
	}
	if n := p.metric("kvatlas_publisher_incomplete"); n != 0 {
		t.Errorf("%v ranks are incomplete", n)
	}
	incarnations := total.Restarts
	p.ready()
	p.stop()
	p = f.start(all...)
	p.ready()
	m.Publish(50)
	equal(f, m, 0)
	for _, r := range f.in.Ranks() {
		incarnations -= r.Restarts
	}
	if incarnations != 0 {
		t.Error("an orderly restart of the sidecar began a stream anew")
	}
}

// TestBeyondTheReplayWindow keeps the sidecar away for longer than the engine
// remembers.
func TestBeyondTheReplayWindow(t *testing.T) {
	f := newFleet(t)
	m := enginetest.NewMock(t, 2, 2, 50)
	p := f.start(args(m)...)
	p.ready()
	m.Publish(40)
	equal(f, m, 0)
	p.stop()
	m.Publish(120)
	n := len(m.History[0].Batches) - 50
	p = f.start(args(m)...)
	p.ready()
	equal(f, m, n)
	if got := p.metric("kvatlas_publisher_incomplete"); got != 2 {
		t.Errorf("%v ranks are shown as incomplete, want 2", got)
	}
	if got := p.metric("kvatlas_publisher_feed_lost_batches_total", `reason="retention"`); got != 2*float64(n-40) {
		t.Errorf("%v batches are shown as lost, want %d", got, 2*(n-40))
	}
	m.Restart() // whatever was missed is void
	m.Publish(20)
	equal(f, m, 0)
	waittest.Until(t, func() error {
		if got := p.metric("kvatlas_publisher_incomplete"); got != 0 {
			return fmt.Errorf("%v ranks are shown as incomplete", got)
		}
		return nil
	})
}

// TestInferredBeyondTheReplayWindow kills the sidecar for longer than the engine
// remembers, where another worker has the same prompts: the index ends with the
// oracle's answer for such a stream.
func TestInferredBeyondTheReplayWindow(t *testing.T) {
	for _, transport := range []string{"jetstream", "core"} {
		t.Run(transport, func(t *testing.T) {
			f := newSchemeFleet(t, "one")
			m := enginetest.NewMock(t, 2, 2, 50)
			all := append(args(m), "--transport="+transport)
			p := f.start(all...)
			p.ready()
			m.Publish(40)
			equal(f, m, 0)
			p.kill()
			m.Publish(160)
			begun := time.Now()
			sp := f.set.Lookup(space)
			for i := range m.Ranks {
				if _, err := sp.ApplyWait(t.Context(), &event.Batch{Space: space, Worker: 8, Events: m.Stores(i)}); err != nil {
					t.Fatal(err)
				}
			}
			p = f.start(all...)
			base := len(m.History[0].Batches) - 50
			inferred, incomplete := 0, make([]bool, m.Ranks)
			for i := range m.Ranks {
				incomplete[i] = !slices.ContainsFunc(m.History[i].Batches[base:], func(b enginetest.Batch) bool {
					return slices.ContainsFunc(b.Events, func(ev event.Event) bool { return ev.Kind == event.Cleared })
				})
				want := m.Incomplete(i, base)
				inferred += want.Inferred(0)
				waittest.Until(t, func() error {
					return enginetest.CompareSpace(sp, shard.RankID{Worker: 7, DPRank: uint32(i)}, want, 0)
				})
			}
			took := time.Since(begun)
			for _, r := range sp.Ranks() {
				if r.Worker == 7 {
					inferred -= r.Inferred
				}
			}
			if inferred != 0 {
				t.Errorf("%d blocks more are to be inferred", inferred)
			}
			for _, r := range f.in.Ranks() {
				t.Logf("rank %d: %d events applied, %d duplicate, %d gaps, %d recoveries, %+v; converged %v after the restart began",
					r.DPRank, r.Events, r.Duplicates, r.Gaps, r.Recoveries, r.Blocks, took.Round(time.Millisecond))
				if r.Incomplete != incomplete[r.DPRank] || r.Blocks.Inferred == 0 {
					t.Errorf("rank %d shows as something else than incomplete %v: %+v", r.DPRank, incomplete[r.DPRank], r)
				}
				shown := p.metric("kvatlas_publisher_incomplete", fmt.Sprintf("dp_rank=%q", fmt.Sprint(r.DPRank))) == 1
				if shown != incomplete[r.DPRank] {
					t.Errorf("rank %d is shown by the publisher as incomplete %v, want %v", r.DPRank, shown, incomplete[r.DPRank])
				}
			}
			if !slices.Contains(incomplete, true) {
				t.Error("no rank is incomplete: choose another seed")
			}
		})
	}
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"--model=m", "--engine=tcp://x:1"}, {"--worker=1", "--engine=tcp://x:1"}, {"--worker=1", "--model=m"},
		{"--worker=1", "--model=m", "--engine=tcp://x:1", "--socket=/x"},
		{"--worker=1", "--model=m", "--engine=tcp://x:1", "--dp-ranks=3-1"},
		{"--worker=1", "--model=m", "--engine=tcp://x:1", "--admin-listen=0.0.0.0:0"}, // and nobody asked who it is
	} {
		if args = append(args, "--state-dir=none"); !strings.Contains(strings.Join(args, " "), "--admin-listen") {
			args = append(args, "--admin-listen=")
		}
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = []string{asProgram + "=1", progtest.NoSleep, "HOME=/nonexistent"}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%v is accepted:\n%s", args, out)
		}
	}
}

// Two sidecars of one rank would publish over each other.
func TestAStateHasOneUser(t *testing.T) {
	f := newFleet(t)
	m := enginetest.NewMock(t, 3, 2, 0)
	p := f.start(args(m)...)
	p.ready()
	second := exec.Command(os.Args[0], append(args(m), "--data-dir", f.dir, "--admin-listen=", "--worker=7", "--model=m",
		fmt.Sprintf("--block-size=%d", enginetest.BlockSize))...)
	second.Env = []string{asProgram + "=1", progtest.NoSleep, "HOME=/nonexistent"}
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another kvpublisher") {
		t.Errorf("%v:\n%s", err, out)
	}
	p.kill()
	p = f.start(args(m)...)
	p.ready()
	p.stop()
}
