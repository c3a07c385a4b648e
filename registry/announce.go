package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// DefaultLease is how long an announcement holds unless told.
const DefaultLease = 15 * time.Second

// AnnounceConfig holds the settings of an Announcement. Conn is needed; zero
// in any other field means the stated default.
type AnnounceConfig struct {
	Conn      *nats.Conn // must reconnect for ever; lives longer than the Announcement
	Namespace string     // default "default"
	Bucket    BucketConfig
	// Lease is how long the worker counts as alive without a heartbeat;
	// default 15 s. A heartbeat is written each third of it.
	Lease time.Duration
	// Positions, if set, returns how far the worker's streams are, for each
	// heartbeat to tell.
	Positions func() []event.Position
	Log       *slog.Logger // nil: slog.Default()
}

// Errors of an Announcement.
var (
	// ErrSuperseded: another process announces the same worker. This one is
	// silent until the other is.
	ErrSuperseded = errors.New("another process announces the same worker: give each worker an id of its own")
	// ErrWithdrawn is returned after Close.
	ErrWithdrawn = errors.New("the announcement is withdrawn")
)

// Announcement is a worker's place in the registry. It is safe for concurrent
// use.
type Announcement struct {
	cfg       AnnounceConfig
	announcer uint64
	key       string
	cancel    context.CancelFunc
	done      chan struct{} // closed when the heartbeats have ended

	mu struct { // held while the key is written
		sync.Mutex
		worker   Worker
		former   []formerRanks // ranks of the worker before
		bucket   *Bucket
		revision uint64 // of the last write known to be ours; 0: none
		closed   bool
		err      error // why the last write failed

		rival      uint64    // revision of another's announcement; 0: none
		rivalSince time.Time // since when it is unchanged
	}
}

// Register announces the worker and keeps its lease until Close. It replaces
// what another process announced before: that one is taken for dead.
func Register(ctx context.Context, w Worker, cfg AnnounceConfig) (*Announcement, error) {
	cfg.Namespace = cmp.Or(cfg.Namespace, "default")
	cfg.Lease = cmp.Or(cfg.Lease, DefaultLease)
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Lease < minLease || cfg.Lease > maxLease {
		return nil, fmt.Errorf("registry: lease %v, give %v to %v", cfg.Lease, minLease, maxLease)
	}
	if err := w.normalise(); err != nil {
		return nil, fmt.Errorf("registry: worker %d: %w", w.ID, err)
	}
	a := &Announcement{cfg: cfg, key: leaseKey(w.Key()), announcer: 1 + rand.Uint64N(1<<63), done: make(chan struct{})}
	a.mu.worker = w
	b, err := OpenBucket(ctx, cfg.Conn, cfg.Namespace, cfg.Bucket)
	if err != nil {
		return nil, obs.Plain(err)
	}
	a.mu.bucket = b
	a.mu.Lock()
	err = a.writeLocked(ctx, true)
	a.mu.Unlock()
	if err != nil {
		return nil, obs.Plain(err)
	}
	run, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go a.beat(run) // ends with Close
	return a, nil
}

// Worker returns what is announced.
func (a *Announcement) Worker() Worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.worker
}

// Err returns why the last heartbeat was not written; nil if it was.
func (a *Announcement) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.err
}

// Update announces the worker anew, with other properties and the same id and
// space. With an error the next heartbeat tries again.
func (a *Announcement) Update(ctx context.Context, w Worker) error {
	if err := w.normalise(); err != nil {
		return fmt.Errorf("registry: worker %d: %w", w.ID, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.mu.closed:
		return ErrWithdrawn
	case w.Key() != a.mu.worker.Key():
		return errors.New("registry: an update cannot change a worker's id or space: close and register anew")
	}
	a.mu.former = a.mu.bucket.former(ctx, &record{Worker: a.mu.worker, Former: a.mu.former}, time.Time{}, &w)
	a.mu.worker = w
	return a.writeLocked(ctx, false)
}

// Stop ends the heartbeats and leaves the registration as it is, until its
// lease runs out: for a process that will soon be back.
func (a *Announcement) Stop() {
	a.cancel()
	<-a.done
}

// Close ends the heartbeats and unregisters the worker: its blocks leave every
// index. With an error its lease has to run out. Closing twice is fine.
func (a *Announcement) Close(ctx context.Context) error {
	a.cancel()
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return nil
	}
	a.mu.closed = true
	for range 3 {
		if a.mu.revision == 0 || a.mu.rival != 0 {
			ours, err := a.lookLocked(ctx)
			if err != nil || !ours || a.mu.revision == 0 {
				return err // another's, or gone already
			}
		}
		r := record{Worker: a.mu.worker, Former: a.mu.former}
		_, err := a.mu.bucket.bury(ctx, a.key, &r, a.mu.bucket.moment(ctx, r.Worker.Key()), a.mu.revision)
		if err == nil {
			return nil
		}
		if !stream.IsConflict(err) {
			return fmt.Errorf("registry: unregistering worker %d: %w", a.mu.worker.ID, unanswered(err))
		}
		a.mu.revision = 0 // look again
	}
	return fmt.Errorf("registry: unregistering worker %d: %w", a.mu.worker.ID, errChanging)
}

// beat writes heartbeats until ctx ends.
func (a *Announcement) beat(ctx context.Context) {
	defer close(a.done)
	ticker := time.NewTicker(a.cfg.Lease / 3)
	defer ticker.Stop()
	reconnected := a.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer a.cfg.Conn.RemoveStatusListener(reconnected)
	failing := false
	for {
		select {
		case <-ticker.C:
		case <-reconnected: // the lease has run on meanwhile
		case <-ctx.Done():
			return
		}
		request, cancel := context.WithTimeout(ctx, a.cfg.Lease/3)
		a.mu.Lock()
		err := a.writeLocked(request, false)
		a.mu.Unlock()
		cancel()
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failed {
				a.cfg.Log.Warn("the worker's registration is not kept alive", "worker", a.Worker().ID, "error", err)
			} else {
				a.cfg.Log.Info("the worker's registration is kept alive again", "worker", a.Worker().ID)
			}
		}
	}
}

// writeLocked writes the announcement. takeOver lets it replace another
// process's at once.
func (a *Announcement) writeLocked(ctx context.Context, takeOver bool) (err error) {
	defer func() { a.mu.err = obs.Plain(err) }()
	value, err := a.valueLocked()
	if err != nil {
		return err
	}
	var why error
	for range attempts {
		revision, err := a.putLocked(ctx, value)
		switch {
		case err == nil:
			a.mu.revision, a.mu.rival = revision, 0
			return nil
		case stream.IsConflict(err):
			// Written by another, or by us without our knowing, or gone; or a write of ours stays unfinished.
			was := a.mu.revision
			ours, err := a.lookLocked(ctx)
			if why = errChanging; was == a.mu.revision {
				why = fmt.Errorf("its key is being written and stays as it was: %s", obs.SeeCluster)
			}
			if err != nil {
				return err
			}
			if !ours && !takeOver && !a.silentLocked() {
				return fmt.Errorf("registry: worker %d: %w", a.mu.worker.ID, ErrSuperseded)
			}
			if value, err = a.valueLocked(); err != nil { // it may have had other ranks
				return err
			}
		case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
			// The server has lost the bucket, or is not ready yet, or nobody leads it.
			why = fmt.Errorf("bucket %s is there and takes nothing: %s: %w", BucketName(a.cfg.Namespace), obs.SeeCluster, err)
			b, openErr := OpenBucket(ctx, a.cfg.Conn, a.cfg.Namespace, a.cfg.Bucket)
			if openErr != nil {
				return openErr
			}
			a.mu.bucket, a.mu.revision = b, 0
		default:
			return fmt.Errorf("registry: announcing worker %d: %w", a.mu.worker.ID, unanswered(err))
		}
	}
	return fmt.Errorf("registry: announcing worker %d: %w", a.mu.worker.ID, why)
}

func (a *Announcement) putLocked(ctx context.Context, value []byte) (uint64, error) {
	if a.mu.revision == 0 {
		return a.mu.bucket.kv.Create(ctx, a.key, value)
	}
	return a.mu.bucket.kv.Update(ctx, a.key, value, a.mu.revision)
}

// lookLocked learns the key's revision and whether it is free or this
// process's.
func (a *Announcement) lookLocked(ctx context.Context) (ours bool, err error) {
	e, err := a.mu.bucket.kv.Get(ctx, a.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		a.mu.revision, a.mu.rival = 0, 0
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("registry: looking at worker %d: %w", a.mu.worker.ID, unanswered(err))
	}
	a.mu.revision = e.Revision()
	r, err := parseWorker(a.key, e.Value())
	if err == nil && r.Announcer != a.announcer {
		a.mu.former = a.mu.bucket.former(ctx, r, e.Created(), &a.mu.worker)
	}
	if err == nil && r.Announcer != a.announcer && r.Gone == nil {
		if a.mu.rival != e.Revision() {
			a.mu.rival, a.mu.rivalSince = e.Revision(), time.Now()
		}
		return false, nil
	}
	a.mu.rival = 0
	return true, nil // what cannot be read may be replaced
}

// silentLocked reports whether the other process has written nothing for a
// lease.
func (a *Announcement) silentLocked() bool {
	silent := time.Since(a.mu.rivalSince) >= a.cfg.Lease
	if !silent {
		a.mu.revision = 0 // so that the next try looks again
	}
	return silent
}

func (a *Announcement) valueLocked() ([]byte, error) {
	r := record{
		Version: recordVersion, Worker: a.mu.worker, LeaseMS: a.cfg.Lease.Milliseconds(), Announcer: a.announcer, Former: a.mu.former,
	}
	if a.cfg.Positions != nil {
		for _, p := range a.cfg.Positions() {
			r.Last = append(r.Last, position{p.DPRank, p.ID})
		}
	}
	value, err := json.Marshal(r)
	switch {
	case err != nil:
		return nil, fmt.Errorf("registry: worker %d: %w", a.mu.worker.ID, err)
	case len(value) > maxValue:
		return nil, fmt.Errorf("registry: worker %d: %d bytes of registration, at most %d", a.mu.worker.ID, len(value), maxValue)
	}
	return value, nil
}
