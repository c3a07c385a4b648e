package fleet

import (
	"context"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/registry"
)

// Forget takes the blocks of workers that leave the registry out of the index,
// until ctx ends. in, which reads the events, is nil where none are read.
func (f *Fleet) Forget(ctx context.Context, r *registry.Registry, in *ingest.Ingest) {
	sub := r.Subscribe(followQueue)
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Wait():
		}
		for _, ev := range sub.Next() {
			if ev.Kind == registry.Resync {
				for _, e := range r.Snapshot(true) {
					if !e.Present() {
						f.drop(ctx, in, e)
					}
				}
			} else if ev.Kind == registry.Left {
				f.drop(ctx, in, ev.Entry)
			}
		}
	}
}

func (f *Fleet) drop(ctx context.Context, in *ingest.Ingest, e registry.Entry) {
	if in != nil {
		in.WorkerLeft(ctx, e.Space(), e.ID, e.LeftAt)
	}
	for _, m := range f.Models() {
		if m.Cache != nil && m.Space == e.Space() {
			if err := m.Cache.RemoveWorker(ctx, e.ID); err != nil && ctx.Err() == nil {
				f.log.Warn("forgetting what a worker had cached", "worker", e.ID, "error", err)
			}
		}
	}
}
