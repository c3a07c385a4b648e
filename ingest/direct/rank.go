package direct

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// RankStatus describes one rank.
type RankStatus struct {
	DPRank   uint32
	Endpoint string
	follow.Status
	Tried    bool // it was caught up with once, or could not be: if State is Away then, it is Stale, and LastError says why
	Batches  uint64
	Gaps     uint64 // runs of batches lost for good
	Lost     uint64 // batches in them
	Restarts uint64 // of the engine
	// UnknownParents counts blocks not stored because their parent is unknown:
	// the engine left out events without a hole in its numbers.
	UnknownParents uint64
	Blocks         core.Outcome // what the index did with its blocks
	LastError      string       // what is not as it should be; "" if nothing is any more
	LastBatch      time.Time    // when the last one was applied
}

// follower follows one rank: an zmqfeed.Handler. Its goroutine owns it, but for
// stat and what does not change.
type follower struct {
	d       *Direct
	key     rankKey
	at      Endpoint
	index   ingest.Applier
	feed    *zmqfeed.Feed
	said    *said
	contact *zmqfeed.Contact
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
	begun   bool // the index has what came before Position
	failed  bool // the index takes nothing any more

	stat struct { // guarded by its mutex
		sync.Mutex
		RankStatus
	}
}

// said is what a worker's ranks say in the log, together: they mostly fail at once, and there may be a thousand.
type said struct {
	contacts *zmqfeed.Contacts
	others   *obs.Limited // each message may be of lost batches
}

// status is what was counted, and how the following stands.
func (r *follower) status() RankStatus {
	r.stat.Lock()
	s := r.stat.RankStatus
	r.stat.Unlock()
	s.Status = r.feed.Status()
	s.Stale = s.Stale || s.State == follow.Away && s.Tried // what it publishes meanwhile is missing
	switch {
	case s.Why != nil:
		s.LastError = "incomplete: " + s.Why.Error()
	case zmqfeed.PhaseOf(s.State) == zmqfeed.Live:
		s.LastError = "" // it is over
	}
	return s
}

func (r *follower) note(f func(*RankStatus)) {
	r.stat.Lock()
	defer r.stat.Unlock()
	f(&r.stat.RankStatus)
}

func (r *follower) tell() {
	if r.d.cfg.Tell != nil {
		r.d.cfg.Tell(r.key.Key, r.status())
	}
}

func (r *follower) run() {
	defer close(r.done)
	if !r.begun {
		r.clear() // what another transport left
	}
	r.feed.Run(r.ctx)
}

// apply applies events and waits until that is done. What is refused for want of
// memory is counted; an index that is closed takes nothing any more.
func (r *follower) apply(b *event.Batch) core.Outcome {
	if r.failed || len(b.Events) == 0 {
		return core.Outcome{}
	}
	applied := make(chan core.Outcome, 1)
	// Not the rank's context: the feed's position is after this batch.
	if err := r.index.Apply(context.Background(), b, func(out core.Outcome) { applied <- out }); err != nil {
		r.failed = true
		r.cancel()
		r.note(func(s *RankStatus) { s.LastError = err.Error() })
		r.tell()
		return core.Outcome{}
	}
	out := <-applied
	r.d.m.applied(out)
	return out
}

// clear empties the rank.
func (r *follower) clear() {
	r.apply(&event.Batch{Space: r.key.Space, Worker: r.key.Worker,
		Events: []event.Event{{Kind: event.Cleared, AllTiers: true, DPRank: r.key.dpRank}}})
}

// Batch implements zmqfeed.Handler.
func (r *follower) Batch(_ uint64, b *event.Batch) (unknownParent, refused bool) {
	out := r.batch(b)
	return out.UnknownParent > 0, out.Refused > 0
}

func (r *follower) batch(b *event.Batch) core.Outcome {
	b.Space, b.Worker = r.key.Space, r.key.Worker
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.DPRank != r.key.dpRank {
			r.d.m.otherRank.Inc() // its socket says which rank it is
			ev.DPRank = r.key.dpRank
		}
		r.d.m.event(ev.Kind)
	}
	r.d.m.filtered.Add(b.Filtered)
	out := r.apply(b)
	r.note(func(s *RankStatus) {
		s.Batches++
		s.LastBatch = time.Now()
		s.UnknownParents += uint64(out.UnknownParent)
		s.Blocks.Add(out)
	})
	return out
}

// Snapshot implements zmqfeed.Handler.
func (r *follower) Snapshot(_ uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool) {
	r.clear()
	var out core.Outcome
	for b := range parts {
		out.Add(r.batch(b))
	}
	return out.UnknownParent+out.UnknownBlock > 0, out.Refused > 0
}

// Restart implements zmqfeed.Handler.
func (r *follower) Restart(sign follow.Sign) {
	r.said.others.Log(slog.LevelInfo, "restarted", "an engine restarted", slog.Any("dp_rank", r.key.dpRank), slog.String("seen_by", sign.String()))
	r.clear()
	r.note(func(s *RankStatus) { s.Restarts++ })
}

// Gap implements zmqfeed.Handler.
func (r *follower) Gap(g zmqfeed.Gap) {
	r.said.others.Warn(g.Why.String(), "batches of an engine are lost", slog.Any("dp_rank", r.key.dpRank),
		slog.Uint64("from", g.From), slog.Uint64("to", g.To), slog.String("reason", g.Why.String()), slog.Bool("emptied", !g.Unusable()))
	if !g.Unusable() {
		r.clear()
	}
	r.note(func(s *RankStatus) {
		s.Gaps++
		s.Lost += g.To - g.From + 1
		s.LastError = fmt.Sprintf("batches %d to %d are lost (%s)", g.From, g.To, g.Why)
	})
}

// State implements zmqfeed.Handler.
func (r *follower) State(st zmqfeed.State) {
	r.note(func(s *RankStatus) {
		s.Tried = s.Tried || st.Phase == zmqfeed.Live || st.Err != nil
		if st.Err != nil {
			s.LastError = st.Err.Error()
		}
	})
	r.contact.State(st)
	r.tell()
}
