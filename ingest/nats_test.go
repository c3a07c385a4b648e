package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// The tests of this file run against a real server inside the process.

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func startBroker(t testing.TB, dir string) *broker.Broker {
	t.Helper()
	b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// natsBench is what a test against a server has.
type natsBench struct {
	t       testing.TB
	nc      *nats.Conn
	js      jetstream.JetStream
	truth   *truth
	metrics *metrics.Set // of the publishers
	streams publish.StreamConfig
	group   *publish.Group // nil: each has one of its own
	gapWait time.Duration  // of replicas
}

func newNATSBench(t testing.TB, nc *nats.Conn) *natsBench {
	t.Helper()
	return &natsBench{t: t, nc: nc, js: jetStream(t, nc), truth: newTruth(), metrics: metrics.NewSet(),
		streams: publish.StreamConfig{MaxBytes: 64 << 20},
		// What is asked for counts as a gap, and what was not stored is sent again later than by default on a busy machine.
		gapWait: waittest.Patience}
}

// worker opens the publisher of an engine.
func (n *natsBench) worker(id uint64, change func(*publish.Config)) (*publish.Publisher, *engine) {
	n.t.Helper()
	cfg := publish.Config{
		Conn: n.nc, Space: testSpace, Worker: id, BatchEvents: 8, Heartbeat: 50 * time.Millisecond,
		AckWait: time.Second, RetryMax: 100 * time.Millisecond,
		Metrics: n.metrics, Log: slog.New(slog.DiscardHandler),
		Stream: n.streams, Group: n.group,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := publish.Open(deadline(n.t), cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ctx)
	})
	return p, newEngine(id, 2, 99)
}

// run publishes steps of the engine.
func (n *natsBench) run(p *publish.Publisher, e *engine, steps int) {
	n.t.Helper()
	for range steps {
		ev := e.step()
		n.truth.apply(e.worker, ev)
		if err := p.Publish(deadline(n.t), ev); err != nil {
			n.t.Error(err)
			return
		}
	}
}

func (n *natsBench) retries(reason string) uint64 {
	return n.metrics.GetOrCreateCounter(`kvatlas_publish_retries_total{reason="` + reason + `"}`).Get()
}

// fleet publishes from several workers at once and waits for every
// acknowledgement. during, if not nil, runs beside them; they go on until it
// returns.
func (n *natsBench) fleet(workers, steps int, during func()) {
	n.t.Helper()
	var running sync.WaitGroup
	over := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(over)
		running.Wait()
	})
	defer end() // a failed test, too, waits for its goroutines
	for w := range workers {
		p, e := n.worker(uint64(w), nil)
		running.Go(func() {
			n.run(p, e, steps)
			for more := during != nil; more; {
				n.run(p, e, 10)
				select {
				case <-over:
					more = false
				case <-time.After(time.Duration(workers) * time.Millisecond / 2): // many leave each other room
				}
			}
			if err := p.Close(deadline(n.t)); err != nil {
				n.t.Error(err)
			}
		})
	}
	if during != nil {
		during()
	}
	end()
}

// replica is one reader of everything, with its index.
type replica struct {
	*Ingest
	set     *shard.Set
	metrics *metrics.Set
	asked   *asked
}

func (n *natsBench) open(name string, set *shard.Set, start map[string]Start) *replica {
	n.t.Helper()
	if set == nil {
		set, _ = newIndex(n.t, 2)
	}
	r := &replica{set: set, metrics: metrics.NewSet(), asked: &asked{}}
	in, err := Open(deadline(n.t), n.config(name, r, start))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(in.Close)
	r.Ingest = in
	return r
}

func (n *natsBench) config(name string, r *replica, start map[string]Start) Config {
	return Config{
		Conn: n.nc, Replica: name, Start: start, Discover: 50 * time.Millisecond, GapAsk: n.gapWait, GapWait: n.gapWait,
		Index:   func(sp event.Space) (Applier, error) { return r.set.Open(sp) },
		Recover: r.asked, Metrics: r.metrics, Log: slog.New(slog.DiscardHandler),
	}
}

func (r *replica) counter(name string) uint64 { return r.metrics.GetOrCreateCounter(name).Get() }

// position returns how far the replica is with the only stream.
func (r *replica) position() uint64 {
	if s := r.Streams(); len(s) > 0 {
		return s[0].Position
	}
	return 0
}

// converged waits until the replica has applied the whole stream, and compares.
func (n *natsBench) converged(r *replica) {
	n.t.Helper()
	n.drained(r)
	waittest.For(n.t, "recoveries have ended", func() bool {
		for _, k := range r.Ranks() {
			if k.Is(follow.Recovering) {
				return false
			}
		}
		return true
	})
	if have, want := digest(n.t, r.set), n.truth.digest(); have != want {
		n.t.Fatalf("digest %x, the oracle's %x", have, want)
	}
	for _, k := range r.Ranks() {
		if k.Gaps > 0 || k.UnknownParents > 0 || k.Incomplete || k.Held > 0 {
			n.t.Errorf("where nothing is lost: %+v", k)
		}
	}
}

// drained waits until the replica has applied the whole stream.
func (n *natsBench) drained(r *replica) {
	n.t.Helper()
	waittest.For(n.t, "the replica has applied the stream", func() bool {
		info, err := stream.Get(deadline(n.t), n.js, stream.Name("default", testSpace))
		if err != nil {
			n.t.Fatal(err)
		}
		s := r.Streams()
		return len(s) > 0 && s[0].Position >= info.LastSeq
	})
}

func TestPublishedEventsReachEveryReplica(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	early := n.open("early", nil, nil) // before the stream exists
	if err := early.Ready(); err != nil {
		t.Errorf("nothing to read, and not ready: %v", err)
	}
	n.fleet(4, 2000, nil)
	late := n.open("late", nil, nil)
	n.converged(early)
	n.converged(late)
	waittest.For(t, "ready", func() bool { return late.Ready() == nil })

	events := uint64(0)
	for _, k := range []string{"stored", "removed", "cleared"} {
		events += late.counter(`kvatlas_ingest_events_total{kind="` + k + `"}`)
	}
	if events != 4*2000 {
		t.Errorf("%d events applied, 8000 published", events)
	}
	if got := len(late.Ranks()); got != 4*2 {
		t.Errorf("%d ranks, want 8", got)
	}
	// The consumers show that nobody lags.
	for _, r := range []*replica{early, late} {
		waittest.For(t, "everything is acknowledged", func() bool {
			c, err := n.js.Consumer(deadline(t), stream.Name("default", testSpace), "replica_"+r.cfg.Replica)
			if err != nil {
				t.Fatal(err)
			}
			info := c.CachedInfo()
			return info.NumPending == 0 && info.NumAckPending == 0 && info.AckFloor.Stream == r.Streams()[0].Position
		})
	}
}

func TestAReplicaGoesOnFromItsPosition(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	rng := rand.New(rand.NewPCG(1, 1))
	set := shard.New(shard.Config{Shards: 2, Queue: 1}) // partitions wait for the index when they are stopped
	t.Cleanup(set.Close)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.fleet(3, 3000, nil)
	}()
	var start map[string]Start
	restarts := 0
	for running := true; running; {
		r := n.open("one", set, start)
		select {
		case <-time.After(time.Duration(rng.IntN(60)) * time.Millisecond):
		case <-done:
			running = false
		}
		r.Close()
		start = r.Positions()
		restarts++
	}
	if restarts < 3 {
		t.Fatalf("only %d restarts", restarts)
	}
	last := n.open("one", set, start)
	n.converged(last)
	// Nothing was applied twice: what the index has is what was published once.
	scratch := n.open("scratch", nil, nil)
	n.converged(scratch)
	sp, other := set.Lookup(testSpace), scratch.set.Lookup(testSpace)
	if a, b := sp.Stats().Outcome, other.Stats().Outcome; a != b {
		t.Errorf("with %d restarts the index did %+v, without %+v", restarts, a, b)
	}
}

func TestNothingIsLostWhenTheServerRestarts(t *testing.T) {
	dir := t.TempDir()
	owner := startBroker(t, dir)
	joined := startBroker(t, dir) // the connection that outlives the server
	if joined.Owner() {
		t.Fatal("not joined")
	}
	n := newNATSBench(t, joined.Conn())
	r := n.open("one", nil, nil)
	acks := n.metrics.GetOrCreateCounter("kvatlas_publish_acks_total")
	n.fleet(3, 100, func() {
		for range 3 {
			waittest.For(t, "the replica reads", func() bool { return r.position() > 0 })
			failed, pos := n.retries("disconnected"), r.position()
			if err := owner.Close(); err != nil {
				t.Error(err)
			}
			waittest.For(t, "publishers notice that the server is gone", func() bool { return n.retries("disconnected") > failed })
			owner = startBroker(t, dir)
			if !owner.Owner() {
				t.Error("the server did not come back")
			}
			before := acks.Get()
			waittest.For(t, "publishers and replica go on", func() bool { return acks.Get() > before+100 && r.position() > pos })
		}
	})
	n.converged(r)
	if n := r.counter("kvatlas_ingest_void_positions_total"); n != 0 {
		t.Errorf("%d positions void after an orderly restart", n)
	}
	resets := uint64(0)
	for _, name := range r.metrics.ListMetricNames() {
		if strings.HasPrefix(name, "kvatlas_ingest_reader_resets_total") {
			resets += r.counter(name)
		}
	}
	if resets == 0 {
		t.Error("the reader noticed no restart")
	}
	t.Logf("retries: %d after a disconnection, %d after a timeout, %d without a stream; duplicate events %d, void positions %d",
		n.retries("disconnected"), n.retries("timeout"), n.retries("no_stream"),
		r.counter(`kvatlas_ingest_ignored_events_total{reason="duplicate"}`), r.counter("kvatlas_ingest_void_positions_total"))
}

// brokerDir tells a copy of the test program to be nothing but a server.
const brokerDir = "KVATLAS_TEST_BROKER_DIR"

// brokerAlways tells it to sync each message.
const brokerAlways = "KVATLAS_TEST_BROKER_ALWAYS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(brokerDir); dir != "" {
		cfg := broker.Config{URL: broker.Embedded, DataDir: dir, SyncAlways: os.Getenv(brokerAlways) != ""}
		if _, err := broker.Open(context.Background(), cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {} // until it is killed
	}
	var err error
	switch {
	case os.Getenv(publisherNATS) != "":
		err = publisherProcess(os.Getenv(publisherNATS), os.Stdin, os.Stdout)
	case os.Getenv(replicaNATS) != "":
		err = replicaProcess(os.Getenv(replicaNATS))
	default:
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serverProcess runs the server of dir in a process of its own.
func serverProcess(t testing.TB, dir string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), brokerDir+"="+dir), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// Acknowledged is on the disk: killing the server loses nothing and invents
// nothing, and its lock does not outlive it.
func TestNothingIsLostWhenTheServerIsKilled(t *testing.T) { killServers(t, 3, 100) }

// Likewise where publishers of one process send their messages together.
func TestNoBatchIsLostWhenTheServerIsKilled(t *testing.T) {
	racetest.Without(t, "what is killed is a process of its own, and the others kill one under it")
	n := killServers(t, 60, 20, brokerAlways+"=1")
	s, err := n.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	batches := make(map[string]int)
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		msg, err := s.GetMsg(deadline(t), seq)
		if err != nil {
			t.Fatal(err)
		}
		batches[msg.Header.Get("Nats-Batch-Id")]++
	}
	together := int(state.Msgs) - batches[""]
	// What part goes together is the disk's affair: one that syncs at once has few wait for one another.
	if together == 0 || len(batches) > together/10 {
		t.Errorf("%d messages, %d of them in %d batches", state.Msgs, together, len(batches)-1)
	}
	t.Logf("%d messages, %d of them in %d batches", state.Msgs, together, len(batches)-1)
}

// killServers has workers publish while their server, begun with that environment, is killed
// again and again.
func killServers(t *testing.T, workers, steps int, env ...string) *natsBench {
	t.Helper()
	dir := t.TempDir()
	server := serverProcess(t, dir, env...)
	waittest.For(t, "the server's address", func() bool {
		_, err := os.Stat(filepath.Join(dir, "address"))
		return err == nil
	})
	b := startBroker(t, dir)
	if b.Owner() {
		t.Fatal("the lock was free")
	}
	n := newNATSBench(t, b.Conn())
	if len(env) > 0 {
		n.streams.Batches, n.group = true, &publish.Group{}
	}
	r := n.open("one", nil, nil)
	acks := n.metrics.GetOrCreateCounter("kvatlas_publish_acks_total")
	n.fleet(workers, steps, func() {
		for range 2 {
			waittest.For(t, "the replica reads", func() bool { return r.position() > 0 })
			failed, pos := n.retries("disconnected"), r.position()
			if err := server.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = server.Wait()
			waittest.For(t, "publishers notice that the server is gone", func() bool { return n.retries("disconnected") > failed })
			server = serverProcess(t, dir, env...)
			before := acks.Get()
			waittest.For(t, "publishers and replica go on", func() bool { return acks.Get() > before+100 && r.position() > pos })
		}
	})
	n.converged(r)
	scratch := n.open("scratch", nil, nil) // what is on the disk is what was applied
	n.converged(scratch)
	t.Logf("%d messages acknowledged, of these %d again; retries: %d after a disconnection, %d after a timeout, %d without a stream; void positions %d",
		acks.Get(), n.metrics.GetOrCreateCounter("kvatlas_publish_duplicate_acks_total").Get(),
		n.retries("disconnected"), n.retries("timeout"), n.retries("no_stream"), r.counter("kvatlas_ingest_void_positions_total"))
	return n
}

func TestPublishersWaitForAFullStreamAndSaySo(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, func(c *publish.Config) {
		c.Stream.MaxBytes, c.MaxPending, c.Heartbeat = 64<<10, 64<<10, -1
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.run(p, e, 5000)
	}()
	blocked := n.metrics.GetOrCreateCounter("kvatlas_publish_blocked_total")
	waittest.For(t, "the stream is full and the caller waits", func() bool { return n.retries("refused") > 0 && blocked.Get() > 0 })
	select {
	case <-done:
		t.Fatal("everything fitted")
	default:
	}
	// A replica applies, a trim makes room, as a snapshot does it.
	r := n.open("one", nil, nil)
	s, err := n.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(5 * time.Millisecond):
			if pos := r.Streams()[0].Position; pos > 0 {
				if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(pos+1)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for flushed := false; !flushed; {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		flushed = p.Flush(ctx) == nil
		cancel()
		if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(r.Streams()[0].Position+1)); err != nil {
			t.Fatal(err)
		}
	}
	n.converged(r)
}

func TestAStreamMadeAgainIsReadAgain(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	r := n.open("one", nil, nil)
	p, e := n.worker(1, nil)
	n.run(p, e, 500)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.converged(r)
	if err := n.js.DeleteStream(deadline(t), stream.Name("default", testSpace)); err != nil {
		t.Fatal(err)
	}
	n.run(p, e, 500) // the publisher makes it again
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the new stream is read", func() bool { return r.counter("kvatlas_ingest_void_positions_total") > 0 })
	n.converged(r)
}

func TestAPositionThatMeansNothingIsVoid(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, func(c *publish.Config) { c.Heartbeat = -1 })
	n.run(p, e, 300)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.converged(r)
	r.Close()
	start := r.Positions()
	name := stream.Name("default", testSpace)
	ahead := start[name]
	ahead.Seq += 100
	again := n.open("one", r.set, map[string]Start{name: ahead})
	waittest.For(t, "a position beyond the stream's end is void", func() bool {
		return again.counter("kvatlas_ingest_void_positions_total") == 1
	})
	n.converged(again)
	if got := again.counter(`kvatlas_ingest_ignored_events_total{reason="duplicate"}`); got != 300 {
		t.Errorf("%d duplicates, want 300", got)
	}
	again.Close()
	other := start[name]
	other.Created = other.Created.Add(-time.Hour)
	third := n.open("one", r.set, map[string]Start{name: other})
	waittest.For(t, "the position of another stream is void", func() bool {
		return third.counter("kvatlas_ingest_void_positions_total") == 1
	})
	n.converged(third)
}

func TestWhatRetentionTookShowsAsGaps(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 400)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	s, err := n.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(deadline(t), jetstream.WithPurgeKeep(3)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.drained(r)
	waittest.For(t, "the gap is told", func() bool { return r.asked.count(Gap) > 0 && r.counter("kvatlas_ingest_missed_events_total") > 0 })
	waittest.For(t, "ready in spite of it", func() bool { return r.Ready() == nil })
}

func TestMalformedMessagesDoNotStopAStream(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	r := n.open("one", nil, nil)
	subject := stream.Subject("default", testSpace, 1)
	base := subject[:strings.LastIndexByte(subject, '.')+1]
	for range 10 {
		n.run(p, e, 20)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		for subj, data := range map[string]string{subject: "rubbish", base + "not-a-number": "x", base + "2": `{"a":`} {
			if _, err := n.js.Publish(deadline(t), subj, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.drained(r)
	n.sameAsTruth(r)
	if got := r.counter(`kvatlas_ingest_malformed_total{reason="subject"}`); got != 10 {
		t.Errorf("%d messages without a worker counted, want 10", got)
	}
	if got := r.counter(`kvatlas_ingest_malformed_total{reason="format"}`); got != 10 {
		t.Errorf("%d messages of no format counted, want 10", got)
	}
}

// slowIndex applies only as fast as it is let.
type slowIndex struct {
	Applier
	gate chan struct{}
}

func (s *slowIndex) Apply(ctx context.Context, b *event.Batch, done func(core.Outcome)) error {
	<-s.gate
	return s.Applier.Apply(ctx, b, done)
}

// heldUp returns a replica to whose index nothing is applied before it is let through.
func (n *natsBench) heldUp(change func(cfg *Config)) (r *replica, letThrough func()) {
	n.t.Helper()
	gate := make(chan struct{})
	letThrough = sync.OnceFunc(func() { close(gate) })
	r = &replica{set: shard.New(shard.Config{}), metrics: metrics.NewSet(), asked: &asked{}}
	n.t.Cleanup(r.set.Close)
	cfg := n.config("one", r, nil)
	change(&cfg)
	cfg.Index = func(sp event.Space) (Applier, error) {
		a, err := r.set.Open(sp)
		return &slowIndex{a, gate}, err
	}
	in, err := Open(deadline(n.t), cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(in.Close)
	n.t.Cleanup(letThrough)
	r.Ingest = in
	return r, letThrough
}

func TestReadyOnlyOnceCaughtUp(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	n.fleet(2, 400, nil)
	r, letThrough := n.heldUp(func(cfg *Config) { cfg.MaxMessages = 4 })
	in := r.Ingest
	waittest.For(t, "the reader waits for the index", func() bool { return in.Streams()[0].InFlight == 4 })
	s := in.Streams()[0]
	if s.CaughtUp || in.Ready() == nil || s.Lag == 0 || s.LagTime <= 0 {
		t.Errorf("behind, and: %+v, ready: %v", s, in.Ready())
	}
	letThrough()
	n.converged(r)
	waittest.For(t, "ready", func() bool { return in.Ready() == nil })
	if s := in.Streams()[0]; s.Lag != 0 || s.LagTime != 0 {
		t.Errorf("caught up: %+v", s)
	}
}

func TestUnsafeStreamsAreRefused(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	name := stream.Name("default", testSpace)
	if _, err := stream.Ensure(deadline(t), n.js, "default", testSpace, stream.Config{MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	s, err := n.js.Stream(deadline(t), name)
	if err != nil {
		t.Fatal(err)
	}
	good := s.CachedInfo().Config
	if err := n.js.DeleteStream(deadline(t), name); err != nil {
		t.Fatal(err)
	}
	r := n.open("running", nil, nil) // meets the bad stream while it runs
	bad := good
	bad.Storage = jetstream.MemoryStorage
	if _, err := n.js.CreateStream(deadline(t), bad); err != nil {
		t.Fatal(err)
	}
	two := n.open("two", nil, nil) // meets it at its start
	if _, err := publish.Open(deadline(t), publish.Config{Conn: n.nc, Space: testSpace, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, publish.ErrUnsafeStream) {
		t.Errorf("publishing into a stream in memory: %v", err)
	}
	for _, r := range []*replica{r, two} {
		waittest.For(t, "the bad stream is counted", func() bool { return r.counter("kvatlas_ingest_refused_streams_total") == 1 })
		if why := r.Refused(); len(r.Streams()) != 0 || len(why) != 1 || !strings.Contains(why[0], "in memory only") {
			t.Errorf("a stream in memory is read: %+v, %q", r.Streams(), why)
		}
	}
	if err := n.js.DeleteStream(deadline(t), name); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the bad stream is gone", func() bool { return len(r.Refused()) == 0 })
}

func TestInvalidSettingsAreRefused(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	r := &replica{set: shard.New(shard.Config{}), metrics: metrics.NewSet(), asked: &asked{}}
	t.Cleanup(r.set.Close)
	for name, change := range map[string]func(*Config){
		"replica":    func(c *Config) { c.Replica = "a b" },
		"namespace":  func(c *Config) { c.Namespace = "*" },
		"connection": func(c *Config) { c.Conn = nil },
		"index":      func(c *Config) { c.Index = nil },
		"bound":      func(c *Config) { c.Partitions = -1 },
		"duration":   func(c *Config) { c.GapWait = -1 },
		"asking":     func(c *Config) { c.GapAsk = -1 },
	} {
		cfg := n.config("x", r, nil)
		change(&cfg)
		if in, err := Open(deadline(t), cfg); err == nil {
			in.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}
