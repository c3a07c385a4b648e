package main

import (
	"context"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// restore loads the newest snapshots and returns where the streams are to be
// read from. The registry is read already: it says who has left since.
func (x *indexer) restore(ctx context.Context, cfg *ingest.Config) (map[string]ingest.Start, error) {
	_, starts, err := x.cfg.Snapshots.Start(ctx, keeper.Config{
		Conn: cfg.Conn, Namespace: cfg.Namespace, Replica: cfg.Replica, Set: x.set,
		Program: obs.ReadVersion().String(), Metrics: cfg.Metrics, Log: x.log,
	}, func(k *keeper.Keeper) { x.keeper.Store(k) })
	return starts, err
}

// restoring says how far the restoring of snapshots is; "" when it is over.
func (x *indexer) restoring() string {
	if k := x.keeper.Load(); k != nil {
		return k.Progress().String()
	}
	return ""
}

// lastSnapshot takes what changed since the newest snapshots.
func (x *indexer) lastSnapshot(ctx context.Context) error {
	if k := x.keeper.Load(); k != nil {
		k.Close(ctx)
	}
	return nil
}
