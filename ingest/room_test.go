package ingest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A rank that was refused blocks, and may not be asked for a while, keeps none of another
// partition from the room that there is.
func TestARankThatMayNotBeAskedKeepsNobodyFromTheRoom(t *testing.T) {
	b := newPartitionBench(t, func(c *Config) { c.DumpMin, c.DumpMax = time.Hour, time.Hour })
	first, second := b.partition, newPartition(b.partition.shared)
	truncated := func(l *partition, worker uint64, before func(*follow.Rank, *follow.Step)) {
		r := l.rank(worker, 0)
		l.steps.Now = time.Now()
		before(&r.follow, &l.steps)
		l.step(b.ctx, r, func(k *follow.Rank, s *follow.Step) { k.Noted(s, false, true) })
		if l.truncatedRanks.Load() != 1 {
			t.Fatalf("worker %d is not truncated", worker)
		}
	}
	truncated(first, 1, func(k *follow.Rank, s *follow.Step) { k.Dump(s, follow.Dump{Incarnation: 5}) })
	truncated(second, 2, func(*follow.Rank, *follow.Step) {})

	ctx, cancel := context.WithCancel(b.ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, l := range []*partition{first, second} {
		running.Go(func() { l.run(ctx) })
	}
	in := &Ingest{cfg: Config{RoomCheck: time.Millisecond}}
	running.Go(func() { in.watchRoom(ctx, &group{shared: first.shared, partitions: []*partition{first, second}}) })
	waittest.For(t, "the other one is asked for", func() bool { return second.truncatedRanks.Load() == 0 })
	if n := b.asked.count(Room); n != 1 {
		t.Errorf("asked for %d ranks", n)
	}
}
