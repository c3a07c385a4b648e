package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// besieged is publishers of one process, with a Group and without one, that wait or drop,
// at a server to which things happen.
type besieged struct {
	*natsBench
	rng    *rand.Rand
	opts   server.Options
	server *server.Server
	shared *nats.Conn // of those of the Group
	log    []string

	workers []*besiegedWorker
}

type besiegedWorker struct {
	mu     sync.Mutex // one event at a time
	p      *publish.Publisher
	e      *engine
	change func(*publish.Config)
}

func (b *besieged) start() {
	b.t.Helper()
	opts := b.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(waittest.Patience) {
		b.t.Fatal("no server")
	}
	b.server = s
}

func (b *besieged) connect(user string) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect(b.server.ClientURL(), nats.UserInfo(user, ""), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

// deny has the server take nothing on those subjects from the publishers of the Group.
func (b *besieged) deny(subjects ...string) {
	b.t.Helper()
	user := &server.User{Username: "shared"}
	if len(subjects) > 0 {
		user.Permissions = &server.Permissions{Publish: &server.SubjectPermission{Deny: subjects}}
	}
	b.opts.Users = []*server.User{user, {Username: "alone"}}
	opts := b.opts
	if err := b.server.ReloadOptions(&opts); err != nil {
		b.t.Fatal(err)
	}
}

func (b *besieged) changed(change func(*jetstream.StreamConfig)) {
	b.t.Helper()
	st, err := b.js.Stream(deadline(b.t), stream.Name("default", testSpace))
	if err != nil {
		b.t.Fatal(err)
	}
	c := st.CachedInfo().Config
	change(&c)
	if _, err := b.js.UpdateStream(deadline(b.t), c); err != nil {
		b.t.Fatal(err)
	}
}

func (b *besieged) step(w *besiegedWorker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ev := w.e.step()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.truth.apply(w.e.worker, ev)
	if err := w.p.Publish(ctx, ev); err != nil && !errors.Is(err, publish.ErrDropped) {
		b.t.Error(err)
	}
}

// fault does one thing, and lifts it.
func (b *besieged) fault() {
	name := stream.Name("default", testSpace)
	pause := func() { <-time.After(time.Duration(100+b.rng.IntN(600)) * time.Millisecond) } // how long it lasts
	what := b.rng.IntN(9)
	b.log = append(b.log, fmt.Sprint(what))
	switch what {
	case 0:
		st, err := b.js.Stream(deadline(b.t), name)
		if err == nil {
			err = st.Purge(deadline(b.t), jetstream.WithPurgeKeep(uint64(b.rng.IntN(20))))
		}
		if err != nil {
			b.t.Fatal(err)
		}
	case 1:
		b.changed(func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 10 })
		pause()
		b.changed(func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 20 })
	case 2:
		b.deny("kvatlas.>", "kvatlas_default.>")
		pause()
		b.deny()
	case 3:
		b.deny(stream.Subject("default", testSpace, uint64(b.rng.IntN(len(b.workers)))))
		pause()
		b.deny()
	case 4:
		b.server.Shutdown()
		b.server.WaitForShutdown()
		pause()
		b.start()
	case 5:
		if err := b.shared.ForceReconnect(); err != nil {
			b.t.Fatal(err)
		}
	case 6, 7:
		w := b.workers[b.rng.IntN(len(b.workers))]
		w.mu.Lock()
		defer w.mu.Unlock()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = w.p.Close(ended)
		w.e.restart()
		for rank := range uint32(2) {
			b.truth.apply(w.e.worker, event.Event{Kind: event.Cleared, AllTiers: true, DPRank: rank})
		}
		w.p, _ = b.worker(w.e.worker, w.change)
		for rank := range uint32(2) {
			if err := w.p.Cleared(deadline(b.t), rank); err != nil {
				b.t.Error(err)
			}
		}
	case 8:
		b.changed(func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
		pause()
		b.changed(func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = true })
	}
}

// Whatever happens to a server, and to one of many publishers, with and without a Group:
// once it is over the index is what the engines hold.
func TestHistoriesOfPublishersAtAServer(t *testing.T) {
	for _, seed := range coretest.Seeds(1) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { besiege(t, seed) })
	}
}

func besiege(t *testing.T, seed uint64) {
	b := &besieged{rng: rand.New(rand.NewPCG(seed, 14))}
	b.opts = server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		SyncAlways: seed%2 == 0, Users: []*server.User{{Username: "shared"}, {Username: "alone"}},
	}
	b.natsBench = &natsBench{t: t}
	b.start()
	t.Cleanup(func() { b.server.Shutdown() })
	b.opts.Port = b.server.Addr().(*net.TCPAddr).Port
	alone := b.connect("alone")
	b.natsBench = newNATSBench(t, alone)
	b.shared, b.streams.Batches = b.connect("shared"), true
	group := &publish.Group{}
	r := b.open("one", nil, nil)
	for id := range uint64(40) {
		w := &besiegedWorker{change: func(c *publish.Config) {
			c.StreamWait = time.Duration(id%3) * 300 * time.Millisecond // 0: the default
			if id%4 > 0 {
				c.Conn, c.Group = b.shared, group
			}
			if id%5 == 0 {
				c.WhenFull, c.MaxPending = publish.Drop, 4000
			}
		}}
		w.p, w.e = b.worker(id, w.change)
		b.workers = append(b.workers, w)
	}
	var running sync.WaitGroup
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over); running.Wait() })
	defer end()
	for _, w := range b.workers {
		running.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
					b.step(w)
				}
			}
		})
	}
	for range 6 {
		b.fault()
		<-time.After(100 * time.Millisecond)
	}
	end()
	t.Logf("faults %q", b.log)
	for _, w := range b.workers {
		if err := w.p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	b.drained(r)
	waittest.For(t, "the index is what the engines hold", func() bool { return digest(t, r.set) == b.truth.digest() })
	for _, k := range r.Ranks() {
		if k.Stale {
			t.Errorf("stale at the end: %+v", k)
		}
	}
}
