package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/broker"
	"github.com/kvatlas/kvatlas/internal/enginepub"
	"github.com/kvatlas/kvatlas/internal/enginetest"
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
	os.Exit(m.Run())
}

// patience is how long a test waits for something that is sure to happen.
const patience = time.Minute

// eventually waits until f returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

var space = event.Space{Model: "m", BlockSize: enginetest.BlockSize}

// fleet is a broker and an index that reads what sidecars publish to it.
type fleet struct {
	t      *testing.T
	dir    string
	broker *broker.Broker
	in     *ingest.Ingest
	set    *shard.Set
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, dir: t.TempDir(), set: shard.New(shard.Config{})}
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
	p.cmd = exec.Command(os.Args[0], append([]string{"--data-dir", f.dir, "--http-listen=127.0.0.1:0", "--address-file", file,
		"--worker=7", "--model=m", fmt.Sprintf("--block-size=%d", enginetest.BlockSize), "--state-every=50ms"}, args...)...)
	p.cmd.Env = []string{asProgram + "=1", "HOME=/nonexistent"}
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() { p.cmd.Wait(); close(p.done) }()
	f.t.Cleanup(func() {
		p.kill()
		if f.t.Failed() {
			f.t.Logf("log of kvpublisher:\n%s", p.log.String())
		}
	})
	eventually(f.t, func() error {
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
	case <-time.After(patience):
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
	eventually(p.t, func() error {
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

// mock is a mock engine of two ranks.
type mock struct {
	t       *testing.T
	seed    uint64
	buffer  int
	pubs    [2]*enginepub.Publisher
	history [2]*enginetest.History
	ports   [2]int // of rank 0's endpoint and replay
}

func endpoint(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }

// freePair returns a port that is free, as is the next.
func freePair(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l2, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		l.Close()
		if err == nil {
			l2.Close()
			return port
		}
	}
	t.Fatal("no two ports are free")
	return 0
}

// release's events are those that Payload can write.
func release() enginetest.Release { return enginetest.Releases()[4] }

// start starts the engine's process, in the place of the one before.
func (m *mock) start() {
	m.t.Helper()
	for i := range m.ports {
		if m.ports[i] == 0 {
			m.ports[i] = freePair(m.t)
		}
	}
	m.seed++
	rnd := rand.New(rand.NewPCG(m.seed, 2))
	for i := range m.pubs {
		if m.pubs[i] != nil {
			m.pubs[i].Close()
		}
		p, err := enginepub.New(enginepub.Config{Endpoint: endpoint(m.ports[0] + i), Replay: endpoint(m.ports[1] + i), Buffer: m.buffer,
			Lose: func(uint64) bool { return rnd.IntN(10) == 0 }})
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { p.Close() })
		m.pubs[i] = p
		m.history[i] = enginetest.NewHistory(release(), uint32(i), m.seed)
	}
}

func (m *mock) publish(n int) {
	m.t.Helper()
	for i, h := range m.history {
		batches, err := h.Go(n)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, b := range batches {
			payload, err := b.Payload()
			if err != nil {
				m.t.Fatal(err)
			}
			m.pubs[i].Publish(payload)
		}
	}
}

// equal waits until the index holds what the batches from the bases on say.
func (m *mock) equal(f *fleet, bases ...int) {
	m.t.Helper()
	for i, h := range m.history {
		want := core.NewOracle()
		base := 0
		if len(bases) > 0 {
			base = bases[i]
		}
		for _, b := range h.Batches[base:] {
			for j := range b.Events {
				enginetest.Apply(want, 0, &b.Events[j])
			}
		}
		eventually(m.t, func() error {
			sp := f.set.Lookup(space)
			if sp == nil {
				return fmt.Errorf("there is no space")
			}
			return enginetest.CompareSpace(sp, shard.RankID{Worker: 7, DPRank: uint32(i)}, want, 0)
		})
	}
}

func (m *mock) args() []string {
	return []string{"--engine=" + endpoint(m.ports[0]), "--engine-replay=" + endpoint(m.ports[1]), "--dp-ranks=0-1"}
}

// TestKilledInTheMiddle kills the sidecar and the engine at random in the course
// of a history of which live messages are lost on purpose.
func TestKilledInTheMiddle(t *testing.T) {
	f := newFleet(t)
	m := &mock{t: t}
	m.start()
	rnd := rand.New(rand.NewPCG(1, 3))
	p := f.start(m.args()...)
	p.ready()
	for range 8 {
		m.publish(50 + rnd.IntN(200))
		switch rnd.IntN(4) {
		case 0:
			p.ready()
			p.stop()
			m.publish(rnd.IntN(100))
			p = f.start(m.args()...)
		case 1:
			m.start() // the engine restarts under the sidecar
		default:
			<-time.After(time.Duration(rnd.IntN(200)) * time.Millisecond)
			p.kill()
			m.publish(rnd.IntN(100))
			if rnd.IntN(3) == 0 {
				m.start()
			}
			p = f.start(m.args()...)
		}
	}
	m.publish(100)
	m.equal(f)
	var total ingest.RankStatus
	for _, r := range f.in.Ranks() {
		total.Gaps += r.Gaps
		total.UnknownParents += r.UnknownParents
		total.Duplicates += r.Duplicates
		total.Restarts += r.Restarts
		total.Events += r.Events
	}
	t.Logf("%d events, %d duplicates, %d incarnations after the first", total.Events, total.Duplicates, total.Restarts)
	if total.Gaps+total.UnknownParents != 0 {
		t.Errorf("readers missed something: %+v", total)
	}
	if n := p.metric("kvatlas_publisher_incomplete"); n != 0 {
		t.Errorf("%v ranks are incomplete", n)
	}
	incarnations := total.Restarts
	p.ready()
	p.stop()
	p = f.start(m.args()...)
	p.ready()
	m.publish(50)
	m.equal(f)
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
	m := &mock{t: t, buffer: 50}
	m.start()
	p := f.start(m.args()...)
	p.ready()
	m.publish(40)
	m.equal(f)
	p.stop()
	m.publish(120)
	n := len(m.history[0].Batches) - 50
	p = f.start(m.args()...)
	p.ready()
	m.equal(f, n, n)
	if got := p.metric("kvatlas_publisher_incomplete"); got != 2 {
		t.Errorf("%v ranks are shown as incomplete, want 2", got)
	}
	if got := p.metric("kvatlas_publisher_feed_lost_batches_total", `reason="retention"`); got != 2*float64(n-40) {
		t.Errorf("%v batches are shown as lost, want %d", got, 2*(n-40))
	}
	m.start() // whatever was missed is void
	m.publish(20)
	m.equal(f)
	eventually(t, func() error {
		if got := p.metric("kvatlas_publisher_incomplete"); got != 0 {
			return fmt.Errorf("%v ranks are shown as incomplete", got)
		}
		return nil
	})
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"--model=m", "--engine=tcp://x:1"}, {"--worker=1", "--engine=tcp://x:1"}, {"--worker=1", "--model=m"},
		{"--worker=1", "--model=m", "--engine=tcp://x:1", "--socket=/x"},
		{"--worker=1", "--model=m", "--engine=tcp://x:1", "--dp-ranks=3-1"},
	} {
		cmd := exec.Command(os.Args[0], append(args, "--http-listen=", "--state-dir=none")...)
		cmd.Env = []string{asProgram + "=1", "HOME=/nonexistent"}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%v is accepted:\n%s", args, out)
		}
	}
}
