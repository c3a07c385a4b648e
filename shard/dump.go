package shard

import (
	"context"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Dumped is one event of a dump: blocks that a rank holds or knows on a tier,
// and how many copies it has of each; see [core.Index.Dump]. Its slices are not to be changed.
type Dumped struct {
	Event  event.Event
	Copies []uint32
}

// DumpRank returns the events that rebuild what the rank holds, parents before
// children, at one point of the order of batches; none for a rank that is not
// there. It is copied while batches go on being applied (see core.Dump). ctx bounds the
// waits for room in the queue.
func (s *Space) DumpRank(ctx context.Context, id RankID) ([]Dumped, error) {
	_, wait, err := s.BeginDump(ctx, id)
	if err != nil {
		return nil, err
	}
	return wait(ctx)
}

// BeginDump queues a DumpRank: it is of what the batches leave that were given
// to the space before the call. begun returns when these are applied, and wait, which the caller has to call, the events.
func (s *Space) BeginDump(ctx context.Context, id RankID) (begun func(), wait func(context.Context) ([]Dumped, error), err error) {
	if err := s.canCut(); err != nil {
		return nil, nil, err
	}
	parts := make([]*core.Dump, len(s.shards))
	var groups []Dumped  // of the home's owner
	var left atomic.Bool // something is to be copied
	step := func(o *owner) {
		if d := parts[o.number]; d != nil && !d.Next(s.dumpStep) {
			left.Store(true)
		}
	}
	applied := make(chan struct{})
	err = s.submit(ctx, func(t *task) {
		m := s.table.find(id)
		t.inspect = func(o *owner) {
			if m == nil {
				return
			}
			if table := o.groupsHere(m); table != nil {
				groups = copyGroups(table, id.DPRank) // before the rest: see Replacement.Add
			}
			if int(o.holder(m)) >= len(o.members) || o.members[o.holder(m)] != m {
				return // it has stored nothing in this shard
			}
			parts[o.number] = o.index.(cutter).BeginDump(o.holder(m))
			step(o)
		}
		t.done = func(core.Outcome) { close(applied) }
	})
	if err != nil {
		return nil, nil, err
	}
	return func() { <-applied }, func(ctx context.Context) (all []Dumped, err error) {
		for <-applied; err == nil && left.Swap(false); {
			err = s.submitWait(ctx, func(t *task) { t.inspect = step })
		}
		if err != nil {
			_ = s.submitWait(context.WithoutCancel(ctx), func(t *task) { // it fails if the space is closed
				t.inspect = func(o *owner) {
					if d := parts[o.number]; d != nil {
						d.End()
					}
				}
			})
			return nil, err
		}
		all = groups
		for _, d := range parts {
			if d != nil {
				d.Events(func(ev *event.Event, copies []uint32) bool {
					ev.DPRank = id.DPRank
					all = append(all, Dumped{*ev, copies})
					return true
				})
			}
		}
		return all, nil
	}, nil
}
