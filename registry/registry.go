package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// DefaultForget is after how long a worker that left is forgotten unless told.
const DefaultForget = 24 * time.Hour

// Config holds the settings of a Registry. Replica is needed; zero in any other
// field means the stated default.
type Config struct {
	// Conn must reconnect for ever, and lives longer than the Registry. Without it
	// what is registered over HTTP is known to this Registry alone.
	Conn      *nats.Conn
	Namespace string // default "default"
	// Replica names this process among those that watch the namespace. No two
	// may share it.
	Replica string
	Bucket  BucketConfig
	// Static workers are registered for as long as this process runs, and those of
	// File (see ReadStatic) for as long as they are in it.
	Static []Worker
	File   string
	// Allow says which endpoints HTTP clients may register; the zero value
	// allows those of this machine.
	Allow Allow

	// Beat is how often this replica writes to the bucket to know that it
	// hears everything; default 2 s. Leases are judged at each beat.
	Beat time.Duration
	// Grace is after how long an HTTP registration that is not in the bucket
	// any more counts as gone; default 15 s.
	Grace time.Duration
	// Forget is after how long a worker that left is forgotten, here and in
	// the bucket; default 24 h. It must be longer than streams keep events.
	Forget time.Duration
	// MaxWorkers bounds the workers; registrations beyond are ignored and
	// counted. Default 65536.
	MaxWorkers int

	Now     func() time.Time // default time.Now
	Metrics *metrics.Set     // nil: not exposed
	Log     *slog.Logger     // nil: slog.Default()
}

func (c Config) withDefaults() (Config, error) {
	c.Namespace = cmp.Or(c.Namespace, "default")
	c.Beat = cmp.Or(c.Beat, 2*time.Second)
	c.Grace = cmp.Or(c.Grace, DefaultLease)
	c.Forget = cmp.Or(c.Forget, DefaultForget)
	c.MaxWorkers = cmp.Or(c.MaxWorkers, 1<<16)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Metrics == nil {
		c.Metrics = metrics.NewSet()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if err := stream.CheckNamespace(c.Replica); err != nil {
		return c, fmt.Errorf("registry: replica as %w", err)
	}
	if c.Beat < 0 || c.Grace < 0 || c.Forget < 0 || c.MaxWorkers < 0 {
		return c, errors.New("registry: a duration or a bound is negative")
	}
	static := make([]Worker, len(c.Static))
	for i, w := range c.Static {
		if err := w.normalise(); err != nil {
			return c, fmt.Errorf("registry: static worker %d of model %q: %w", w.ID, w.Model, err)
		}
		static[i] = w
	}
	c.Static = static
	return c, nil
}

// Registry watches a namespace's workers. It is safe for concurrent use.
type Registry struct {
	cfg    Config
	nonce  uint64
	m      *meters
	cancel context.CancelFunc
	done   sync.WaitGroup
	loaded chan struct{}           // closed after the first load
	file   *reload.Value[[]Worker] // nil: there is none
	named  *atomic.Int64           // the ledger's, read without the lock

	mu struct {
		sync.Mutex
		ledger *ledger
		subs   map[*Subscription]struct{}
		bucket *Bucket
		local  uint64        // revisions without a bucket
		seen   uint64        // highest revision applied in this session
		moved  chan struct{} // closed and replaced when seen grows
	}
}

// Open starts watching and returns once everything that is registered is
// known, or ctx ends.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg, nonce: rand.Uint64(), m: newMeters(cfg.Metrics), loaded: make(chan struct{})}
	if cfg.Conn != nil {
		if r.mu.bucket, err = OpenBucket(ctx, cfg.Conn, cfg.Namespace, cfg.Bucket); err != nil {
			return nil, err
		}
	}
	r.mu.subs = make(map[*Subscription]struct{})
	r.mu.moved = make(chan struct{})
	r.mu.ledger = newLedger(ledgerConfig{
		replica: cfg.Replica, nonce: r.nonce, gap: cfg.Beat * 5 / 2, grace: cfg.Grace, forget: cfg.Forget, maxWorkers: cfg.MaxWorkers,
	}, r.m, r.publish)
	r.named = r.mu.ledger.named
	static := cfg.Static
	if cfg.File != "" {
		if r.file, err = reload.Open(cfg.Log, cfg.Now, func() (*[]Worker, error) { list, err := ReadStatic(cfg.File); return &list, err }, cfg.File); err != nil {
			return nil, err
		}
		static = slices.Concat(static, *r.file.Get())
	}
	r.mu.ledger.setStatic(cfg.Now(), static)
	r.gauges()
	run, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	if r.file != nil {
		r.done.Go(func() { r.followFile(run) })
	}
	if cfg.Conn == nil {
		r.finishLoad()
		return r, nil
	}
	r.done.Go(func() { r.run(run) })
	select {
	case <-r.loaded:
		return r, nil
	case <-ctx.Done():
		cancel()
		r.done.Wait()
		return nil, fmt.Errorf("registry: reading who is registered: %w", ctx.Err())
	}
}

// Close ends the watch and takes this replica's beat out of the bucket.
func (r *Registry) Close() {
	r.cancel()
	r.done.Wait()
	if r.cfg.Conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.bucket().kv.Purge(ctx, replicaKey(r.cfg.Replica)) // else it is cleaned up one day
}

// followFile keeps the static workers as the file has them, until ctx ends.
func (r *Registry) followFile(ctx context.Context) {
	ticker := time.NewTicker(reload.LookEvery)
	defer ticker.Stop()
	for known := r.file.Get(); ; {
		if list := r.file.Get(); list != known {
			known = list
			r.mu.Lock()
			r.mu.ledger.setStatic(r.cfg.Now(), slices.Concat(r.cfg.Static, *list))
			r.mu.Unlock()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// FileErr returns why the workers are not those of Config.File as it is now; nil if
// they are.
func (r *Registry) FileErr() error {
	if r.file == nil {
		return nil
	}
	return r.file.Err()
}

// publish passes an event of the ledger on; r.mu is held.
func (r *Registry) publish(e Event) {
	for s := range r.mu.subs {
		if s.put(e) {
			r.m.overflows.Inc()
		}
	}
	r.logEvent(e)
}

func (r *Registry) logEvent(e Event) {
	w := []any{"worker", e.Entry.Key.Worker, "model", e.Entry.Model, "group", e.Entry.Group}
	if e.Entry.Mismatch != "" && (e.Kind == Joined || e.Kind == Updated || e.Kind == Returned) {
		r.cfg.Log.Warn("a worker's hashes never match here", append(w, "reason", e.Entry.Mismatch)...)
	}
	switch e.Kind {
	case Left:
		r.cfg.Log.Info("worker left", append(w, "reason", e.Entry.LeftBy.String())...)
	case Joined, Returned:
		r.cfg.Log.Info("worker "+e.Kind.String(), append(w, "state", e.Entry.Status(), "transport", e.Entry.Transport)...)
	case Updated, Resync:
		r.cfg.Log.Debug("worker updated", append(w, "state", e.Entry.Status(), "restarted", e.Restarted)...)
	}
}

// sayEvery is how often it is said why watching begins again: without a quorum it does each two seconds, for hours.
const sayEvery = 10 * time.Second

// run watches until ctx ends, beginning again after every failure.
func (r *Registry) run(ctx context.Context) {
	limited := obs.NewLimited(r.cfg.Log, sayEvery, nil)
	backoff := r.cfg.Beat / 20
	for ctx.Err() == nil {
		began := time.Now()
		err := r.session(ctx)
		if ctx.Err() != nil {
			return
		}
		r.m.sessions.Inc()
		limited.Warn(err.Error(), "watching the registry begins again", slog.Any("error", err))
		if time.Since(began) > 10*r.cfg.Beat {
			backoff = r.cfg.Beat / 20
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, 2*time.Second)
	}
}

var (
	errSilent      = errors.New("nothing comes, not even this replica's beats")
	errReconnected = errors.New("the connection was away: the server may be another, or have another past")
	errWentBack    = errors.New("the bucket's revisions have gone back, as of a server that was restored from a backup")
)

// session watches the bucket until something fails.
func (r *Registry) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, done := context.WithTimeout(ctx, 5*time.Second)
	b, err := OpenBucket(request, r.cfg.Conn, r.cfg.Namespace, r.cfg.Bucket)
	done()
	if err != nil {
		return err
	}
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("registry: watching the bucket: %w", err)
	}
	defer w.Stop() //nolint:errcheck // it ends either way
	reconnected := r.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer r.cfg.Conn.RemoveStatusListener(reconnected)
	r.mu.Lock()
	r.mu.bucket, r.mu.seen = b, 0
	r.mu.ledger.begin()
	r.mu.Unlock()

	var beating sync.WaitGroup
	defer func() { cancel(); beating.Wait() }()
	beating.Go(func() { r.beatOn(ctx, b) })
	// A watch that hears nothing, not even the own beats, although the connection stands, has ended. One
	// that reads what there is may hear no beat for long.
	check := time.NewTicker(r.cfg.Beat)
	defer check.Stop()
	missed := 0
	for {
		select {
		case e, open := <-w.Updates():
			if !open {
				return errors.New("registry: the watch has ended")
			}
			if e == nil {
				r.finishLoad()
				continue
			}
			missed = 0
			if r.applyChange(changeOf(e)) {
				return errWentBack
			}
		case <-reconnected:
			return errReconnected
		case <-check.C:
			if missed++; missed > 4 && r.cfg.Conn.IsConnected() {
				return errSilent
			}
			r.clean(ctx, b)
			r.restore(ctx, b)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applyChange applies one change. It reports whether it is of a bucket that has gone back, and not applied.
func (r *Registry) applyChange(c change) (back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.revision <= r.mu.seen {
		return true
	}
	r.mu.ledger.apply(r.cfg.Now(), c)
	r.mu.seen = c.revision
	close(r.mu.moved)
	r.mu.moved = make(chan struct{})
	return false
}

func (r *Registry) finishLoad() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ledger.loaded(r.cfg.Now())
	select {
	case <-r.loaded:
	default:
		close(r.loaded)
	}
}

// clean takes old garbage out of the bucket. What fails is tried again after
// the next load.
func (r *Registry) clean(ctx context.Context, b *Bucket) {
	const atATime = 100
	r.mu.Lock()
	list := r.mu.ledger.garbage(atATime)
	r.mu.Unlock()
	for _, g := range list {
		request, cancel := context.WithTimeout(ctx, time.Second)
		err := b.clean(request, g)
		cancel()
		if err != nil {
			r.m.failedCleaning.Inc()
			return // another replica was faster, or the server is away
		}
		r.m.cleaned.Inc()
	}
}

func (r *Registry) bucket() *Bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.bucket
}

// Connected reports whether this replica hears its own beats through the
// bucket at present; else no lease is judged. Without a bucket there is nothing to be heard,
// and none to be missed.
func (r *Registry) Connected() bool {
	if r.cfg.Conn == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.mu.ledger
	return !l.beatAt.IsZero() && r.cfg.Now().Sub(l.beatAt) <= l.cfg.gap
}

// Snapshot returns the workers, sorted by model, block size, group and id; with
// departed those too that left and are not forgotten.
func (r *Registry) Snapshot(departed bool) []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.entries(func(m *member) bool { return departed || m.state.present() })
}

// Lookup returns one worker, present or departed.
func (r *Registry) Lookup(k Key) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.lookup(k)
}

// Name returns the name that the worker is registered by; "" if it is by its
// number, or is not.
func (r *Registry) Name(k Key) string {
	if r.named.Load() == 0 { // an answer asks for each worker's
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.mu.ledger.members[k]; m != nil {
		return m.worker.Name
	}
	return ""
}

// Left returns when the worker's rank last left, alone or with the worker, if it
// is not registered now: what it published until then is void. It knows of those
// that left before this replica began, for Config.Forget.
func (r *Registry) Left(k Key, rank uint32) (Departure, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.left(k, rank)
}

// HasRank reports whether the rank is among those that the worker is announced with, or
// that the static list names; also if it is on neither: HTTP clients register rank by rank.
func (r *Registry) HasRank(k Key, rank uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mu.ledger.members[k]
	return m == nil || m.lease == nil && m.static == nil || m.state != Live && m.state != Suspect || slices.Contains(m.worker.Ranks, rank)
}

// IsDrained reports whether the worker, registered or not, gets no requests.
func (r *Registry) IsDrained(worker uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.drains[worker] != nil
}

// Corrupt returns the values of the bucket that are ignored, sorted by key.
func (r *Registry) Corrupt() []Corrupt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.contents().Corrupt
}
