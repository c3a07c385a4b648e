package keeper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

var testSpace = event.Space{Model: "m", BlockSize: 16}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waittest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// world is a broker, a few publishers, and the oracle that is fed with what
// they publish.
type world struct {
	t    *testing.T
	nc   *nats.Conn
	js   jetstream.JetStream
	pubs []*publish.Publisher
	dir  string // of the snapshots; "" for the object store
	most int64  // bytes of the stream
	of   int    // streams; 0 is one

	gapWait time.Duration // of its nodes; 0 is the default

	mu     sync.Mutex
	rng    *rand.Rand
	oracle *core.Oracle
	held   [][]uint64
}

func newWorld(t *testing.T, dir string) *world { return newWorldOf(t, dir, 64<<20) }

func newWorldOf(t *testing.T, dir string, most int64) *world {
	t.Helper()
	return newWorldAt(t, t.TempDir(), dir, most)
}

// serve runs the server of a data directory, or joins it.
func serve(t *testing.T, data string) *broker.Broker {
	t.Helper()
	b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: data, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func newWorldAt(t *testing.T, data, dir string, most int64) *world {
	t.Helper()
	b := serve(t, data)
	var err error
	w := &world{t: t, nc: b.Conn(), rng: rand.New(rand.NewPCG(1, 2)), oracle: core.NewOracle(), held: make([][]uint64, 3), dir: dir, most: most}
	if w.js, err = jetstream.New(w.nc); err != nil {
		t.Fatal(err)
	}
	for id := range w.held {
		w.pubs = append(w.pubs, w.publisher(id))
	}
	return w
}

// publisher opens the worker's publisher.
func (w *world) publisher(id int) *publish.Publisher {
	w.t.Helper()
	p, err := publish.Open(deadline(w.t), publish.Config{
		Conn: w.nc, Space: testSpace, Worker: uint64(id), BatchEvents: 4, Heartbeat: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Stream: publish.StreamConfig{MaxBytes: w.most, Partitions: w.of},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.kill(p) })
	return p
}

// kill ends a publisher, which then says and answers nothing more.
func (w *world) kill(p *publish.Publisher) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

// publish publishes events of every worker and waits until they are stored.
func (w *world) publish(events int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range events {
		id := w.rng.IntN(len(w.pubs))
		if w.pubs[id] == nil {
			continue // killed
		}
		if err := w.pubs[id].Publish(deadline(w.t), w.next(id)); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, p := range w.pubs {
		if p == nil {
			continue
		}
		if err := p.Flush(deadline(w.t)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// next makes the next event of a worker, and tells the oracle. w.mu is held, or nobody else
// publishes.
func (w *world) next(id int) event.Event {
	ev := event.Event{Kind: event.Stored}
	if h := w.held[id]; len(h) > 0 && w.rng.IntN(3) == 0 {
		i := w.rng.IntN(len(h))
		ev = event.Event{Kind: event.Removed, Engine: []uint64{h[i]}}
		w.held[id] = append(h[:i:i], h[i+1:]...)
	} else {
		if len(h) > 0 && w.rng.IntN(2) == 0 {
			ev.HasParent, ev.Parent = true, h[w.rng.IntN(len(h))]
		}
		for range 1 + w.rng.IntN(4) {
			e := w.rng.Uint64()
			ev.Engine, ev.Local = append(ev.Engine, e), append(ev.Local, e%32)
			w.held[id] = append(w.held[id], e)
		}
	}
	switch ev.Kind {
	case event.Stored:
		w.oracle.Store(core.Holder(id), &ev, false)
	default:
		w.oracle.Remove(core.Holder(id), &ev, false)
	}
	return ev
}

func (w *world) want() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.oracle.Digest(shard.SpaceHash(testSpace), func(h core.Holder) (uint64, uint32) { return uint64(h), 0 })
}

// node is a replica: an index, what feeds it and what keeps it.
type node struct {
	w      *world
	set    *shard.Set
	in     *ingest.Ingest
	keeper *Keeper
	starts map[string]ingest.Start
	m      *metrics.Set // of in
	once   sync.Once
}

// count returns a counter of the node's Ingest.
func (n *node) count(name string) uint64 { return n.m.GetOrCreateCounter(name).Get() }

func (w *world) start(name string, change func(*Config)) *node {
	w.t.Helper()
	n := &node{w: w, set: shard.New(shard.Config{Shards: 1 + w.rng.IntN(3)}), m: metrics.NewSet()}
	cfg := Config{
		Conn: w.nc, Replica: name, Set: n.set, Dir: w.dir, Spool: w.t.TempDir(), Keep: 2, Interval: time.Hour, Check: 10 * time.Millisecond,
		Threshold: 1 << 40, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if n.keeper, err = Open(cfg); err != nil {
		w.t.Fatal(err)
	}
	if n.starts, err = n.keeper.restoreAll(deadline(w.t), nil); err != nil {
		w.t.Fatal(err)
	}
	n.in, err = ingest.Open(deadline(w.t), ingest.Config{
		Conn: cfg.Conn, Replica: name, Start: n.starts, FindSnapshot: n.keeper.Reload, Discover: 20 * time.Millisecond,
		RecoverTimeout: 200 * time.Millisecond, GapWait: w.gapWait, Metrics: n.m, Log: slog.New(slog.DiscardHandler),
		Index: func(sp event.Space) (ingest.Applier, error) { return n.set.Open(sp) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	n.keeper.Run(n.in)
	w.t.Cleanup(n.crash)
	return n
}

// crash ends the node without a last snapshot.
func (n *node) crash() {
	n.once.Do(func() {
		n.keeper.cancel()
		<-n.keeper.done
		n.in.Close()
		n.set.Close()
	})
}

// stop ends the node in order.
func (n *node) stop() {
	n.once.Do(func() {
		n.in.Close()
		n.keeper.Close(deadline(n.w.t))
		n.set.Close()
	})
}

func (n *node) digest() uint64 {
	sp := n.set.Lookup(testSpace)
	if sp == nil {
		return 0
	}
	d, err := sp.Digest(deadline(n.w.t))
	if err != nil {
		n.w.t.Fatal(err)
	}
	return d
}

func (n *node) equal() {
	n.w.t.Helper()
	want := n.w.want()
	waittest.For(n.w.t, "the index equals the oracle", func() bool { return n.digest() == want })
}

func (w *world) manifest() store.Manifest {
	w.t.Helper()
	m, err := w.manifestOf(stream.Name("default", testSpace))
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) manifestOf(name string) (m store.Manifest, err error) {
	w.t.Helper()
	k, err := Open(Config{Conn: w.nc, Replica: "test", Set: shard.New(shard.Config{}), Dir: w.dir})
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := k.Store(deadline(w.t), name)
	if err == nil {
		m, _, err = s.Manifest(deadline(w.t))
	}
	return m, err
}

// info waits until the server says how the stream is.
func (w *world) info() (info stream.Info) {
	w.t.Helper()
	waittest.Until(w.t, func() (err error) {
		info, err = stream.Get(deadline(w.t), w.js, stream.Name("default", testSpace))
		return err
	})
	return info
}

var errCrash = errors.New("crashed here")

// Wherever a writer dies, whoever starts next equals the oracle, and can take
// the next snapshot.
func TestACrashAtAnyStep(t *testing.T) {
	for _, dir := range []bool{false, true} {
		name := map[bool]string{false: "bucket", true: "dir"}[dir]
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, map[bool]string{false: "", true: t.TempDir()}[dir])
			for i, step := range []string{"claim", "write", "verify", "publish", "trim", "sweep"} {
				w.publish(60)
				reached := make(chan struct{})
				crashing := w.start("crashing", func(c *Config) {
					c.Threshold, c.Lease = 1, 200*time.Millisecond
					c.step = func(at string) error {
						if at != step {
							return nil
						}
						select {
						case <-reached:
						default:
							close(reached)
						}
						return errCrash
					}
				})
				select {
				case <-reached:
				case <-time.After(waittest.Patience):
					t.Fatalf("step %s was not reached", step)
				}
				crashing.crash()
				w.publish(30)
				after := w.start("after", func(c *Config) { c.Threshold, c.Lease = 1, 200*time.Millisecond })
				after.equal()
				last := w.info().LastSeq
				waittest.For(t, "the next snapshot after a crash at "+step, func() bool {
					m := w.manifest()
					return len(m.Snapshots) > 0 && m.Snapshots[0].Seq >= last
				})
				if i > 1 && len(after.starts) == 0 {
					t.Errorf("step %s: no snapshot was used at the start", step)
				}
				after.crash()
			}
			waittest.For(t, "the stream was trimmed", func() bool { return w.info().FirstSeq > 1 })
			m := w.manifest()
			if m.Snapshots[0].TookMs == 0 {
				t.Error("whoever takes the next one does not know how long the last one took")
			}
			for i := 1; i < len(m.Snapshots); i++ {
				if a, b := m.Snapshots[i-1], m.Snapshots[i]; a.Seq < b.Seq || a.Fence < b.Fence {
					t.Errorf("the manifest is out of order: %+v", m)
				}
			}
			if first, oldest := w.info().FirstSeq, m.Snapshots[len(m.Snapshots)-1].Seq; first > oldest+1 {
				t.Errorf("the stream begins at %d, and the oldest snapshot ends at %d", first, oldest)
			}
		})
	}
}

// Several replicas with one stream: each snapshot is one's, all end equal, and
// one that starts when the others are down has everything.
func TestReplicasShareTheWork(t *testing.T) {
	w := newWorld(t, "")
	often := func(c *Config) { c.Threshold, c.Lease = 20, 5*time.Second }
	a, b := w.start("a", often), w.start("b", often)
	for range 6 {
		w.publish(80)
		a.equal()
		b.equal()
	}
	waittest.For(t, "snapshots are taken and the stream is trimmed", func() bool { return w.info().FirstSeq > 1 })
	w.publish(30)
	a.equal()
	// Noted before the end: b may die with the lease, and while a waits
	// for that to run out, heartbeats go on.
	want := w.info().LastSeq
	b.crash()
	a.stop()
	m := w.manifest()
	if got := m.Snapshots[0].Seq; got+20 < want { // a may have read all events, and not the last heartbeats
		t.Errorf("the last snapshot is of %d, the stream ended at %d", got, want)
	}
	w.publish(30)
	c := w.start("c", often)
	c.equal()
	if len(c.starts) != 1 {
		t.Fatal("it did not begin with a snapshot")
	}
	if sp := c.set.Lookup(testSpace); sp.Stats().Outcome.Stored > 30*4 {
		t.Errorf("it applied %+v: more than came after the snapshot", sp.Stats().Outcome)
	}
}

// A writer that another has taken over from in the middle of its work neither
// publishes nor trims.
func TestAFencedWriterChangesNothing(t *testing.T) {
	w := newWorld(t, "")
	w.publish(60)
	at, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := w.start("slow", func(c *Config) {
		c.Threshold = 1
		c.step = func(step string) error {
			if step == "publish" {
				once.Do(func() {
					close(at)
					<-goOn
				})
			}
			return nil
		}
	})
	<-at
	s, err := slow.keeper.Store(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	fence, err := store.Claim(deadline(t), s, "fast", nil)
	if err != nil {
		t.Fatal(err)
	}
	slow.keeper.cancel() // it goes on with what it is doing, and then ends
	close(goOn)
	<-slow.keeper.done
	if m := w.manifest(); m.Fence != fence || m.Writer != "fast" || len(m.Snapshots) != 0 {
		t.Errorf("the manifest: %+v", m)
	}
}

// A damaged newest snapshot: the one before is taken, and the stream from
// there; with all of them damaged the publishers are asked.
func TestADamagedSnapshotIsPassedOver(t *testing.T) {
	w := newWorld(t, t.TempDir())
	n := w.start("a", func(c *Config) { c.Threshold = 30 })
	for range 5 {
		w.publish(60)
		n.equal()
	}
	waittest.For(t, "two snapshots, and a trimmed stream", func() bool { return len(w.manifest().Snapshots) == 2 && w.info().FirstSeq > 1 })
	n.crash()
	m := w.manifest()
	for i, e := range m.Snapshots {
		spoil(t, w.dir, stream.Name("default", testSpace), e.Name)
		next := w.start("b", nil)
		start := next.starts[stream.Name("default", testSpace)]
		if want := m.Snapshots[min(i+1, 1)].Seq + 1; i == 0 && start.Seq != want {
			t.Errorf("it starts at %d, want %d", start.Seq, want)
		}
		if i == 1 && len(next.starts) != 0 {
			t.Errorf("it starts with %+v", next.starts)
		}
		next.equal()
		next.crash()
	}
}

// A purged stream, and one that was made anew: what the snapshot does not have
// is asked for from the publishers.
func TestAStreamThatLostMessages(t *testing.T) {
	w := newWorld(t, "")
	n := w.start("a", func(c *Config) { c.Threshold = 30 })
	w.publish(200)
	n.equal()
	waittest.For(t, "a snapshot", func() bool { return len(w.manifest().Snapshots) > 0 })
	n.crash()
	w.publish(100)
	name := stream.Name("default", testSpace)
	s, err := w.js.Stream(deadline(t), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(deadline(t)); err != nil {
		t.Fatal(err)
	}
	old := w.start("old", func(c *Config) { c.Forget = 1 }) // who left in between may be forgotten
	if len(old.starts) != 0 {
		t.Errorf("it began with a snapshot: %+v", old.starts)
	}
	old.equal()
	old.crash()
	next := w.start("b", func(c *Config) { c.Forget = time.Hour })
	if len(next.starts) != 1 {
		t.Error("it did not begin with a snapshot")
	}
	next.equal()
	next.crash()
	if err := w.js.DeleteStream(deadline(t), name); err != nil {
		t.Fatal(err)
	}
	w.publish(20)
	last := w.start("c", func(c *Config) { c.Threshold = 1 })
	last.equal()
	created := w.info().Created
	waittest.For(t, "a snapshot of the new stream", func() bool {
		m := w.manifest()
		return m.Snapshots[0].Created.Equal(created)
	})
}

// An interval above half the retention is refused.
func TestAnIntervalThatIsTooLong(t *testing.T) {
	w := newWorld(t, "")
	k, err := Open(Config{Conn: w.nc, Replica: "a", Set: shard.New(shard.Config{}), Interval: 31 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.CheckRetention(deadline(t)); err == nil {
		t.Error("31 minutes with a retention of an hour")
	}
	k.cfg.Interval = 30 * time.Minute
	if err := k.CheckRetention(deadline(t)); err != nil {
		t.Error(err)
	}
}

// A reset leaves nothing behind, and is refused while another replica lives.
func TestReset(t *testing.T) {
	w := newWorld(t, "")
	n := w.start("a", func(c *Config) { c.Threshold = 20 })
	w.publish(100)
	n.equal()
	waittest.For(t, "a snapshot", func() bool { return len(w.manifest().Snapshots) > 0 })
	n.crash()
	reg, err := registry.Open(deadline(t), registry.Config{Conn: w.nc, Replica: "b", Beat: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	k, err := Open(Config{Conn: w.nc, Replica: "a", Set: shard.New(shard.Config{}), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := registry.OpenBucket(deadline(t), w.nc, "default", registry.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the other replica beats", func() bool {
		alive, err := b.Replicas(deadline(t))
		return err == nil && len(alive) == 1 && alive[0].Replica == "b"
	})
	if err := k.Reset(deadline(t), false); !errors.Is(err, ErrAlive) {
		t.Fatalf("while another replica lives: %v", err)
	}
	if len(w.manifest().Snapshots) == 0 {
		t.Fatal("a refused reset deleted snapshots")
	}
	reg.Close()
	if err := k.Reset(deadline(t), false); err != nil {
		t.Fatal(err)
	}
	if info := w.info(); len(w.manifest().Snapshots) != 0 || info.Messages > 10 { // heartbeats came since
		t.Errorf("after a reset: %+v, %+v", w.manifest(), info)
	}
	s, err := k.Store(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	if names, err := s.Names(deadline(t)); err != nil || len(names) != 0 {
		t.Errorf("snapshots %q are left, %v", names, err)
	}
	// What the publishers have comes back from them.
	w.publish(20)
	w.start("c", nil).equal()
}
