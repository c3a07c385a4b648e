package replica

import (
	"maps"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
)

// streams says how the reading of every rank's events stands. A rank that came
// from a publisher and is followed directly by now comes twice, that last.
func (r *Replica) streams() []query.Stream {
	in := r.ingest.Load()
	if in == nil {
		return nil
	}
	type part struct {
		event.Space
		number int
	}
	lags, parts := make(map[part]ingest.StreamStatus), make(map[event.Space]int)
	for _, s := range in.Streams() {
		lags[part{s.Space, s.Partition}], parts[s.Space] = s, s.Partitions
	}
	var all []query.Stream
	for _, rank := range in.Ranks() {
		all = append(all, publisherStream(&rank, lags[part{rank.Space, stream.Partition(rank.Worker, parts[rank.Space])}]))
	}
	for _, rank := range r.workers.direct.All() {
		all = append(all, engineStream(&rank))
	}
	return all
}

func publisherStream(r *ingest.RankStatus, lag ingest.StreamStatus) query.Stream {
	state := r.State
	if r.Stale && (state == follow.Following || state == follow.Waiting) {
		state = follow.Stale // its stream is: nothing is heard of that
	}
	s := query.Stream{
		Space: r.Space, RankID: shard.RankID{Worker: r.Worker, DPRank: r.DPRank}, State: streamState(state), Stale: r.Stale, Heard: lag.Heard,
		LastID: r.LastID, Lag: lag.Lag, LagTime: lag.LagTime, LastError: r.LastError(), LastSeen: r.LastSeen, AskNext: r.AskNext,
		Counts: func() map[string]uint64 {
			return counts(&r.Blocks, map[string]uint64{
				"events_stored": r.Stored, "events_removed": r.Removed, "events_cleared": r.Cleared,
				"duplicates": r.Duplicates, "gaps": r.Gaps, "missed_events": r.Missed, "restarts": r.Restarts,
				"recoveries": r.Recoveries, "recoveries_failed": r.RecoveriesFailed, "recoveries_in_vain": r.RecoveriesInVain,
				"recovery_requests": r.Requests, "dumps": r.Dumps,
				"malformed_messages": r.Malformed, "held_messages": uint64(r.Held),
			})
		},
	}
	return s
}

// streamState is a state's name in answers: there, what is waited for and what is
// lacked are told apart by the counts and the error.
func streamState(s follow.State) string {
	switch s {
	case follow.Waiting:
		s = follow.Following
	case follow.Away:
		s = follow.Recovering
	case follow.Lossy, follow.Stale:
		return "incomplete"
	}
	return s.String()
}

func engineStream(r *direct.Followed) query.Stream {
	return query.Stream{
		Space: r.Space, RankID: shard.RankID{Worker: r.Worker, DPRank: r.DPRank}, State: streamState(r.State), Stale: r.Stale,
		LastError: r.LastError, LastSeen: r.LastBatch,
		Counts: func() map[string]uint64 {
			return counts(&r.Blocks, map[string]uint64{"batches": r.Batches, "gaps": r.Gaps, "missed_batches": r.Lost, "restarts": r.Restarts})
		},
	}
}

// counts adds what the index did with blocks, by the names that metrics have,
// and leaves zeros out.
func counts(o *core.Outcome, all map[string]uint64) map[string]uint64 {
	for _, c := range o.Counts() {
		all["blocks_"+c.Result] = uint64(c.N)
	}
	maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
	return all
}
