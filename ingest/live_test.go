package ingest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// These tests, too, run against a real server inside the process.

// sameAsTruth waits until every rank is whole and the index equals the oracle.
func (n *natsBench) sameAsTruth(r *replica) time.Duration {
	n.t.Helper()
	begun := time.Now()
	waittest.For(n.t, "the index equals the oracle", func() bool {
		for _, k := range r.Ranks() {
			if k.Incomplete || k.Held > 0 || k.Is(follow.Recovering) {
				return false
			}
		}
		return digest(n.t, r.set) == n.truth.digest()
	})
	return time.Since(begun)
}

func coreMode(c *publish.Config) { c.Transport = publish.CoreNATS }

// A fleet of both transports; replicas that come early, late and with nothing.
func TestBothTransportsEndEqualToTheOracle(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	early := n.open("early", nil, nil)
	var running sync.WaitGroup
	for w := range uint64(6) {
		change := coreMode
		if w%2 == 0 {
			change = nil
		}
		p, e := n.worker(w, change)
		running.Go(func() {
			n.run(p, e, 1500)
			if err := p.Flush(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
	waittest.For(t, "something is read", func() bool { return len(early.Ranks()) > 4 })
	middle := n.open("middle", nil, nil) // takes dumps while events come
	running.Wait()
	late := n.open("late", nil, nil)
	for _, r := range []*replica{early, middle, late} {
		n.sameAsTruth(r)
		if got := len(r.Ranks()); got != 12 {
			t.Errorf("%d ranks", got)
		}
	}
	if late.counter("kvatlas_ingest_dumps_total") == 0 || late.counter(`kvatlas_ingest_recoveries_asked_total{cause="discovery"}`) == 0 {
		t.Error("a late replica asks workers without a stream for a dump")
	}
}

// A worker that says nothing by itself is asked for what it holds as soon as it
// is expected; one that does not answer is awaited no longer than that takes.
func TestAnExpectedWorkerIsAsked(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, func(c *publish.Config) { c.Transport, c.Heartbeat = publish.CoreNATS, -1 })
	n.run(p, e, 300)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	if err := r.Expect(deadline(t), testSpace, 1, []uint32{0, 1}); err != nil {
		t.Fatal(err)
	}
	if err := r.Expect(deadline(t), testSpace, 2, nil); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "nobody is awaited", func() bool { return r.Awaited() == nil })
	if have, want := digest(t, r.set), n.truth.digest(); have != want {
		t.Errorf("digest %x, want %x: %+v", have, want, r.Ranks())
	}
	asked := r.counter(`kvatlas_ingest_recoveries_asked_total{cause="discovery"}`)
	if err := r.Expect(deadline(t), testSpace, 1, []uint32{0, 1}); err != nil || asked != 3 {
		t.Errorf("%d asked, %v", asked, err)
	}
	if again := r.counter(`kvatlas_ingest_recoveries_asked_total{cause="discovery"}`); again != asked {
		t.Errorf("%d asked for ranks that are known", again-asked)
	}
	r.Close()
	if err := r.Expect(deadline(t), testSpace, 3, nil); err == nil {
		t.Error("expected by a closed Ingest")
	}
}

// A rank of which the index does not have what its engine finds, although nothing is known to be
// missing, is read anew from its publisher, and only that.
func TestAContradictedRankIsReadAnew(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 300)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.sameAsTruth(r)
	space, err := r.set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	if err := space.RemoveRank(deadline(t), shard.RankID{Worker: 1}); err != nil { // behind its back
		t.Fatal(err)
	}
	if have, want := digest(t, r.set), n.truth.digest(); have == want {
		t.Fatal("nothing is missing")
	}
	if !r.Contradicted(deadline(t), testSpace, shard.RankID{Worker: 1}) {
		t.Error("the space is not known")
	}
	n.sameAsTruth(r)
	if asked, all := r.counter(`kvatlas_ingest_recoveries_asked_total{cause="contradicted"}`), r.counter("kvatlas_ingest_dumps_total"); asked != 1 || all != 1 {
		t.Errorf("%d asked, %d dumps", asked, all)
	}
	if r.Contradicted(deadline(t), event.Space{Model: "another", BlockSize: 16}, shard.RankID{Worker: 1}) {
		t.Error("a space that there is not is known")
	}
}

// Messages lost on the way, the last one too, are repaired without a restart.
func TestALostLiveMessageIsRepaired(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	link := &lossyRelay{}
	p, e := n.worker(1, func(c *publish.Config) { c.Transport, c.Namespace = publish.CoreNATS, "away" })
	link.relay(t, n.nc)
	r := n.open("one", nil, nil)
	lost := 0
	for range 20 {
		n.run(p, e, 50)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		n.sameAsTruth(r)
		// What is published while the replica does not listen is lost to it.
		link.mute(true)
		n.run(p, e, 3)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		lost += 3
		waittest.For(t, "they are lost", func() bool {
			link.mu.Lock()
			defer link.mu.Unlock()
			return link.lost == lost
		})
		link.mute(false)
		n.sameAsTruth(r)
	}
	missed := r.counter("kvatlas_ingest_missed_events_total")
	t.Logf("%d events lost, %d counted as missed in %d gaps, %d got from the publisher, %d dumps", lost, missed,
		r.counter("kvatlas_ingest_gaps_total"), r.counter("kvatlas_ingest_recovered_events_total"), r.counter("kvatlas_ingest_dumps_total"))
	if missed != uint64(lost) {
		t.Errorf("%d events lost, %d counted", lost, missed)
	}
}

// lossyRelay brings a worker's live messages from one namespace to another, and
// loses those that are no heartbeats while it is muted. Requests pass.
type lossyRelay struct {
	mu    sync.Mutex
	muted bool
	lost  int // events
}

func (l *lossyRelay) mute(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.muted = on
}

func (l *lossyRelay) relay(t testing.TB, nc *nats.Conn) {
	t.Helper()
	for _, subject := range []string{stream.LiveSubject("away", testSpace, 1), stream.RecoverSubject("default", testSpace, 1)} {
		_, err := nc.Subscribe(subject, func(msg *nats.Msg) {
			out := &nats.Msg{Subject: stream.LiveSubject("default", testSpace, 1), Data: msg.Data}
			if msg.Reply != "" {
				out.Subject, out.Reply = stream.RecoverSubject("away", testSpace, 1), msg.Reply
			} else {
				b, err := event.Decode(msg.Data)
				l.mu.Lock()
				drop := l.muted && err == nil && len(b[0].Events) > 0
				if drop {
					l.lost += len(b[0].Events)
				}
				l.mu.Unlock()
				if drop {
					return
				}
			}
			if err := nc.PublishMsg(out); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What a stream's retention took, or its publisher dropped, is got from the
// publisher; and a stream that was made again is read again.
func TestAStreamsLossesAreRepaired(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 2000)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	s, err := n.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.sameAsTruth(r)
	if r.counter("kvatlas_ingest_dumps_total")+r.counter("kvatlas_ingest_recovered_events_total") == 0 {
		t.Error("nothing was asked for")
	}
	if err := n.js.DeleteStream(deadline(t), stream.Name("default", testSpace)); err != nil {
		t.Fatal(err)
	}
	n.run(p, e, 500)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.sameAsTruth(r)
	var out strings.Builder
	r.metrics.WritePrometheus(&out)
	if !strings.Contains(out.String(), `kvatlas_ingest_publisher_events_total{model="org/model-7B",block_size="16",group="g",worker="1",dp_rank="0",kind="stored"}`) {
		t.Error("no metrics of the publisher")
	}
}

// With more ranks than series the rest is summed up.
func TestSeriesPerPublisherAreCapped(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	for w := range uint64(5) {
		p, e := n.worker(w, coreMode)
		n.run(p, e, 50)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	r := &replica{set: shard.New(shard.Config{}), metrics: metrics.NewSet(), asked: &asked{}}
	t.Cleanup(r.set.Close)
	cfg := n.config("one", r, nil)
	cfg.MaxSeries = 3
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	waittest.For(t, "all ranks", func() bool { return len(r.Ranks()) == 10 })
	n.sameAsTruth(r)
	var out strings.Builder
	r.metrics.WritePrometheus(&out)
	if got := strings.Count(out.String(), "kvatlas_ingest_publisher_gaps_total{"); got != 4 {
		t.Errorf("%d series, want 3 and the sum of the rest:\n%s", got, out.String())
	}
}

// An index that refuses blocks asks for nothing until it has room, and is
// brought up to date then.
func TestRefusingCausesNoStorm(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	// A shard that was full keeps some huge pages while it has a block: it must have room beside them.
	set := shard.New(shard.Config{Shards: 1, MemoryBudget: 16 << 20})
	t.Cleanup(set.Close)
	r := &replica{set: set, metrics: metrics.NewSet(), asked: &asked{}}
	cfg := n.config("one", r, nil)
	cfg.RoomCheck = 20 * time.Millisecond
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	fill, _ := n.worker(7, coreMode)
	rng := rand.New(rand.NewPCG(1, 1))
	chain := func() event.Event {
		blocks := make([]uint64, 1000)
		for i := range blocks {
			blocks[i] = rng.Uint64()
		}
		return event.Event{Kind: event.Stored, Engine: blocks, Local: blocks}
	}
	for range 1000 { // too much for the index
		if err := fill.Publish(deadline(t), chain()); err != nil {
			t.Fatal(err)
		}
	}
	truncated := func() uint64 { return r.counter("kvatlas_ingest_truncated_ranks_total") }
	waittest.For(t, "a rank is truncated", func() bool { return truncated() > 0 })
	p, e := n.worker(1, coreMode)
	n.run(p, e, 300)
	refused := chain() // where there was no room for one as long
	n.truth.apply(1, refused)
	if err := p.Publish(deadline(t), refused); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*publish.Publisher{fill, p} {
		if err := q.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	waittest.For(t, "another is truncated", func() bool { return truncated() > 1 })
	asks := func() (sum uint64) {
		for cause := range follow.NumCauses {
			sum += r.counter(fmt.Sprintf("kvatlas_ingest_recoveries_asked_total{cause=%q}", cause))
		}
		return sum
	}
	before, beats := asks(), r.counter("kvatlas_ingest_heartbeats_total")
	waittest.For(t, "heartbeats pass", func() bool { return r.counter("kvatlas_ingest_heartbeats_total") > beats+20 })
	if after := asks(); after > before+4 {
		t.Errorf("%d recoveries asked for while the index is full", after-before)
	}
	if err := fill.Cleared(deadline(t), 0); err != nil {
		t.Fatal(err)
	}
	if err := fill.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.sameAsTruth(r)
}

// Environment of copies of the test program.
const (
	publisherNATS = "KVATLAS_TEST_PUBLISHER" // server's data directory
	replicaNATS   = "KVATLAS_TEST_REPLICA"
)

// processConn connects to the server of the directory that env names.
func processConn(dir string) (*broker.Broker, error) {
	return broker.Open(context.Background(), broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
}

// publisherProcess publishes what it reads: a JSON event a line.
func publisherProcess(dir string, in io.Reader, out io.Writer) error {
	b, err := processConn(dir)
	if err != nil {
		return err
	}
	cfg := publish.Config{Conn: b.Conn(), Space: testSpace, Worker: 1, BatchEvents: 8, Heartbeat: 50 * time.Millisecond,
		Stream: publish.StreamConfig{MaxBytes: 64 << 20}, Log: slog.New(slog.DiscardHandler)}
	if os.Getenv("KVATLAS_TEST_CORE") != "" {
		cfg.Transport = publish.CoreNATS
	}
	p, err := publish.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var ev event.Event
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
			return err
		}
		if err := p.Publish(context.Background(), ev); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, "ok"); err != nil {
			return err
		}
	}
	select {} // until it is killed
}

// replicaProcess reads everything into an index of its own.
func replicaProcess(dir string) error {
	b, err := processConn(dir)
	if err != nil {
		return err
	}
	set := shard.New(shard.Config{})
	_, err = Open(context.Background(), Config{Conn: b.Conn(), Replica: "killed", Discover: 50 * time.Millisecond,
		Index: func(sp event.Space) (Applier, error) { return set.Open(sp) }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	select {}
}

func child(t testing.TB, env ...string) (*exec.Cmd, io.Writer, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd, in, bufio.NewScanner(out)
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Publishers and replicas that are killed in the middle of load, in both
// modes: what the index has in the end is what the last run of the engine did.
func TestKilledPublishersAndReplicasConverge(t *testing.T) {
	for _, mode := range []string{"jetstream", "core"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			n := newNATSBench(t, startBroker(t, dir).Conn())
			r := n.open("one", nil, nil)
			e := newEngine(1, 2, 5)
			env := []string{publisherNATS + "=" + dir}
			if mode == "core" {
				env = append(env, "KVATLAS_TEST_CORE=1")
			}
			published := 0
			for round := range 6 {
				doomed, _, _ := child(t, replicaNATS+"="+dir)
				cmd, in, out := child(t, env...)
				for range 400 {
					ev := e.step()
					n.truth.apply(1, ev)
					line, err := json.Marshal(ev)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := fmt.Fprintf(in, "%s\n", line); err != nil {
						t.Fatal(err)
					}
					published++
				}
				kill(doomed)
				if round == 5 {
					for range 400 { // the last run is not killed before it is done
						if !out.Scan() {
							t.Fatal("the publisher ended")
						}
					}
					break
				}
				for range 1 + rand.IntN(350) {
					if !out.Scan() {
						t.Fatal("the publisher ended")
					}
				}
				kill(cmd)
				for rank := range uint32(2) {
					n.truth.apply(1, event.Event{Kind: event.Cleared, AllTiers: true, DPRank: rank})
				}
				e.restart()
			}
			took := n.sameAsTruth(r)
			applied := uint64(0)
			for _, k := range []string{"stored", "removed", "cleared"} {
				applied += r.counter(`kvatlas_ingest_events_total{kind="` + k + `"}`)
			}
			late := n.open("late", nil, nil)
			lateTook := n.sameAsTruth(late)
			t.Logf("events: %d given to publishers, %d applied, %d duplicate; %d gaps, %d dumps, %d events recovered; converged in %.3f s, a new replica in %.3f s",
				published, applied, r.counter(`kvatlas_ingest_ignored_events_total{reason="duplicate"}`), r.counter("kvatlas_ingest_gaps_total"),
				r.counter("kvatlas_ingest_dumps_total"), r.counter("kvatlas_ingest_recovered_events_total"), took.Seconds(), lateTook.Seconds())
		})
	}
}

// A server that is killed takes the live messages with it that were on their
// way; the replica gets them from the publishers.
func TestALiveFleetConvergesAfterTheServerIsKilled(t *testing.T) {
	dir := t.TempDir()
	server := serverProcess(t, dir)
	waittest.For(t, "the server's address", func() bool {
		_, err := os.Stat(dir + "/address")
		return err == nil
	})
	b := startBroker(t, dir)
	n := newNATSBench(t, b.Conn())
	r := n.open("one", nil, nil)
	type pair struct {
		p *publish.Publisher
		e *engine
	}
	var fleet []pair
	for w := range uint64(3) {
		p, e := n.worker(w, coreMode)
		fleet = append(fleet, pair{p, e})
	}
	published := 0
	for round := range 3 {
		for i := range 60 {
			if i == 30 {
				if round == 0 {
					n.sameAsTruth(r) // of ranks that are not known yet a loss cannot show
				}
				if err := server.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = server.Wait()
			}
			for _, x := range fleet {
				n.run(x.p, x.e, 10)
				published += 10
			}
		}
		server = serverProcess(t, dir)
		waittest.For(t, "the connection is back", func() bool { return n.nc.Status() == nats.CONNECTED })
	}
	took := n.sameAsTruth(r)
	lost := n.metrics.GetOrCreateCounter("kvatlas_publish_lost_messages_total").Get()
	t.Logf("%d events published; %d messages lost; %d gaps, %d events missed, %d recovered, %d dumps; converged in %.3f s", published, lost,
		r.counter("kvatlas_ingest_gaps_total"), r.counter("kvatlas_ingest_missed_events_total"),
		r.counter("kvatlas_ingest_recovered_events_total"), r.counter("kvatlas_ingest_dumps_total"), took.Seconds())
	if lost > 0 && r.counter("kvatlas_ingest_gaps_total") == 0 {
		t.Error("losses that do not show")
	}
}
