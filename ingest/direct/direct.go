package direct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Endpoint is where one rank publishes.
type Endpoint struct {
	Events string // tcp://host:port or ipc://path
	Replay string // likewise; empty: there is no replay
	// Snapshot is where the engine gives all that it holds, likewise.
	Snapshot string
	// Lora and Salt are those of what the engine does not name any for.
	Lora, Salt string
	// Loras are the names of adapters that it gives by number. Nobody changes it.
	Loras map[int64]string
	// Remote is as the decoder's.
	Remote bool
}

// reads reports whether the endpoint's events have the same content as the other's.
func (e *Endpoint) reads(o *Endpoint) bool {
	return e.Lora == o.Lora && e.Salt == o.Salt && e.Remote == o.Remote && maps.Equal(e.Loras, o.Loras)
}

// Key names a worker.
type Key struct {
	Space  event.Space
	Worker uint64
}

// Config holds the settings of a Direct. Index is needed; zero in any other
// field means the stated default.
type Config struct {
	// Index returns where a space's events go.
	Index func(event.Space) (ingest.Applier, error)
	// Tell is told of each change of a rank's state, on its feed's goroutine;
	// nil: nobody is.
	Tell func(Key, RankStatus)
	// Replays bounds the replays and snapshots at a time over all ranks; default 8.
	Replays int
	Feed    zmqfeed.Config // its times and bounds; the rest is set here
	Metrics *metrics.Set   // nil: not exposed
	Log     *slog.Logger   // nil: slog.Default()
}

// Direct follows engines. It is safe for concurrent use.
type Direct struct {
	cfg   Config
	m     *meters
	limit *zmqfeed.Limit

	mu struct {
		sync.Mutex
		closed bool
		ranks  map[rankKey]*follower
	}
}

type rankKey struct {
	Key
	dpRank uint32
}

// New returns a Direct that follows nothing yet.
func New(cfg Config) (*Direct, error) {
	if cfg.Index == nil {
		return nil, errors.New("direct: no index given")
	}
	if cfg.Replays == 0 {
		cfg.Replays = 8
	}
	if cfg.Metrics == nil {
		cfg.Metrics = metrics.NewSet()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	d := &Direct{cfg: cfg, limit: zmqfeed.NewLimit(cfg.Replays)}
	d.mu.ranks = make(map[rankKey]*follower)
	d.m = newMeters(cfg.Metrics, d)
	return d, nil
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("direct: closed")

// Follow follows the worker's ranks at these endpoints: new ones from their
// beginning, those that moved from where they were. Ranks that are not among
// them any more are no longer followed. An endpoint that nothing can be connected to, and
// the rank of pools, are errors, and the others are followed. Whether an engine is reached is not
// waited for: it is tried again until it is, which the log and RankStatus show.
func (d *Direct) Follow(k Key, ranks map[uint32]Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return ErrClosed
	}
	for _, n := range d.ranksLocked(k) {
		if _, ok := ranks[n]; !ok {
			d.stopLocked(rankKey{k, n})
		}
	}
	said := d.saidLocked(k)
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(ranks)) {
		if err := d.followLocked(rankKey{k, n}, ranks[n], said); err != nil {
			errs = append(errs, fmt.Errorf("direct: worker %d, rank %d: %w", k.Worker, n, err))
		}
	}
	return errors.Join(errs...)
}

func (d *Direct) followLocked(k rankKey, at Endpoint, said *said) error {
	old := d.mu.ranks[k]
	if old != nil && old.at.Events == at.Events && old.at.Replay == at.Replay && old.at.Snapshot == at.Snapshot && old.at.reads(&at) {
		return nil
	}
	if k.dpRank == event.PoolRank {
		return fmt.Errorf("rank %d is that of pools, which no engine publishes as: give its data-parallel rank", k.dpRank)
	}
	index, err := d.cfg.Index(k.Space)
	if err != nil {
		return err
	}
	cfg := d.cfg.Feed
	cfg.Endpoint, cfg.Replay, cfg.Snapshot, cfg.Limit = at.Events, at.Replay, at.Snapshot, d.limit
	cfg.Decoder = engine.Config{BlockSize: int(k.Space.BlockSize), Rank: k.dpRank, Lora: at.Lora, Salt: at.Salt, Loras: at.Loras, Remote: at.Remote}
	r := &follower{d: d, key: k, at: at, index: index, said: said, contact: said.contacts.Rank(k.dpRank), done: make(chan struct{})}
	if old != nil {
		d.stopLocked(k)
		if old.at.reads(&at) { // else it has other content
			cfg.Position, cfg.Incomplete, r.begun = old.feed.Position(nil), old.status().Incomplete, true
		}
		r.stat.RankStatus = old.stat.RankStatus
	}
	r.stat.DPRank, r.stat.Endpoint = k.dpRank, at.Events
	if r.feed, err = zmqfeed.New(cfg, r); err != nil {
		return err
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.ctx = ctx
	d.mu.ranks[k] = r
	go r.run()
	return nil
}

// saidLocked returns where the worker's ranks that are followed say what they do, or a new one.
func (d *Direct) saidLocked(k Key) *said {
	for rk, r := range d.mu.ranks {
		if rk.Key == k {
			return r.said
		}
	}
	log := d.cfg.Log.With("worker", k.Worker, "model", k.Space.Model)
	return &said{zmqfeed.NewContacts(log), obs.NewLimited(log, time.Second, nil)}
}

func (d *Direct) ranksLocked(k Key) (list []uint32) {
	for rk := range d.mu.ranks {
		if rk.Key == k {
			list = append(list, rk.dpRank)
		}
	}
	return list
}

// stopLocked ends a rank's feed. Its goroutine takes no lock of d.
func (d *Direct) stopLocked(k rankKey) {
	r := d.mu.ranks[k]
	delete(d.mu.ranks, k)
	r.cancel()
	<-r.done
	d.m.leave(r.feed.Stats())
}

// Unfollow stops following the worker.
func (d *Direct) Unfollow(k Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.ranksLocked(k) {
		d.stopLocked(rankKey{k, n})
	}
}

// Follows reports whether the worker is followed.
func (d *Direct) Follows(k Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ranksLocked(k)) > 0
}

// Close stops following everybody. The index closes after it, not before.
func (d *Direct) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.closed = true
	for k := range d.mu.ranks {
		d.stopLocked(k)
	}
}

func (d *Direct) all() []*follower {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.mu.ranks))
}

// Ready returns nil once every rank has been caught up with, or has turned out
// not to answer: an engine that is away does not keep the others' index from
// being asked.
func (d *Direct) Ready() error {
	for _, r := range d.all() {
		if s := r.status(); !s.Tried {
			return fmt.Errorf("the engine of worker %d, rank %d, at %s is not caught up with", r.key.Worker, r.key.dpRank, r.at.Events)
		}
	}
	return nil
}

// Followed is one rank that is followed.
type Followed struct {
	Key
	RankStatus
}

// All returns the state of every rank, in no particular order.
func (d *Direct) All() []Followed {
	var list []Followed
	for _, r := range d.all() {
		list = append(list, Followed{r.key.Key, r.status()})
	}
	return list
}

// Feeds returns what the feeds of a worker's ranks have counted, by rank.
func (d *Direct) Feeds(k Key) map[uint32]zmqfeed.Stats {
	all := make(map[uint32]zmqfeed.Stats)
	for _, r := range d.all() {
		if r.key.Key == k {
			all[r.key.dpRank] = r.feed.Stats()
		}
	}
	return all
}

// Ranks returns the state of a worker's ranks, by rank.
func (d *Direct) Ranks(k Key) map[uint32]RankStatus {
	all := make(map[uint32]RankStatus)
	for _, r := range d.all() {
		if r.key.Key == k {
			all[r.key.dpRank] = r.status()
		}
	}
	return all
}
