package main

import (
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
)

// streams says how the reading of every publisher's events stands.
func (x *indexer) streams() []query.Stream {
	in := x.ingest.Load()
	if in == nil {
		return nil
	}
	lags := make(map[event.Space]ingest.StreamStatus)
	for _, s := range in.Streams() {
		lags[s.Space] = s
	}
	var all []query.Stream
	for _, r := range in.Ranks() {
		lag := lags[r.Space]
		s := query.Stream{
			Space: r.Space, RankID: shard.RankID{Worker: r.Worker, DPRank: r.DPRank}, State: "following",
			LastID: r.LastID, Lag: lag.Lag, LagTime: lag.LagTime, LastError: r.LastError, LastSeen: r.LastSeen,
		}
		switch {
		case r.Departed:
			s.State = "departed"
		case r.Recovering:
			s.State = "recovering"
		case r.Truncated:
			s.State = "truncated"
		case r.Incomplete:
			s.State = "incomplete"
		}
		all = append(all, s)
	}
	return all
}
