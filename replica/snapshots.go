package replica

import (
	"context"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// restore loads the newest snapshots and returns where the streams are to be
// read from. The registry is read already: it says who has left since.
func (r *Replica) restore(ctx context.Context) (map[string]ingest.Start, error) {
	_, starts, err := r.cfg.Snapshots.Start(ctx, keeper.Config{
		Conn: r.broker.Conn(), Namespace: r.cfg.Namespace, Replica: r.cfg.Replica, Set: r.set, Forget: r.cfg.Registry.Forget,
		Program: obs.ReadVersion().String(), Progress: &r.starting, Metrics: r.metrics, Log: r.log,
	}, func(k *keeper.Keeper) { r.keeper.Store(k) })
	return starts, err
}

// Progress says how far the start is.
func (r *Replica) Progress() startup.Report {
	report := r.starting.Report()
	if in := r.ingest.Load(); in != nil {
		report.Streams(in.Progress())
	} else if r.started.Load() { // there is nothing to read
		report.Phase = startup.CaughtUp
	}
	return report
}
