package ingest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
)

// group is the partitions of one space. Messages of its streams and live ones go
// through the same: a fleet may mix transports.
type group struct {
	*shared
	partitions []*partition
	running    sync.WaitGroup // the partitions
}

// groupLocked returns the space's group, made and started if it is new. ctx
// is the Ingest's.
func (in *Ingest) groupLocked(ctx context.Context, sp event.Space) (*group, error) {
	token := stream.Token(sp)
	if g, ok := in.groups.Load(token); ok {
		return g, nil
	}
	index, err := in.cfg.Index(sp)
	if err != nil {
		return nil, fmt.Errorf("ingest: model %q: %w: %w", sp.Model, errNoIndex, err)
	}
	g := &group{shared: &shared{
		cfg: &in.cfg, m: in.m, space: sp, index: index, badLog: &in.badLog, recoveries: in.recoveries, contact: &in.contact,
	}}
	for range in.cfg.Partitions {
		l := newPartition(g.shared)
		g.partitions = append(g.partitions, l)
		g.running.Go(func() { l.run(ctx) })
	}
	in.running.Go(func() {
		in.watchRoom(ctx, g)
		g.running.Wait()
		g.applying.Wait()
	})
	in.groups.Store(token, g)
	return g, nil
}

// divideAnew makes the space so many streams. A worker's events may be in another than
// before, whose reader begins with nothing to compare: it is here that what is known of
// each is taken as void.
func (g *group) divideAnew(ctx context.Context, of int) {
	g.divide(of, g.cfg)
	for _, l := range g.partitions {
		l.do(func(l *partition) { l.distrustPositions(ctx, nil, math.MaxUint64) })
	}
}

// partition returns the partition of a worker. Workers are often numbered in steps: the
// multiplication spreads them.
func (g *group) partition(worker uint64) *partition {
	return g.partitions[worker*0x9E3779B97F4A7C15>>32%uint64(len(g.partitions))]
}

// size returns how many publisher streams there are.
func (g *group) size() (n int) {
	for _, l := range g.partitions {
		l.mu.Lock()
		n += len(l.mu.ranks)
		l.mu.Unlock()
	}
	return n
}

// eachRank calls f for the status of every publisher stream. f must not call the Ingest,
// and has what it is given only until it returns.
func (g *group) eachRank(f func(*RankStatus)) {
	why := g.otherwise()
	if why == nil {
		why = g.contact.silent(time.Now(), g.cfg)
	}
	for _, l := range g.partitions {
		l.mu.Lock()
		for _, k := range l.mu.ranks {
			s := k.status()
			if why != nil && !s.Is(follow.Departed) {
				s.Stale, s.Why = true, why
			}
			f(&s)
		}
		l.mu.Unlock()
	}
}

// watchRoom brings truncated ranks up to date, one at a time, while the index
// has room for them, until ctx ends.
func (in *Ingest) watchRoom(ctx context.Context, g *group) {
	index, ok := g.index.(interface{ Stats() shard.Stats })
	ticker := time.NewTicker(in.cfg.RoomCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, l := range g.partitions {
			if l.truncatedRanks.Load() == 0 || !ok || index.Stats().Full {
				continue
			}
			was := false
			l.do(func(l *partition) { was = l.recoverTruncated(ctx) })
			if was {
				break
			}
		}
	}
}
