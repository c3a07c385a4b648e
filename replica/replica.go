package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/internal/program/sysmem"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// Replica is one copy of the index. Its methods are safe for concurrent use; New,
// Start and Close are called once, in this order.
type Replica struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics.Set
	set     *shard.Set
	share   stream.Share

	registry atomic.Pointer[registry.Registry] // nil until it is read
	starting startup.Progress
	ingest   atomic.Pointer[ingest.Ingest] // nil until events are read, and where none are
	joined   atomic.Bool                   // there is a connection to ask of who is registered
	started  atomic.Bool                   // Start has done all

	broker  *broker.Broker // nil without NATS; Start's, as the next
	workers *workers       // nil where no events are read
	shares  *shares.Shares // nil: the index is here
	keeper  *keeper.Keeper // nil without snapshots

	serving sync.Mutex      // only appends, copies and marks: programs serve while it runs
	servers []*query.Server // behind serving, as the next
	closed  bool            // they are ended, and so is what is still served
}

// New returns a Replica that is not connected: its index is empty.
func New(cfg Config) (*Replica, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Replica{cfg: cfg, log: cfg.Log, metrics: cfg.Metrics.Set}
	if limit, known := sysmem.Limit(); known && cfg.MemoryBudget >= limit {
		r.log.Warn("the memory budget is all that this process may use, or more: the system will end it before blocks are refused; half leaves room for the rest",
			"budget", cfg.MemoryBudget, "limit", limit)
	}
	r.share, _ = stream.ParseShare(cfg.Share) // it was checked
	var err error
	if r.shares, err = shares.New(cfg.Shares, cfg.Metrics, cfg.Log); err != nil {
		return nil, err
	}
	r.set = shard.New(shard.Config{
		Shards: cfg.Shards, Queue: cfg.Queue, MaxSpaces: cfg.MaxSpaces, MemoryBudget: max(0, cfg.MemoryBudget),
		EngineScheme: r.engineScheme,
	})
	registerMetrics(cfg.Metrics, r.set)
	return r, nil
}

// WriteMetrics writes the metrics in Prometheus's text format.
func (r *Replica) WriteMetrics(w io.Writer) { r.cfg.Metrics.WritePrometheus(w) }

// Namespace returns the namespace that it is of.
func (r *Replica) Namespace() string { return r.cfg.Namespace }

// Set returns the index.
func (r *Replica) Set() *shard.Set { return r.set }

// Shares returns the indexers that are asked in place of Set; nil if there are none.
func (r *Replica) Shares() *shares.Shares { return r.shares }

// Registry returns who is registered; nil before Start.
func (r *Replica) Registry() *registry.Registry { return r.registry.Load() }

// Conn returns the connection to NATS; nil before Start, and without NATS. It ends with Close.
// A program that only publishes to an embedded server of another process gets it so, with
// Config.Fed and Config.NATS.JoinOnly.
func (r *Replica) Conn() *nats.Conn {
	if r.broker == nil {
		return nil
	}
	return r.broker.Conn()
}

// Start connects, finds the workers, restores snapshots and begins to read; Ready
// tells when it has caught up. ctx bounds the start only. After an error Close is
// still to be called.
func (r *Replica) Start(ctx context.Context) (err error) {
	defer func() { err = obs.Plain(err) }()
	reg, address, err := r.connect(ctx)
	if err != nil {
		return err
	}
	r.registry.Store(reg)
	if !r.cfg.Fed {
		if err := r.readEvents(ctx, reg); err != nil {
			return err
		}
	}
	if r.shares != nil {
		r.shares.Follow(ctx)
	}
	r.started.Store(true)
	r.log.Info("started", "nats", address, "namespace", r.cfg.Namespace, "replica", r.cfg.Replica, "events", !r.cfg.Fed)
	return nil
}

// connect gets the broker and reads who is registered. A server that ends in that moment
// is looked for anew: it may have been another process's, and this one's turn to run it.
func (r *Replica) connect(ctx context.Context) (reg *registry.Registry, address string, err error) {
	if !r.cfg.HasNATS() {
		reg, err = r.openRegistry(ctx)
		return reg, broker.None, err
	}
	for {
		if r.broker, err = broker.Open(ctx, r.cfg.NATS); err != nil {
			return nil, "", err
		}
		address = r.broker.Address()
		r.joined.Store(true)
		connections := r.Conn().Stats().Reconnects
		attempt, cancel := context.WithCancel(ctx)
		down := r.Conn().StatusChanged(nats.RECONNECTING)
		go func() { // ends with the attempt
			select {
			case <-down:
				cancel() // what was asked would be waited for
			case <-attempt.Done():
			}
		}()
		err = r.answered(attempt, func() (err error) { reg, err = r.openRegistry(attempt); return err })
		cancel()
		r.Conn().RemoveStatusListener(down)
		if err == nil || !r.lost(ctx, connections, err) {
			return reg, address, err
		}
		r.joined.Store(false)
		_ = r.broker.Close() // nothing was sent that anybody waits for
		r.broker = nil
	}
}

// connected calls f, and again as long as it fails because the connection was lost
// meanwhile, when that is back.
func (r *Replica) connected(ctx context.Context, f func() error) error {
	for {
		connections := r.Conn().Stats().Reconnects
		if err := r.answered(ctx, f); err == nil || !r.lost(ctx, connections, err) {
			return err
		}
		for !r.Conn().IsConnected() && ctx.Err() == nil {
			r.pause(ctx, askAgain/10)
		}
	}
}

// answered calls f, and again as long as it fails because the server does not answer.
func (r *Replica) answered(ctx context.Context, f func() error) error {
	limited := obs.NewLimited(r.log, sayEvery, nil)
	for {
		err := f()
		if err == nil || ctx.Err() != nil || !stream.Unanswered(err) {
			return err
		}
		limited.Warn("unanswered", "NATS does not answer as this replica starts, trying again", slog.Any("error", err))
		r.pause(ctx, askAgain)
	}
}

// How soon it is asked again during the start, and how often that is said at most.
const (
	askAgain = time.Second
	sayEvery = 10 * time.Second
)

// lost reports, after a pause, whether a step of the start failed because the server was
// away: the connection is down, or another one than before it.
func (r *Replica) lost(ctx context.Context, before uint64, err error) bool {
	if ctx.Err() != nil || r.Conn().IsConnected() && r.Conn().Stats().Reconnects == before {
		return false
	}
	r.log.Warn("the NATS server went away during the start, trying again", "error", err)
	r.pause(ctx, askAgain/10)
	return ctx.Err() == nil
}

func (r *Replica) pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

// openRegistry reads who is registered and watches from then on.
func (r *Replica) openRegistry(ctx context.Context) (*registry.Registry, error) {
	cfg := registry.Config{
		Conn: r.Conn(), Namespace: r.cfg.Namespace, Replica: r.cfg.Replica, Metrics: r.metrics, Log: r.log,
		Bucket: registry.BucketConfig{Replicas: r.cfg.NATS.Replicas},
	}
	if err := r.cfg.Registry.Apply(&cfg); err != nil {
		return nil, err
	}
	cfg.Static = append(cfg.Static, r.cfg.Static...)
	return registry.Open(ctx, cfg)
}

// readEvents restores snapshots, and begins to read what workers publish.
func (r *Replica) readEvents(ctx context.Context, reg *registry.Registry) (err error) {
	if r.workers, err = r.newWorkers(reg); err != nil {
		return err
	}
	cfg := ingest.Config{
		Conn: r.Conn(), Namespace: r.cfg.Namespace, Replica: r.cfg.Replica, Index: ingest.Into(r.set), Left: r.workers.left, Registered: r.workers.registered,
		Share:    r.share,
		Discover: r.cfg.Discover, MaxLag: r.cfg.ReadyLag, MaxMessages: r.cfg.IngestMessages, MaxBytes: int(r.cfg.IngestBytes),
		Metrics: r.metrics, Log: r.log,
	}
	r.cfg.Ingest.Apply(&cfg)
	// The registry is read already: it says who has left since the snapshots.
	kc := keeper.Config{
		Conn: cfg.Conn, Namespace: cfg.Namespace, Replica: cfg.Replica, Set: r.set, Share: r.share, Forget: r.cfg.Registry.Forget, Replicas: r.cfg.NATS.Replicas,
		Program: obs.ReadVersion().String(), Progress: &r.starting, Metrics: r.metrics, Log: r.log,
	}
	if err := r.connected(ctx, func() (err error) {
		r.keeper, cfg.Start, err = r.cfg.Snapshots.Start(ctx, kc)
		return err
	}); err != nil {
		return err
	}
	if r.keeper != nil {
		cfg.FindSnapshot = r.keeper.Reload
	}
	r.workers.heedAll(ctx)
	var in *ingest.Ingest
	if err := r.connected(ctx, func() (err error) { in, err = ingest.Open(ctx, cfg); return err }); err != nil {
		return err
	}
	r.ingest.Store(in)
	r.registerStale()
	if r.keeper != nil {
		r.keeper.Run(in)
	}
	r.workers.follow()
	return nil
}

// Ready returns nil once the index has caught up with what was published before
// the start; else an error that says what it waits for.
func (r *Replica) Ready() error {
	if why := r.Behind(); why != "" {
		return errors.New(why)
	}
	return nil
}

// Behind says why the index is not to be asked yet; "" if it is.
func (r *Replica) Behind() string {
	if !r.started.Load() {
		if report := r.starting.Report(); report.Phase != startup.Connecting {
			return report.String()
		}
		if r.joined.Load() {
			return "connected to NATS, but the registry is not read yet: see that JetStream answers there, and most servers of a cluster run"
		}
		return "not connected to NATS yet"
	}
	if r.cfg.Fed {
		return ""
	}
	if err := r.ingest.Load().Ready(); err != nil {
		return err.Error()
	}
	return r.workers.behindEngines()
}

// Silent says that what is known is of before, as NATS has not been heard for a while; "" if
// it has.
func (r *Replica) Silent() string {
	if in := r.ingest.Load(); in != nil {
		if err := in.Silent(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// cutOff says that the registry is not heard at the moment, as without a connection, or of a cluster
// without a quorum; "" if it is.
func (r *Replica) cutOff() string {
	if reg := r.registry.Load(); reg != nil && !reg.Connected() {
		return "this replica's beats do not come back from NATS: who came, left or was lost since is not known, and no lease is judged"
	}
	return ""
}

// Progress says how far the start is.
func (r *Replica) Progress() startup.Report {
	report := r.starting.Report()
	if in := r.ingest.Load(); in != nil {
		report.Streams(in.Progress())
	} else if r.started.Load() { // there is nothing to read
		report.Phase = startup.CaughtUp
	}
	return report
}

// refused says which streams are not read, and why; "" if all are.
func (r *Replica) refused() string {
	in := r.ingest.Load()
	if in == nil {
		return ""
	}
	return strings.Join(in.Refused(), "; ")
}

// unlisted says why the workers are not those of the file as it is now; "" if they are.
func (r *Replica) unlisted() string {
	if reg := r.registry.Load(); reg != nil {
		if err := reg.FileErr(); err != nil {
			return "the file of --registry-workers is not taken, what was read before stays in force: " + err.Error()
		}
	}
	return ""
}

// Away says which shares do not answer, and why; "" if all do, or there are none.
func (r *Replica) Away() string {
	if r.shares == nil {
		return ""
	}
	return r.shares.Away()
}

// full says that the memory budget is reached; "" if it is not.
func (r *Replica) full() string {
	if !r.set.Full() {
		return ""
	}
	used, budget := r.set.MemoryBudget()
	return fmt.Sprintf("the memory budget is reached, new blocks are refused or soon will be: %d of %d bytes; raise --memory-budget", used, budget)
}

// Close ends the servers and the reading, takes the last snapshots of what it has changed, and
// leaves the broker. Lookups go on working. ctx bounds the snapshots.
func (r *Replica) Close(ctx context.Context) (err error) {
	r.serving.Lock()
	servers := r.servers
	r.closed = true
	r.serving.Unlock()
	for _, s := range servers {
		err = errors.Join(err, s.Shutdown(ctx))
	}
	if r.shares != nil {
		r.shares.Close()
	}
	if r.workers != nil {
		r.workers.close()
	}
	if in := r.ingest.Load(); in != nil {
		in.Close()
	}
	if reg := r.registry.Load(); reg != nil {
		reg.Close()
	}
	// Nothing changes the index any more, and the broker is still there.
	if r.keeper != nil {
		r.keeper.Close(ctx)
	}
	r.set.Close()
	if r.broker != nil {
		err = errors.Join(err, r.broker.Close())
	}
	return err
}
