package shard

import (
	"context"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Dumped is one event of a dump: blocks that a rank holds or knows on a tier,
// and how many copies it has of each; see [core.Index.Dump].
type Dumped struct {
	Event  event.Event
	Copies []uint32
}

// DumpRank returns the events that rebuild what the rank holds, parents before
// children, at one point of the order of batches; none for a rank that is not
// there. The space's writers wait while it is copied, so a caller that wants
// all ranks asks for one after the other. ctx bounds the wait for room in the
// queue.
func (s *Space) DumpRank(ctx context.Context, id RankID) ([]Dumped, error) {
	wait, err := s.BeginDump(ctx, id)
	if err != nil {
		return nil, err
	}
	return wait(), nil
}

// BeginDump queues a DumpRank: it is of what the batches leave that were given
// to the space before the call. wait returns the events.
func (s *Space) BeginDump(ctx context.Context, id RankID) (wait func() []Dumped, err error) {
	parts := make([][]Dumped, len(s.shards))
	var groups []Dumped // of the home's owner
	dumped := make(chan struct{})
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
			o.index.Dump(o.holder(m), func(ev *event.Event, copies []uint32) bool {
				d := Dumped{*ev, slices.Clone(copies)}
				d.Event.DPRank = id.DPRank
				d.Event.Engine, d.Event.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
				parts[o.number] = append(parts[o.number], d)
				return true
			})
		}
		t.done = func(core.Outcome) { close(dumped) }
	})
	if err != nil {
		return nil, err
	}
	return func() []Dumped {
		<-dumped
		return slices.Concat(append([][]Dumped{groups}, parts...)...)
	}, nil
}
