package sidecar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// sink is where a stream's events go: a publish.Publisher of one rank and one
// incarnation.
type sink interface {
	// Publish gives the event the next id; it waits while there is no room.
	Publish(ctx context.Context, ev event.Event) error
	// Flush returns once everything before is acknowledged.
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
	// last returns the id of the last event.
	last() uint64
	// setIncomplete says whether the next events are of an incomplete stream.
	setIncomplete(incomplete bool)
}

// opening is how a sink begins.
type opening struct {
	incarnation uint64
	last        uint64 // id of the last event published before
	incomplete  bool
	set         *set // what was held then
}

// streamConfig holds what a stream needs. All of it is needed.
type streamConfig struct {
	dpRank    uint32
	blockSize int                  // as set
	pooled    [event.NumTiers]bool // which tiers are pools'
	identity  uint64               // of what gives the events their meaning: a state of another one is refused
	store     store
	open      func(context.Context, opening) (sink, error)
	// position returns where the input is, after what the stream was told last.
	position func() []byte
	every    time.Duration // the state is saved that often, while there is something new
	// retry is the time between tries to save a beginning or to open a sink. A
	// stream that begins anew again and again waits for a tenth of it up to five
	// times as long after each beginning.
	retry time.Duration
	log   *slog.Logger
	m     *streamMeters
	kept  func(position []byte) // told what is saved; nil: nobody
}

// stream is one rank: an zmqfeed.Handler. Its methods belong to the goroutine
// that follows the input, but for status and stop.
type stream struct {
	cfg  streamConfig
	ctx  context.Context // ends publishing
	sink sink

	gapLog      *obs.Limited // of lost batches, of which each message may be one
	contact     *zmqfeed.Contact
	set         *set
	incarnation uint64
	lastKept    uint64 // last id of the state that was loaded
	incomplete  bool
	start       []byte // position that was loaded; nil: nothing was

	joins struct { // a snapshot that the engine's stream has not come to
		under   bool // there is one
		lacking bool // it lacks something
	}
	torn   error // why events of the last batch are missing from what was published
	keep   bool  // the last thing that came is a batch, and not saved
	anew   pace.Pace
	saveAt time.Time
	saving struct {
		sync.WaitGroup
		cancel context.CancelFunc
		busy   atomic.Bool
	}
	phase            atomic.Uint32                      // zmqfeed.Phase
	opened           atomic.Bool                        // there is a sink
	shownIncarnation atomic.Uint64                      // incarnation, for others
	shownIncomplete  atomic.Bool                        // incomplete, for others
	eagle            atomic.Bool                        // blocks are hashed with the token after each
	hybrid           atomic.Bool                        // there are cache groups that are not indexed
	groups           atomic.Pointer[[]event.CacheGroup] // what is known of them; nil: they are not followed
	otherSize        atomic.Int64                       // the engine's size of a block, where it is not ours; else 0
	interrupted      atomic.Pointer[string]             // why the engine's events are not read; nil: they are, or nothing is known
	waits            atomic.Pointer[string]             // why there is no sink; nil: there is one, or nothing is known
	tiers            atomic.Uint32                      // a bit for each on which blocks are held
}

// newStream loads what is kept of the stream.
func newStream(cfg streamConfig) (*stream, error) {
	s := &stream{cfg: cfg, set: newSet(), contact: zmqfeed.NewContacts(cfg.log).Rank(cfg.dpRank)}
	b, err := cfg.store.load()
	if err != nil {
		return nil, err
	}
	if b == nil {
		return s, nil
	}
	st, err := decodeState(b)
	switch {
	case err != nil:
		cfg.m.refused.Inc()
		cfg.log.Warn("the kept state is not used, the stream begins anew", "error", err)
	case st.identity != cfg.identity:
		cfg.m.refused.Inc()
		cfg.log.Warn("the kept state is of other settings, the stream begins anew")
	default:
		s.set, s.incarnation, s.lastKept, s.incomplete = st.set, st.incarnation, st.last, st.incomplete
		s.start = st.position
		s.eagle.Store(st.eagle)
		s.hybrid.Store(st.hybrid)
	}
	return s, nil
}

// newIncarnation returns a random number that is not 0, which means unknown.
func newIncarnation() uint64 { return 1 + rand.Uint64N(1<<64-1) }

// run makes the stream ready to be told batches until ctx ends. It returns
// early only if ctx ends.
func (s *stream) run(ctx context.Context) error {
	s.ctx = ctx
	s.saveAt = time.Now().Add(s.cfg.every)
	if s.start == nil {
		return s.begin(false)
	}
	return s.openSink(s.lastKept)
}

// begin begins the stream anew: what was kept is removed, then the beginning is
// published. The old state must not be taken up again, as readers refuse an
// incarnation that has ended. The new one is not kept before it has a batch: by
// that the feed knows the engine's process again.
func (s *stream) begin(incomplete bool) error {
	s.stopSaving()
	if s.sink != nil {
		s.opened.Store(false)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.sink.Close(ended) // what it still has is void
		s.sink = nil
	}
	s.incarnation = newIncarnation()
	s.set, s.incomplete, s.torn, s.keep, s.joins.under = newSet(), incomplete, nil, false, false
	s.eagle.Store(false)
	s.hybrid.Store(false)
	s.groups.Store(nil)
	s.saveAt = time.Now()
	for {
		err := s.cfg.store.remove()
		if err == nil {
			break
		}
		s.cfg.m.saveErrors.Inc()
		s.cfg.log.Error("the stream waits: what was kept of it cannot be removed", "error", err)
		if !s.pause(s.cfg.retry) {
			return s.tear(s.ctx.Err())
		}
	}
	if err := s.openSink(0); err != nil {
		return err
	}
	now, most := time.Now(), 5*s.cfg.retry
	soon := now.Sub(s.anew.Next()) <= most
	if wait := s.anew.Later(now, now, s.cfg.retry/10, most, s.incarnation); soon {
		s.pause(wait) // the stream holds nothing that could be out of date
	}
	return nil
}

// openSink opens the sink after the event with the id. The first event of an
// incarnation says that nothing is held.
func (s *stream) openSink(last uint64) error {
	for {
		out, err := s.cfg.open(s.ctx, opening{s.incarnation, last, s.incomplete, s.set})
		if err == nil {
			s.sink = out
			break
		}
		if s.ctx.Err() == nil {
			text := obs.Plain(err).Error()
			if was := s.waits.Swap(&text); was == nil || *was != text { // said once, and announced as long as it lasts
				s.cfg.log.Warn("the stream waits: it cannot publish", "dp_rank", s.cfg.dpRank, "error", err)
			}
		}
		if !s.pause(s.cfg.retry) {
			return s.tear(err)
		}
	}
	if s.waits.Swap(nil) != nil {
		s.cfg.log.Info("the stream publishes again", "dp_rank", s.cfg.dpRank)
	}
	s.opened.Store(true)
	s.show()
	if last > 0 {
		return nil
	}
	return s.publish(event.Event{Kind: event.Cleared, AllTiers: true})
}

// pause waits; false means that the stream ends.
func (s *stream) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *stream) publish(ev event.Event) error {
	ev.DPRank = s.cfg.dpRank
	err := s.sink.Publish(s.ctx, ev)
	if errors.Is(err, event.ErrEncode) {
		s.cfg.m.invalid.Inc() // the same batch gives the same again
		return nil
	}
	return err
}

// tear notes that the index is ahead of what was published: its state must not
// be kept.
func (s *stream) tear(err error) error {
	if s.torn == nil {
		s.torn = fmt.Errorf("publishing: %w", err)
	}
	return s.torn
}

// Batch implements zmqfeed.Handler. Blocks without a place are no fault of the stream:
// what an engine leaves out it does not hold.
func (s *stream) Batch(_ uint64, b *event.Batch) (unknownParent, refused bool) {
	if s.torn != nil {
		return false, false // the end
	}
	var total core.Outcome
	defer func() { s.cfg.m.outcome(total) }()
	for i := range b.Events {
		ev := &b.Events[i]
		s.cfg.m.event(ev.Kind, len(ev.Engine))
		if ev.DPRank != s.cfg.dpRank {
			s.cfg.m.otherRank.Inc()
		}
		if lacks := ev.Incomplete || s.joins.under; lacks != s.incomplete {
			s.lack(lacks)
		}
		apply := s.set.apply
		if s.cfg.pooled[ev.Tier] && ev.Kind != event.Cleared && ev.Group == 0 {
			apply = s.set.share
		}
		out, err := apply(ev, b.CountCopies, s.publish)
		total.Add(out)
		if err != nil {
			_ = s.tear(err) // stop tells
			return false, false
		}
	}
	s.holds()
	if b.Eagle {
		s.eagle.Store(true)
	}
	if b.Hybrid {
		s.hybrid.Store(true)
	}
	if old := s.groups.Load(); b.Groups != nil && !s.set.ungrouped && (old == nil || !slices.Equal(*old, b.Groups)) {
		groups := b.Groups
		s.groups.Store(&groups)
	}
	s.compareSizes(b.OtherSize, total.Stored+total.Duplicate > 0)
	s.keep = true
	if !time.Now().Before(s.saveAt) {
		s.saveBeside()
	}
	return false, false
}

// compareSizes notes whether the engine's blocks are of the size that was set: other is
// what it says of blocks that were left out for theirs, and some whether any were not.
func (s *stream) compareSizes(other int, some bool) {
	switch before := s.otherSize.Load(); {
	case other == 0 && some:
		s.otherSize.Store(0)
	case other != 0 && other != int(before):
		s.otherSize.Store(int64(other))
		s.cfg.log.Error("nothing is published of the engine's blocks", "because", s.misfit())
	}
}

// misfit says how the engine's blocks differ from what was set, and what to do about
// it; "" if they do not. Anyone may call it.
func (s *stream) misfit() string {
	if n := s.otherSize.Load(); n != 0 {
		return fmt.Sprintf("rank %d stores blocks of %d tokens, --block-size is %d: give --block-size %[2]d, or start the engine with blocks of %[3]d tokens",
			s.cfg.dpRank, n, s.cfg.blockSize)
	}
	return ""
}

// Snapshot implements zmqfeed.Handler.
func (s *stream) Snapshot(number uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool) {
	if s.torn != nil {
		return false, false
	}
	s.cfg.log.Info("the engine gave all that it holds, its stream begins anew", "dp_rank", s.cfg.dpRank)
	_ = s.begin(true) // torn says it
	s.joins.under = true
	for b := range parts {
		for i := range b.Events {
			unplaced = unplaced || b.Events[i].Incomplete
		}
		s.Batch(number, b)
	}
	s.joins.lacking = unplaced
	return unplaced, false
}

// Restart implements zmqfeed.Handler.
func (s *stream) Restart(sign follow.Sign) {
	if s.torn != nil {
		return
	}
	s.cfg.m.restarts.Inc()
	s.cfg.log.Info("the engine restarted, its stream begins anew", "dp_rank", s.cfg.dpRank, "seen_by", sign.String())
	_ = s.begin(false) // torn says it
}

// Gap implements zmqfeed.Handler.
func (s *stream) Gap(g zmqfeed.Gap) {
	if s.torn != nil {
		return
	}
	s.cfg.m.gaps.Inc()
	if s.gapLog == nil {
		s.gapLog = obs.NewLimited(s.cfg.log, time.Second, nil)
	}
	s.gapLog.Warn(g.Why.String(), "batches of the engine are lost", slog.Any("dp_rank", s.cfg.dpRank), slog.Uint64("from", g.From),
		slog.Uint64("to", g.To), slog.String("reason", g.Why.String()), slog.Bool("begins_anew", !g.Unusable()))
	if !g.Unusable() {
		_ = s.begin(true) // torn says it
		return
	}
	s.keep = false // without a batch the engine is not known again
	s.lack(true)
}

// lack notes whether the stream is incomplete from here on.
func (s *stream) lack(incomplete bool) {
	s.incomplete = incomplete
	s.sink.setIncomplete(incomplete)
	s.show()
}

// gone reports whether the engine is not there. One that is there again, and whose stream is caught up with, was interrupted.
func (s *stream) gone() bool {
	return s.interrupted.Load() != nil && zmqfeed.Phase(s.phase.Load()) == zmqfeed.Connecting
}

// State implements zmqfeed.Handler.
func (s *stream) State(st zmqfeed.State) {
	s.phase.Store(uint32(st.Phase))
	switch {
	case st.Err != nil:
		text := st.Err.Error()
		s.interrupted.Store(&text)
	case st.Phase == zmqfeed.Live:
		s.interrupted.Store(nil)
		if s.joins.under && s.torn == nil {
			s.joins.under = false
			s.lack(s.joins.lacking)
		}
	}
	s.contact.State(st)
}

func (s *stream) show() {
	s.shownIncarnation.Store(s.incarnation)
	s.shownIncomplete.Store(s.incomplete)
	s.cfg.m.incomplete.Set(map[bool]float64{true: 1}[s.incomplete])
	s.holds()
}

// holds shows what is held.
func (s *stream) holds() {
	s.cfg.m.hold(s.set)
	bits := uint32(0)
	for t, n := range s.set.held() {
		if n > 0 {
			bits |= 1 << t
		}
	}
	s.tiers.Store(bits)
}

// waiting says why the stream is not up to date; "" if it is. Anyone may call
// it.
func (s *stream) waiting() string {
	switch {
	case !s.opened.Load():
		return fmt.Sprintf("rank %d waits for NATS or its state directory", s.cfg.dpRank)
	case zmqfeed.Phase(s.phase.Load()) != zmqfeed.Live:
		return fmt.Sprintf("rank %d is %s", s.cfg.dpRank, zmqfeed.Phase(s.phase.Load()))
	}
	return ""
}
