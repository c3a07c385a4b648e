package main

import (
	"context"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// restore loads the newest snapshots and returns where the streams are to be
// read from. The registry is read already: it says who has left since.
func (x *indexer) restore(ctx context.Context, cfg *ingest.Config) (map[string]ingest.Start, error) {
	_, starts, err := x.cfg.Snapshots.Start(ctx, keeper.Config{
		Conn: cfg.Conn, Namespace: cfg.Namespace, Replica: cfg.Replica, Set: x.set,
		Program: obs.ReadVersion().String(), Progress: &x.starting, Metrics: cfg.Metrics, Log: x.log,
	}, func(k *keeper.Keeper) { x.keeper.Store(k) })
	return starts, err
}

// progress says how far the start is.
func (x *indexer) progress() startup.Report {
	r := x.starting.Report()
	if in := x.ingest.Load(); in != nil {
		r.Streams(in.Progress())
	}
	return r
}

// lastSnapshot takes what changed since the newest snapshots.
func (x *indexer) lastSnapshot(ctx context.Context) error {
	if k := x.keeper.Load(); k != nil {
		k.Close(ctx)
	}
	return nil
}
