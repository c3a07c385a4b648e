package ingest

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// Expect asks a worker without a stream for what these ranks of it hold, unless
// they are known: its next message may be long in coming. It returns once that
// has begun, see Awaited. ctx bounds the wait for the partition.
func (in *Ingest) Expect(ctx context.Context, sp event.Space, worker uint64, ranks []uint32) error {
	if len(ranks) == 0 {
		ranks = []uint32{0}
	}
	in.mu.Lock()
	if err := in.run.Err(); err != nil {
		in.mu.Unlock()
		return fmt.Errorf("ingest: closed: %w", err)
	}
	g, err := in.groupLocked(in.run, sp)
	in.mu.Unlock()
	if err != nil {
		return err
	}
	l := g.partition(worker)
	begun := make(chan struct{})
	ask := func(ctx context.Context) {
		l.expect(ctx, worker, ranks)
		close(begun)
	}
	select {
	case l.inbox <- ask:
		select {
		case <-begun:
		case <-l.stopped:
		}
	case <-l.stopped:
	case <-ctx.Done():
		return fmt.Errorf("ingest: expecting worker %d: %w", worker, ctx.Err())
	}
	return nil
}

func (l *partition) expect(ctx context.Context, worker uint64, ranks []uint32) {
	for _, n := range ranks {
		if r := l.rank(worker, n); r != nil {
			l.step(ctx, r, (*follow.Rank).Expect)
		}
	}
}

// Awaited returns an error that names a rank whose first dump is under way, and
// nil if there is none. One that was asked for in vain is not awaited.
func (in *Ingest) Awaited() error {
	for _, s := range in.ranks() {
		if s.Awaited {
			return fmt.Errorf("what worker %d, rank %d of model %q holds is being asked for", s.Worker, s.DPRank, s.Space.Model)
		}
	}
	return nil
}
