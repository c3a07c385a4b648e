package sidecar

import (
	"context"
	"errors"
	"fmt"

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
		gauge := func(name string, value func() uint64, labels ...string) {
			name = obs.Name("kvatlas_publisher_feed_"+name, append(labels, "dp_rank", rank)...)
			s.metrics.NewGauge(name, func() float64 { return float64(value()) })
		}
		for _, x := range zmqfeed.AllSeries() {
			gauge(x.Name, func() uint64 { now := f.Stats(); return x.Value(&now) }, x.Labels...)
		}
		gauge("queued_messages", func() uint64 { n, _ := f.Queued(); return uint64(n) })
	}
}
