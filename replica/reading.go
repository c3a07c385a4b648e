package replica

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// Reading is how the reading of one rank's events stands, as far as a picture of all
// of them needs it.
type Reading struct {
	Space event.Space
	shard.RankID
	State       follow.State
	Stale       bool
	Direct      bool   // from its engine's own socket
	Incarnation uint64 // of its publisher's run; 0: unknown
	LastID      uint64 // of the last event applied
	Events      uint64 // applied since this process began; batches where Direct
	Gaps        uint64
	Missed      uint64 // events, or batches, in them
	Recoveries  uint64 // that ended well
	Failed      uint64 // recoveries that did not
	LastEvent   time.Time
	LastSeen    time.Time
	Why         string // what is not as it should be; "": nothing
}

// EachReading calls f for every rank whose events are read, in no order. A rank that
// came from a publisher and is followed directly by now comes twice, that last. What f
// is given is its own until it returns. It must not call the Replica.
func (r *Replica) EachReading(f func(*Reading)) {
	in := r.ingest.Load()
	if in == nil {
		return
	}
	var now Reading
	in.EachRank(func(s *ingest.RankStatus) {
		now = Reading{
			Space: s.Space, RankID: shard.RankID{Worker: s.Worker, DPRank: s.DPRank}, State: s.State, Stale: s.Stale,
			Incarnation: s.Incarnation, LastID: s.LastID, Events: s.Events, Gaps: s.Gaps, Missed: s.Missed,
			Recoveries: s.Recoveries, Failed: s.RecoveriesFailed + s.RecoveriesInVain, LastEvent: s.LastEvent, LastSeen: s.LastSeen, Why: s.LastError(),
		}
		f(&now)
	})
	for _, s := range r.workers.direct.All() {
		now = Reading{
			Space: s.Space, RankID: shard.RankID{Worker: s.Worker, DPRank: s.DPRank}, State: s.State, Stale: s.Stale, Direct: true,
			LastID: s.LastID, Events: s.Batches, Gaps: s.Gaps, Missed: s.Lost, LastEvent: s.LastBatch, LastSeen: s.LastBatch, Why: s.LastError,
		}
		f(&now)
	}
}

// Streams says how the reading of each stream stands, sorted by name.
func (r *Replica) Streams() []ingest.StreamStatus {
	in := r.ingest.Load()
	if in == nil {
		return nil
	}
	return in.Streams()
}

// Recoveries returns the last recoveries that are over, newest first.
func (r *Replica) Recoveries() []ingest.Recovery {
	in := r.ingest.Load()
	if in == nil {
		return nil
	}
	return in.Recoveries()
}

// Snapshots returns the newest snapshot of each stream, by the stream's name; nil where none
// are kept, or Start has not ended.
func (r *Replica) Snapshots() map[string]keeper.Newest {
	if !r.started.Load() || r.keeper == nil {
		return nil
	}
	return r.keeper.Newest()
}

// Name returns the replica's name.
func (r *Replica) Name() string { return r.cfg.Replica }
