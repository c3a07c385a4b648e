package kvatlas

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/loadsync"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// Embedded as the URL of [NATS] runs a server in this process, or joins the
// process that runs one on the same data directory.
const Embedded = broker.Embedded

// NATS says where workers publish and register.
type NATS struct {
	// URL is Embedded, or the address of a server: nats://host:4222, or several
	// with commas between. Empty: there is none; see Atlas.Apply.
	URL     string
	DataDir string // of Embedded; needed there
	// CredsFile and NKeyFile authenticate the client, CAFile, CertFile and KeyFile
	// (PEM) are for TLS; empty where not used.
	CredsFile, NKeyFile, CAFile, CertFile, KeyFile string
	// Namespace names the streams, the registry and the routers that share their
	// load; empty is "default".
	Namespace string
}

// Config holds what an Atlas is made with. Its zero value is an index of its own,
// without NATS, with the default settings.
type Config struct {
	NATS NATS
	// Routing holds the settings of all routers; without a Mode it is
	// route.DefaultSettings. Where nothing weighs what is cached no index is kept.
	Routing route.Settings
	// Approximate reads no events: a prompt counts as cached where it was sent of
	// late.
	Approximate bool
	// GapWait and GapAsk are how long events wait for one before them that is
	// missing, and after how long its publisher is asked for it; 0 is the default
	// of ingest.Config, which says more.
	GapWait, GapAsk time.Duration
	// Alone keeps the load of these routers from others of the namespace.
	Alone bool
	Log   *slog.Logger // nil: slog.Default()
}

// Atlas is an open index. Its methods are safe for concurrent use.
type Atlas struct {
	set      *shard.Set
	fleet    *fleet.Fleet
	metrics  *metrics.Set
	broker   *broker.Broker     // nil without NATS
	registry *registry.Registry // likewise
	ingest   *ingest.Ingest     // nil where no events are read

	stop  context.CancelFunc
	work  sync.WaitGroup // follows the registry; lets bookings end
	close sync.Once
	err   error // of Close
}

// Open opens an index. With NATS it finds the workers and begins to read their
// events; WaitReady tells when it has caught up. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Atlas, error) {
	if cfg.Routing.Mode == "" {
		cfg.Routing = route.DefaultSettings()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.NATS.Namespace == "" {
		cfg.NATS.Namespace = "default"
	}
	if err := cfg.Routing.Check(); err != nil {
		return nil, fmt.Errorf("opening an index: %w", err)
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("naming a router: %w", err)
	}
	a := &Atlas{set: shard.New(shard.Config{}), metrics: metrics.NewSet()}
	fc := fleet.Config{
		ID: binary.LittleEndian.Uint64(id[:]), Route: cfg.Routing, Index: cfg.index(), Set: a.set, Addressless: true, Log: cfg.Log,
	}
	if cfg.NATS.URL != "" && !cfg.Alone {
		fc.Sync = func(sp event.Space, r *route.Router) (io.Closer, error) {
			return loadsync.Open(loadsync.Config{
				Conn: a.broker.Conn(), Namespace: cfg.NATS.Namespace, Space: sp, ID: fc.ID, Router: r, Log: cfg.Log,
			})
		}
	}
	a.fleet = fleet.New(fc)
	work, stop := context.WithCancel(context.Background())
	a.stop = stop
	if cfg.NATS.URL != "" {
		if err := a.connect(ctx, work, &cfg, fc.ID); err != nil {
			return nil, errors.Join(fmt.Errorf("opening an index: %w", err), a.Close())
		}
	}
	a.work.Go(func() { a.expire(work) })
	return a, nil
}

// index says what the routers know of caches: nothing where it has no weight.
func (c *Config) index() fleet.Kind {
	switch {
	case !c.Routing.WeighsCache():
		return fleet.NoIndex
	case c.Approximate:
		return fleet.Approximate
	}
	return fleet.Events
}

// connect finds the workers and begins to read what they publish.
func (a *Atlas) connect(ctx, work context.Context, cfg *Config, id uint64) (err error) {
	n := &cfg.NATS
	if a.broker, err = broker.Open(ctx, broker.Config{
		URL: n.URL, DataDir: n.DataDir, CredsFile: n.CredsFile, NKeyFile: n.NKeyFile,
		CAFile: n.CAFile, CertFile: n.CertFile, KeyFile: n.KeyFile, Name: "kvatlas", Log: cfg.Log,
	}); err != nil {
		return err
	}
	replica := fmt.Sprintf("lib-%016x", id)
	if a.registry, err = registry.Open(ctx, registry.Config{
		Conn: a.broker.Conn(), Namespace: n.Namespace, Replica: replica, Metrics: a.metrics, Log: cfg.Log,
	}); err != nil {
		return err
	}
	if cfg.index() == fleet.Events {
		if a.ingest, err = ingest.Open(ctx, ingest.Config{
			Conn: a.broker.Conn(), Namespace: n.Namespace, Replica: replica, Metrics: a.metrics, Log: cfg.Log,
			GapWait: cfg.GapWait, GapAsk: cfg.GapAsk,
			Left: func(sp event.Space, worker uint64) (time.Time, bool) {
				return a.registry.Left(registry.Key{Space: sp, Worker: worker})
			},
			Index: func(id event.Space) (ingest.Applier, error) {
				sp, err := a.set.Open(id)
				if err != nil {
					return nil, err // not sp: a nil *Space is no nil Applier
				}
				return sp, nil
			},
		}); err != nil {
			return err
		}
	}
	a.work.Go(func() { a.fleet.Follow(work, a.registry) })
	a.work.Go(func() { a.fleet.Forget(work, a.registry, a.ingest) })
	return nil
}

// Router returns the router of an index space, made if absent. With NATS its
// workers are those that are registered; without, tell it with SetWorker.
func (a *Atlas) Router(sp event.Space) (*route.Router, error) {
	m, err := a.fleet.Open(sp)
	if err != nil {
		return nil, fmt.Errorf("opening model %q: %w", sp.Model, err)
	}
	return m.Router, nil
}

// Spaces returns the index spaces that there are, sorted.
func (a *Atlas) Spaces() []event.Space {
	var list []event.Space
	for _, m := range a.fleet.Models() {
		list = append(list, m.Space)
	}
	return list
}

// ErrFed is returned by Apply of an Atlas that is fed in another way.
var ErrFed = errors.New("the index is fed by NATS, or by the routers' choices")

// Apply puts a worker's events into the index and returns when lookups see them.
// It is for an Atlas without NATS that is not approximate. Batches of one worker
// must not overtake each other.
func (a *Atlas) Apply(ctx context.Context, b *event.Batch) error {
	m, err := a.fleet.Open(b.Space)
	if err != nil {
		return fmt.Errorf("applying events: %w", err)
	}
	if a.broker != nil || m.Cache != nil {
		return ErrFed
	}
	sp := a.set.Lookup(b.Space)
	if sp == nil {
		return nil // nothing weighs what is cached
	}
	if _, err := sp.ApplyWait(ctx, b); err != nil {
		return fmt.Errorf("applying events: %w", err)
	}
	return nil
}

// Ready returns why choices do not know yet what workers hold; nil if they do.
func (a *Atlas) Ready() error {
	if a.ingest == nil {
		return nil
	}
	return a.ingest.Ready()
}

// readyPoll is how often WaitReady looks.
const readyPoll = 10 * time.Millisecond

// WaitReady returns when the index has caught up with what workers published, or
// when ctx ends, with why it has not.
func (a *Atlas) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := a.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// WriteMetrics writes the metrics in Prometheus's text format.
func (a *Atlas) WriteMetrics(w io.Writer) { a.metrics.WritePrometheus(w) }

// expire lets bookings end whose lease is over.
func (a *Atlas) expire(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.fleet.Expire()
		}
	}
}

// Close ends everything that Open began. Routers may be asked no more.
func (a *Atlas) Close() error {
	a.close.Do(func() {
		a.stop()
		a.work.Wait()
		a.err = a.fleet.Close()
		if a.ingest != nil {
			a.ingest.Close()
		}
		if a.registry != nil {
			a.registry.Close()
		}
		a.set.Close()
		if a.broker != nil {
			a.err = errors.Join(a.err, a.broker.Close())
		}
	})
	return a.err
}
