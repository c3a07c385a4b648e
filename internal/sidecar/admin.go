package sidecar

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// serveAdmin serves the admin port, the only one, until stopAdmin is called.
func (s *Sidecar) serveAdmin(ctx context.Context) error {
	s.stopAdmin = func() error { return nil }
	access, err := s.cfg.Access.Open(s.log)
	if err != nil {
		return err
	}
	port, err := admin.Start(ctx, s.cfg.Admin, admin.Deps{
		Access: access, Metrics: s.metrics, Settings: s.cfg.settings, Level: s.cfg.Log.Var, Log: s.log,
		Health: &edge.Health{Checks: []edge.Check{{Name: "publishing", Reason: s.waiting}, {Name: "block_size", Reason: s.misfits, Note: true}}},
	})
	if err != nil || port == nil {
		return err
	}
	s.stopAdmin = port.Close
	if err := s.service.Listening(port.Address()); err != nil {
		return errors.Join(err, s.stopAdmin())
	}
	return nil
}

// feedMetrics exposes what the feeds count.
func (s *Sidecar) feedMetrics() {
	for i, f := range s.feeds {
		rank := fmt.Sprint(s.ranks[i])
		gauge := func(name string, value func(zmqfeed.Stats) uint64, pairs ...string) {
			name = obs.Name("kvatlas_publisher_feed_"+name, append(pairs, "dp_rank", rank)...)
			s.metrics.NewGauge(name, func() float64 { return float64(value(f.Stats())) })
		}
		gauge("batches_total", func(st zmqfeed.Stats) uint64 { return st.Live }, "way", "live")
		gauge("batches_total", func(st zmqfeed.Stats) uint64 { return st.Replayed }, "way", "replayed")
		gauge("missed_batches_total", func(st zmqfeed.Stats) uint64 { return st.Missed })
		gauge("connects_total", func(st zmqfeed.Stats) uint64 { return st.Connects })
		gauge("disconnects_total", func(st zmqfeed.Stats) uint64 { return st.Disconnects })
		gauge("replays_total", func(st zmqfeed.Stats) uint64 { return st.Replays })
		gauge("queued_messages", func(zmqfeed.Stats) uint64 { n, _ := f.Queued(); return uint64(n) })
		for r := range zmqfeed.Reason(zmqfeed.NumReasons) {
			gauge("lost_batches_total", func(st zmqfeed.Stats) uint64 { return st.Lost[r] }, "reason", r.String())
		}
		for c := follow.FellBack; c <= follow.Unproven; c++ {
			gauge("restarts_total", func(st zmqfeed.Stats) uint64 { return st.Restarts[c] }, "cause", c.String())
		}
		for r := range engine.Reason(engine.NumReasons) {
			gauge("left_out_total", func(st zmqfeed.Stats) uint64 { return st.Left[r] }, "reason", r.String())
		}
	}
}
