package keeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// Reload is an ingest.FindSnapshot: it loads the newest snapshot that the stream goes
// on from into an index of its own, within what the memory budget leaves.
func (k *Keeper) Reload(ctx context.Context, at ingest.Trimmed) (ingest.Snapshot, error) {
	s, err := k.Store(ctx, at.Stream)
	if err != nil {
		return nil, err
	}
	found, err := k.find(ctx, s, at.Stream)
	if err != nil {
		return nil, err
	}
	var failed error
	for i := range found {
		f := &found[i]
		if f.Seq < at.Position || f.Seq+1 < at.First || f.Listed && !f.Created.Equal(at.Created) {
			continue
		}
		snap, err := k.loadAside(ctx, s, f, at)
		if err == nil {
			return snap, nil
		}
		k.refused(s, at.Stream, f, err)
		failed = errors.Join(failed, err)
		if ctx.Err() != nil || errors.Is(err, shard.ErrBudget) {
			break // older ones are of about the same size
		}
	}
	return nil, failed
}

// loadAside loads a snapshot into an index that nobody asks.
func (k *Keeper) loadAside(ctx context.Context, s store.Store, which *store.Found, at ingest.Trimmed) (ingest.Snapshot, error) {
	used, budget := k.cfg.Set.MemoryBudget()
	if budget > 0 {
		if budget -= used; budget <= 0 {
			return nil, shard.ErrBudget
		}
	}
	set := shard.New(shard.Config{MemoryBudget: budget})
	sp, err := set.Open(at.Space)
	if err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	f, err := s.Open(ctx, which.Name)
	if err != nil {
		set.Close()
		return nil, err
	}
	accept := func(info *snapshot.Info) error {
		if err := check(which, info, at.Stream, at.Space); err != nil {
			return err
		}
		return k.streamContinues(ctx, at.Stream, EntryOf(info))
	}
	info, err := snapshot.Restore(ctx, f, sp, k.cfg.Options, accept, nil)
	if err = errors.Join(err, f.Close()); err != nil {
		set.Close()
		return nil, err
	}
	k.m.restores("loaded")
	return &aside{set: set, space: sp, start: StartOf(&info.Meta)}, nil
}

// aside is a snapshot that was loaded beside the index.
type aside struct {
	set   *shard.Set
	space *shard.Space
	start ingest.Start
}

var _ ingest.Snapshot = (*aside)(nil)

// Start implements ingest.Snapshot.
func (a *aside) Start() ingest.Start { return a.start }

// Rank implements ingest.Snapshot.
func (a *aside) Rank(ctx context.Context, id shard.RankID) ([]shard.Dumped, error) {
	return a.space.DumpRank(ctx, id)
}

// Close implements ingest.Snapshot. The collector gives the memory back.
func (a *aside) Close() { a.set.Close() }
