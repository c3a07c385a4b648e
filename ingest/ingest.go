package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/puzpuzpuz/xsync/v3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// Ingest reads every stream of a namespace, and what is published without one.
// It is safe for concurrent use.
type Ingest struct {
	cfg        Config
	js         jetstream.JetStream
	m          *meters
	badLog     onceASecond
	recoveries *recoveries // nil: ranks are not recovered
	contact    contact

	run     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	// Of discover only.
	missed   map[string]uint64 // where streams ended after a silence; nil: there is none
	missedAt time.Time         // when that was looked at last

	groups *xsync.MapOf[string, *group] // by the space's token; stored with mu held
	mu     struct {
		sync.Mutex
		readers map[string]*reader
		refused []string // why streams of the last look are not read
	}
}

// StreamStatus describes the reading of one stream.
type StreamStatus struct {
	Stream string
	Space  event.Space
	// Partition is which of the space's streams it is, of Partitions.
	Partition, Partitions int
	Created               time.Time // of the stream
	Begin                 uint64    // position at which reading began, and Since when
	Since                 time.Time
	Position              uint64 // highest sequence up to which everything is applied
	Last                  uint64 // last sequence of the stream, as far as known
	Lag                   uint64 // Last - Position, in sequences
	// Heard is when NATS last told how its streams are, or brought a message, and after a silence
	// when what had come meanwhile was applied: all else is as of then. Silent says that this is
	// longer ago than Config.StaleAfter; nil: it is not.
	Heard  time.Time
	Silent error
	// LagTime is the age of the oldest message not applied; while none is
	// read, of the last one applied, by the server's clock. 0 without Lag.
	LagTime       time.Duration
	InFlight      int // messages read and not applied
	InFlightBytes int
	CaughtUp      bool      // everything from before the start was applied once
	Voided        time.Time // when the position was none of the stream's last; zero: never
	Err           error     // why nothing is read at the moment
	// Stalled says that for Config.StallAfter the stream has had more and none of
	// it was read or applied, or that reading has begun again and again without a
	// message, although the server answers; nil: it gets on.
	Stalled error
}

// Open starts reading every stream of the namespace that exists, and new ones
// as they appear. Each stands alone: one that is configured to lose messages, or
// whose space the index does not take, is logged, counted, in Refused, and left
// alone.
func Open(ctx context.Context, cfg Config) (*Ingest, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	in := &Ingest{cfg: cfg, js: js, m: newMeters(cfg.Metrics), contact: contact{began: time.Now()}}
	in.mu.readers = make(map[string]*reader)
	in.groups = xsync.NewMapOf[string, *group]()
	run, cancel := context.WithCancel(context.Background())
	in.run, in.cancel = run, cancel
	if !cfg.NoRecovery {
		in.recoveries = newRecoveries(run, &in.cfg, in.m, &in.running)
	}
	infos, err := stream.List(ctx, js, cfg.Namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		cancel()
		return nil, fmt.Errorf("ingest: %w", err)
	}
	in.contact.known(time.Now())
	in.exposeContact()
	in.add(run, infos, err)
	live, err := in.listen(run)
	if err != nil {
		cancel()
		in.running.Wait()
		return nil, err
	}
	in.running.Go(func() {
		in.discover(run)
		_ = live.Unsubscribe() // it fails if the connection is closed: then nothing comes
	})
	in.exposePublishers(run)
	return in, nil
}

// ErrDivided is wrapped by why a space is not known any more: its streams were made again,
// and divided otherwise than Config.Share says.
var ErrDivided = errors.New("what is known of the space is of before it was divided anew")

// add starts a reader for each stream that has none. unsafe is the error of
// stream.List for those that must not be read.
func (in *Ingest) add(ctx context.Context, infos []stream.Info, unsafe error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	var refused []error
	if joined, ok := unsafe.(interface{ Unwrap() []error }); ok {
		refused = joined.Unwrap()
	}
	divided := make(map[event.Space]error)
	first := make(map[event.Space]stream.Info) // of each space: it says how many there are
	for _, info := range infos {
		if _, ok := first[info.Space]; !ok || info.Partition == 0 {
			first[info.Space] = info
		}
	}
	for _, info := range infos {
		ours, err := in.cfg.Share.Reads(&info)
		if err != nil {
			divided[info.Space] = fmt.Errorf("stream %s: %w: %w", info.Name, ErrDivided, err)
		} else if !ours {
			continue
		}
		var g *group
		if err == nil {
			g, err = in.groupLocked(ctx, info.Space)
		}
		var of *source
		if err == nil {
			if n := first[info.Space].Partitions; int(g.of.Load()) != n {
				g.divideAnew(ctx, n)
			}
			of, err = g.part(&info)
		}
		if err != nil {
			refused = append(refused, fmt.Errorf("stream %s: %w", info.Name, err))
			continue
		}
		if in.mu.readers[info.Name] != nil {
			continue
		}
		r := newReader(g, of, in.js, info)
		in.cfg.Log.Info("reading a stream", "stream", info.Name, "model", info.Space.Model,
			"block_size", info.Space.BlockSize, "group", info.Space.Group, "from", r.next, "last", info.LastSeq)
		in.mu.readers[info.Name] = r
		in.gauges(r)
		in.running.Go(func() { r.run(ctx) })
	}
	for _, r := range in.mu.readers {
		why := divided[r.space]
		r.divided.Store(&why)
	}
	in.refuseLocked(refused)
}

// refuseLocked notes which streams are not read, and reports each that was read,
// or was not there, when it was last looked.
func (in *Ingest) refuseLocked(errs []error) {
	was := in.mu.refused
	in.mu.refused = nil
	for _, err := range errs {
		if !slices.Contains(was, err.Error()) {
			in.m.refusedStreams.Inc()
			in.cfg.Log.Error("a stream is not read", "error", err)
		}
		in.mu.refused = append(in.mu.refused, err.Error())
	}
}

// Refused says of each stream that is not read why that is so: its configuration
// loses messages, its metadata name no space, the index does not take its space, or
// the space is divided otherwise than Config.Share says.
func (in *Ingest) Refused() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.mu.refused
}

// gauges exposes a reader's progress.
func (in *Ingest) gauges(r *reader) {
	label := `{stream="` + r.name + `"}` // stream names need no escaping
	gauge := func(name string, f func(s StreamStatus) float64) {
		in.cfg.Metrics.UnregisterMetric(name + label) // of an earlier Ingest on the same Set
		if r.hidden {
			return
		}
		in.cfg.Metrics.NewGauge(name+label, func() float64 { return f(r.status(time.Now())) })
	}
	gauge("kvatlas_ingest_lag_messages", func(s StreamStatus) float64 { return float64(s.Lag) })
	gauge("kvatlas_ingest_lag_seconds", func(s StreamStatus) float64 { return s.LagTime.Seconds() })
	gauge("kvatlas_ingest_stalled", func(s StreamStatus) float64 {
		if s.Stalled != nil {
			return 1
		}
		return 0
	})
	gauge("kvatlas_ingest_position", func(s StreamStatus) float64 { return float64(s.Position) })
	gauge("kvatlas_ingest_in_flight_messages", func(s StreamStatus) float64 { return float64(s.InFlight) })
	gauge("kvatlas_ingest_in_flight_bytes", func(s StreamStatus) float64 { return float64(s.InFlightBytes) })
}

// discover looks for new streams, and at the ends of the known ones, until ctx
// ends.
func (in *Ingest) discover(ctx context.Context) {
	ticker := time.NewTicker(in.cfg.Discover)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		before := make(map[*reader]mark)
		for _, r := range in.readers() {
			before[r] = r.mark()
		}
		asked := time.Now()
		request, cancel := context.WithTimeout(ctx, requestWait)
		infos, err := stream.List(request, in.js, in.cfg.Namespace)
		cancel()
		if err != nil && !errors.Is(err, stream.ErrUnsafe) {
			in.m.discoverErrors.Inc() // the connection's own log says more
			continue
		}
		in.lookForAbsent(infos, err)
		for i := range infos {
			r := in.reader(infos[i].Name)
			if r != nil {
				r.grow(ctx, &infos[i])
				r.deleteUnused(ctx, &infos[i])
			}
			if m, ok := before[r]; ok {
				r.compareWithStream(&infos[i], m)
			}
		}
		in.add(ctx, infos, err)
		in.looked(ctx, asked) // not before readers know their streams' ends: what they lack would count as fresh
	}
}

func (in *Ingest) reader(name string) *reader {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.mu.readers[name]
}

func (in *Ingest) readers() []*reader {
	in.mu.Lock()
	defer in.mu.Unlock()
	list := make([]*reader, 0, len(in.mu.readers))
	for _, r := range in.mu.readers {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *reader) int { return cmp.Compare(a.name, b.name) })
	return list
}

// Ready returns nil once every stream that is known has been caught up with,
// each at least once; else an error that says what is behind. Later lag shows
// in Streams and in the metrics, and does not end readiness: an answer that is
// a little old is better than none. A stream that is stalled ends it: it would
// grow old without an end.
func (in *Ingest) Ready() error {
	for _, s := range in.Streams() {
		if s.Stalled != nil {
			return fmt.Errorf("stream %s: %w", s.Stream, s.Stalled)
		}
		if !s.CaughtUp {
			if s.Err != nil {
				return fmt.Errorf("stream %s is %d messages behind: %w", s.Stream, s.Lag, s.Err)
			}
			return fmt.Errorf("stream %s is %d messages behind", s.Stream, s.Lag)
		}
	}
	return nil
}

// Progress returns how many messages were read and applied since reading began,
// how many are left, of all streams together, and whether Ready is nil.
func (in *Ingest) Progress() (read, left uint64, since time.Time, caughtUp bool) {
	caughtUp = true
	for _, s := range in.Streams() {
		read += s.Position - min(s.Position, s.Begin)
		left += s.Lag
		caughtUp = caughtUp && s.CaughtUp
		if since.IsZero() || s.Since.Before(since) {
			since = s.Since
		}
	}
	return read, left, since, caughtUp
}

// Streams returns the status of every stream that is there, sorted by name.
func (in *Ingest) Streams() []StreamStatus {
	now := time.Now()
	list := []StreamStatus{}
	for _, r := range in.readers() {
		if r.counts(now) {
			list = append(list, r.status(now))
		}
	}
	return list
}

// Ranks returns the status of every publisher stream, sorted by space, worker
// and rank.
func (in *Ingest) Ranks() []RankStatus {
	list := in.ranks()
	slices.SortFunc(list, func(a, b RankStatus) int { return a.compare(&b) })
	return list
}

// ranks returns the status of every publisher stream, in no order.
func (in *Ingest) ranks() []RankStatus {
	var groups []*group
	n := 0
	for _, g := range in.groups.Range {
		groups = append(groups, g)
		n += g.size()
	}
	list := make([]RankStatus, 0, n)
	for _, g := range groups {
		g.eachRank(func(s *RankStatus) { list = append(list, *s) })
	}
	return list
}

// EachRank calls f for the status of every publisher stream, in no order. f must not call
// the Ingest, and has what it is given only until it returns.
func (in *Ingest) EachRank(f func(*RankStatus)) {
	for _, g := range in.groups.Range {
		g.eachRank(f)
	}
}

// Positions returns, by stream name, where to start so as to go on. After
// Close it says exactly what the index has. Before, Seq is a lower bound, and
// the ranks are those of a later moment.
func (in *Ingest) Positions() map[string]Start {
	starts := make(map[string]Start)
	for _, r := range in.readers() {
		p := r.window.progress()
		start := Start{Seq: p.pos + 1, Created: r.mark().created, Stored: p.stored}
		for _, l := range r.partitions {
			l.look(func() {
				for _, k := range l.positions(r.source) {
					start.Ranks = append(start.Ranks, k.RankPosition)
				}
			})
		}
		starts[r.name] = start
	}
	return starts
}

// Close stops reading and returns once the index has applied everything that
// it was given. The index closes after it, not before.
func (in *Ingest) Close() {
	in.mu.Lock() // no group begins after it
	in.cancel()
	in.mu.Unlock()
	in.running.Wait()
}
