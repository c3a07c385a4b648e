package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/puzpuzpuz/xsync/v3"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// Config holds the settings of a Keeper. Conn, Replica and Set are needed; zero
// in any other field means the stated default.
type Config struct {
	Conn      *nats.Conn   // must reconnect for ever; lives longer than the Keeper
	Namespace string       // default "default"
	Replica   string       // name of this process among those of the namespace
	Set       *shard.Set   // of the index
	Share     stream.Share // of the workers: snapshots of its streams only are restored

	// Dir holds the snapshots; "" means the object store of NATS.
	Dir string
	// Spool is where snapshots of the object store are copied to while they are
	// read; "" is the system's directory for temporary files.
	Spool    string
	Replicas int // copies in the cluster; default three in one of three servers or more, else one

	Keep int // snapshots of each stream; default 3, at least 2
	// Threshold is how many messages may follow a snapshot before the next is
	// due; default 1,000,000. It is due sooner where those would take a start longer
	// to read than the snapshot takes it to load.
	Threshold uint64
	// Interval is how old a snapshot may be before the next is due, if anything
	// has changed; default 15 min. More than half of a stream's retention is
	// refused.
	Interval time.Duration
	// Check is how often it is looked at what is due; default 1 s.
	Check time.Duration
	// Lease is how long a writer may be silent before another takes over;
	// default 15 s.
	Lease   time.Duration
	Options snapshot.Options
	// Forget is after how long a worker that left is forgotten (registry.Config).
	// A snapshot that is older is only used if the stream has all that follows it:
	// else it may bring back who left in between. Zero: any is used.
	Forget time.Duration

	Program string // name and version, for the snapshots
	// Progress is told how far a start is; nil: nobody is.
	Progress *startup.Progress
	Metrics  *metrics.Set // nil: not exposed
	Log      *slog.Logger // nil: slog.Default()

	step func(name string) error // of tests: called at each step; an error is a crash there
}

// reads reports whether the stream is one of the share's.
func (c *Config) reads(info *stream.Info) bool {
	ours, err := c.Share.Reads(info)
	return ours && err == nil // who reads streams says what is wrong
}

func (c Config) withDefaults() (Config, error) {
	c.Namespace = cmp.Or(c.Namespace, "default")
	c.Keep = cmp.Or(c.Keep, 3)
	c.Threshold = cmp.Or(c.Threshold, 1_000_000)
	c.Interval = cmp.Or(c.Interval, 15*time.Minute)
	c.Check = cmp.Or(c.Check, time.Second)
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	if c.Metrics == nil {
		c.Metrics = metrics.NewSet()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Progress == nil {
		c.Progress = new(startup.Progress)
	}
	if c.step == nil {
		c.step = func(string) error { return nil }
	}
	switch {
	case c.Conn == nil || c.Set == nil || c.Replica == "":
		return c, errors.New("snapshots: Conn, Set and Replica are needed")
	case c.Keep < 2:
		return c, fmt.Errorf("snapshots: %d kept; keep 2 or more, one of them as a fallback", c.Keep)
	case c.Interval < 0 || c.Check < 0 || c.Lease < 0:
		return c, errors.New("snapshots: a duration is negative")
	case c.Lease < time.Millisecond: // parts of it are waited for
		return c, fmt.Errorf("snapshots: lease %v, give 1ms or more", c.Lease)
	}
	return c, nil
}

// Keeper keeps the snapshots of a namespace's streams. Its methods are safe for
// concurrent use.
type Keeper struct {
	cfg Config
	js  jetstream.JetStream
	m   *meters

	cancel context.CancelFunc
	done   chan struct{}
	in     *ingest.Ingest

	newest *xsync.MapOf[string, Newest] // by stream, for others to see: mu is held while one is written

	mu     sync.Mutex         // of the next two; and one look at a time
	kv     jetstream.KeyValue // nil before bucketLocked
	stream map[string]*streamState
}

// streamState is what is known of one stream's snapshots.
type streamState struct {
	store      store.Store // nil until it could be opened, and the lease with it
	lease      lease
	newest     store.Entry
	newestRead bool      // newest was read
	learned    time.Time // when
	seen       time.Time // when newest was seen first
	retry      time.Time // after a failure
	failing    int
	looked     time.Time // at the stream itself, when nothing was due
	roomy      bool      // there was room for what comes next at the last look since the newest snapshot
	warned     bool      // its retention is too short for the interval
}

// Newest is a stream's newest snapshot, as it was known at a moment.
type Newest struct {
	store.Entry // without a name: there is none
	At          time.Time
	Err         error // why none was taken then, or it is not known which is the newest
}

// Newest returns those of the streams that were looked at, by the streams' names.
func (k *Keeper) Newest() map[string]Newest {
	all := make(map[string]Newest)
	k.newest.Range(func(name string, n Newest) bool {
		all[name] = n
		return true
	})
	return all
}

// Open returns a Keeper that has not begun yet: Run does. Settings.Start also
// restores what there is.
func Open(cfg Config) (*Keeper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	k := &Keeper{cfg: cfg, m: newMeters(cfg.Metrics), newest: xsync.NewMapOf[string, Newest](), stream: make(map[string]*streamState)}
	if k.js, err = jetstream.New(cfg.Conn); err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	return k, nil
}

// bucketLocked returns the bucket of leases. It is opened when it is needed: a
// server that has no room for it keeps nobody from serving.
func (k *Keeper) bucketLocked(ctx context.Context) (_ jetstream.KeyValue, err error) {
	if k.kv == nil {
		k.kv, err = store.OpenKV(ctx, k.js, k.cfg.Namespace, k.cfg.Replicas)
	}
	return k.kv, err
}

// Store opens the store of a stream, as the settings say.
func (k *Keeper) Store(ctx context.Context, name string) (store.Store, error) {
	if k.cfg.Dir != "" {
		return store.OpenDir(k.cfg.Dir, name, nil)
	}
	return store.OpenBucket(ctx, k.cfg.Conn, k.cfg.Namespace, name, store.BucketConfig{Replicas: k.cfg.Replicas, Spool: k.cfg.Spool})
}

// stateLocked returns what is known of a stream.
func (k *Keeper) stateLocked(name string) *streamState {
	st := k.stream[name]
	if st == nil {
		st = &streamState{}
		k.stream[name] = st
	}
	return st
}

// openLocked opens the stream's store and lease if they are not open.
func (k *Keeper) openLocked(ctx context.Context, st *streamState, name string) error {
	if st.store != nil {
		return nil
	}
	kv, err := k.bucketLocked(ctx)
	if err != nil {
		return err
	}
	s, err := k.Store(ctx, name)
	if err != nil {
		return err
	}
	st.store, st.lease = s, lease{kv: kv, key: "lease." + name, holder: k.cfg.Replica, period: k.cfg.Lease}
	return nil
}

// CheckRetention refuses an interval above half of what a stream keeps: the
// stream could lose messages before a snapshot has them.
func (k *Keeper) CheckRetention(ctx context.Context) error {
	infos, err := stream.List(ctx, k.js, k.cfg.Namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return fmt.Errorf("snapshots: %w", err)
	}
	for _, info := range infos {
		if age, err := k.retention(ctx, info.Name); err != nil {
			return err
		} else if age > 0 && k.cfg.Interval > age/2 {
			return fmt.Errorf("snapshots every %v, but stream %s keeps messages for %v: give an interval of %v or less", k.cfg.Interval, info.Name, age, age/2)
		}
	}
	return nil
}

func (k *Keeper) retention(ctx context.Context, name string) (time.Duration, error) {
	s, err := k.js.Stream(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("snapshots: stream %s: %w", name, err)
	}
	return s.CachedInfo().Config.MaxAge, nil
}

// Run begins to take snapshots of what in reads.
func (k *Keeper) Run(in *ingest.Ingest) {
	ctx, cancel := context.WithCancel(context.Background())
	k.in, k.cancel, k.done = in, cancel, make(chan struct{})
	go func() {
		defer close(k.done)
		ticker := time.NewTicker(k.cfg.Check)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				k.checkStreams(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// checkStreams takes the snapshots that are due.
func (k *Keeper) checkStreams(ctx context.Context) {
	for _, s := range k.in.Streams() {
		if s.CaughtUp && s.Err == nil && ctx.Err() == nil {
			k.lookAt(ctx, s, false)
		}
	}
}

// lookAt takes a snapshot of the stream if one is due.
func (k *Keeper) lookAt(ctx context.Context, s ingest.StreamStatus, last bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.stateLocked(s.Stream)
	if now := time.Now(); !last && now.Before(st.retry) {
		return
	}
	err := k.tryLocked(ctx, st, s, last)
	// Whoever was held up for longer than a lease has lost it, and buckets that are gone are made again. At
	// the end there is no later look to do better.
	for tries := 1; last && tries < 3 && (errors.Is(err, ErrLeaseLost) || isGone(err)) && ctx.Err() == nil; tries++ {
		err = k.tryLocked(ctx, st, s, last)
	}
	switch {
	case err == nil:
		st.failing = 0
		k.newest.Store(s.Stream, Newest{Entry: st.newest, At: time.Now()})
	case ctx.Err() != nil && !last:
	default:
		if last && !k.cfg.Conn.IsConnected() {
			err = fmt.Errorf("%w: %w", errAway, err)
		}
		k.m.failed(reason(err))
		k.cfg.Log.Warn("no snapshot was taken", "stream", s.Stream, "error", err)
		st.failing++
		k.newest.Store(s.Stream, Newest{Entry: st.newest, At: time.Now(), Err: err})
		st.retry = time.Now().Add(min(k.cfg.Check<<min(st.failing, 6), time.Minute))
	}
}

// tryLocked is one try of lookAt. One in vain begins anew with the next.
func (k *Keeper) tryLocked(ctx context.Context, st *streamState, s ingest.StreamStatus, last bool) error {
	err := k.openLocked(ctx, st, s.Stream)
	if err == nil {
		err = k.takeDue(ctx, st, s, last)
	}
	if err != nil {
		st.newestRead = false
	}
	if isGone(err) {
		k.kv, st.store = nil, nil // to be made again
	}
	return err
}

// isGone reports whether the buckets may not be there any more: the server has lost its data.
func isGone(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, jetstream.ErrBucketNotFound)
}

// takeDue takes a snapshot if one is due and no other replica takes it.
func (k *Keeper) takeDue(ctx context.Context, st *streamState, s ingest.StreamStatus, last bool) error {
	if err := k.readNewest(ctx, st, s); err != nil {
		return err
	}
	why, err := k.due(ctx, st, s, last)
	if err != nil || why == "" {
		return err
	}
	rev, ok, err := st.lease.acquire(ctx)
	if err != nil {
		return err
	}
	for began := time.Now(); !ok && last && time.Since(began) < 2*k.cfg.Lease; {
		// Another replica is at it, or died at it: then its lease ends.
		select {
		case <-time.After(k.cfg.Check):
		case <-ctx.Done():
			return fmt.Errorf("no last snapshot, another replica has the lease: %w", ctx.Err())
		}
		if rev, ok, err = st.lease.acquire(ctx); err != nil {
			return err
		}
	}
	if !ok {
		k.m.waiting.Inc()
		st.newestRead = false
		return nil
	}
	held, release := st.lease.hold(ctx, rev)
	defer release()
	// Another may have taken it just before.
	st.newestRead = false
	if err := k.readNewest(held, st, s); err != nil {
		return err
	}
	if why, err = k.due(held, st, s, last); err != nil || why == "" {
		return err
	}
	err = k.writeSnapshot(held, st, s, why)
	if cause := context.Cause(held); err != nil && errors.Is(cause, ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// readNewest reads what the newest snapshot is, unless that is known. One that the
// stream does not go on from is none.
func (k *Keeper) readNewest(ctx context.Context, st *streamState, s ingest.StreamStatus) error {
	if st.newestRead && !s.Voided.After(st.learned) {
		return nil
	}
	now := time.Now()
	m, _, err := st.store.Manifest(ctx)
	if err != nil && !errors.Is(err, store.ErrManifest) {
		return err
	}
	var newest store.Entry
	if len(m.Snapshots) > 0 {
		switch err := k.streamContinues(ctx, s.Stream, m.Snapshots[0]); {
		case err == nil:
			newest = m.Snapshots[0]
		case !errors.Is(err, errVoid):
			return err
		}
	}
	st.note(newest, now)
	return nil
}

// note notes what the newest snapshot is.
func (st *streamState) note(newest store.Entry, now time.Time) {
	if st.newest.Name != newest.Name || st.seen.IsZero() {
		st.seen = now
	}
	st.newest, st.newestRead, st.learned = newest, true, now
}

// noRoom is why a snapshot of a stream is due that has no room for what comes next.
const noRoom = "no_room"

// due says why a snapshot is due; "" if it is not.
func (k *Keeper) due(ctx context.Context, st *streamState, s ingest.StreamStatus, last bool) (string, error) {
	behind := s.Position - min(s.Position, st.newest.Seq)
	switch {
	case behind == 0 && (last || st.roomy):
		return "", nil // nothing has changed
	case last:
		return "shutdown", nil
	case behind >= k.cfg.Threshold:
		return "messages", nil
	case slow(behind, st.newest.Blocks) && time.Since(st.seen) >= restPerSnapshot*time.Duration(st.newest.TookMs)*time.Millisecond:
		return "slow_start", nil
	}
	if time.Since(st.looked) < min(5*time.Second, k.cfg.Interval/4) {
		return "", nil
	}
	str, err := k.js.Stream(ctx, s.Stream)
	if err != nil {
		return "", fmt.Errorf("snapshots: stream %s: %w", s.Stream, err)
	}
	info := str.CachedInfo()
	interval := k.cfg.Interval
	if age := info.Config.MaxAge; age > 0 && interval > age/2 {
		if interval = age / 2; !st.warned {
			st.warned = true
			k.cfg.Log.Error("snapshots are taken at half the stream's retention: --snapshot-interval is longer than that", "stream", s.Stream, "interval", interval)
		}
	}
	size := info.Config.MaxBytes // it grows, unless the server has no room for that
	full := size > 0 && (info.State.Bytes > uint64(stream.MaxBytes(&info.Config))/2 || info.State.Bytes > uint64(size-size/64))
	room, few := uint64(max(size, 0))-min(uint64(max(size, 0)), info.State.Bytes), 4*info.State.Bytes/max(1, info.State.Msgs)
	st.roomy = size <= 0 || room >= max(few, uint64(size/64)) || info.State.FirstSeq >= s.Position
	switch {
	// Nothing new can come before the oldest goes: so what is there already is noted once
	// more, until the oldest kept snapshot has it, too.
	case !st.roomy:
		return noRoom, nil
	case behind == 0:
	// With the stream still half full it is the next snapshot that lets the
	// oldest go: but not before there is something new to it.
	case full && behind > info.State.Msgs/8:
		return "storage", nil
	// It may be of a clock that is ahead, or was.
	case time.Since(st.newest.Written) >= interval || time.Since(st.seen) >= interval:
		return "interval", nil
	}
	st.looked = time.Now()
	return "", nil
}

// A start loads a snapshot and then reads what follows it. A message is as much work as
// so many blocks of a snapshot; where the messages are more than the blocks, another
// snapshot makes starts shorter. Few are read at once anyhow; and of the time of whoever
// takes them, snapshots get a part.
const (
	blocksPerMessage = 100
	fewMessages      = 50_000
	restPerSnapshot  = 5 // times as long as the last one took
)

// slow reports whether so many messages take a start longer to read than a snapshot of
// so many blocks takes it to load.
func slow(messages, blocks uint64) bool { return messages >= max(blocks/blocksPerMessage, fewMessages) }

// reasons are the errors' labels in the metrics.
var reasons = []struct {
	err  error
	name string
}{
	{ErrLeaseLost, "lease_lost"}, {store.ErrFenced, "lease_lost"}, {snapshot.ErrTooSlow, "too_slow"}, {snapshot.ErrDamaged, "damaged"},
	{snapshot.ErrVersion, "version"}, {store.ErrNotFound, "missing"}, {store.ErrLost, "lost"}, {errEntry, "entry"}, {errOther, "stream"},
	{errVoid, "void"}, {errOld, "old"}, {shard.ErrBudget, "budget"}, {context.DeadlineExceeded, "timeout"}, {context.Canceled, "cancelled"},
}

// reason is an error's label in the metrics.
func reason(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "storage"
}
