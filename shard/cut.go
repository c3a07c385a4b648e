package shard

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/core"
)

// Errors of cuts and loads.
var (
	// ErrCutting is returned while another cut of the space is under way.
	ErrCutting = errors.New("a cut of the space is under way already")
	// ErrNotNew is returned for a load into a space that had ranks before.
	ErrNotNew = errors.New("the space is not new: a snapshot is loaded into an empty one only")
	// ErrNoCuts is returned where Config.NewIndex makes an index without cuts.
	ErrNoCuts = errors.New("the index can be neither cut, nor dumped, nor loaded")
)

// cutter is an index that can be cut, dumped and loaded. *core.Radix is one.
type cutter interface {
	BeginCut(emit func(p *core.Piece)) *core.Cut
	BeginDump(h core.Holder) *core.Dump
	NewLoader(expected int) *core.Loader
}

// canCut says why the space's indexes are no cutters, if so.
func (s *Space) canCut() error {
	for _, o := range s.shards {
		if _, ok := o.index.(cutter); !ok {
			return ErrNoCuts
		}
	}
	return nil
}

// CutRank is a rank that was present when a cut began.
type CutRank struct {
	RankID
	Holder core.Holder // what the cut's pieces call it
}

// Cut is a space at one point of the order of batches, given out in slices
// while batches go on being applied (see core.Cut). Calls are made one after
// the other; End ends it.
type Cut struct {
	space *Space
	ranks []CutRank
	parts []*core.Cut // each of its shard's owner
	emit  func(shard int, p *core.Piece)
	begun chan struct{}
	ended bool
	// groups has, by shard, the cache groups of the ranks whose home it is.
	groups [][]CutGroups
}

// CutGroups is what a rank held in its cache groups when a cut began; it is all of it.
type CutGroups struct {
	Holder core.Holder
	Blocks []Dumped
}

// BeginCut queues the beginning of a cut: it is of what the batches leave that
// were applied before the call. Batches are not held up.
//
// emit is called by the owner of each shard, in a slice or while it applies a
// batch that changes what was not given out yet; it must not block. ctx bounds
// the wait for room in the queue.
func (s *Space) BeginCut(ctx context.Context, emit func(shard int, p *core.Piece)) (*Cut, error) {
	if err := s.canCut(); err != nil {
		return nil, err
	}
	if !s.cutting.CompareAndSwap(false, true) {
		return nil, ErrCutting
	}
	c := &Cut{space: s, parts: make([]*core.Cut, len(s.shards)), emit: emit, begun: make(chan struct{}), groups: make([][]CutGroups, len(s.shards))}
	err := s.submit(ctx, func(t *task) {
		for _, ranks := range s.table.byWorker {
			for _, m := range ranks {
				c.ranks = append(c.ranks, CutRank{m.id, m.holder.Load()})
			}
		}
		grouped := s.table.grouped()
		t.inspect = func(o *owner) {
			for _, m := range grouped {
				if table := o.groupsHere(m); table != nil && !table.Partial() {
					c.groups[o.number] = append(c.groups[o.number], CutGroups{o.holder(m), copyGroups(table, m.id.DPRank)})
				}
			}
			c.parts[o.number] = o.index.(cutter).BeginCut(func(p *core.Piece) { emit(o.number, p) })
		}
		t.done = func(core.Outcome) { close(c.begun) }
	})
	if err != nil {
		s.cutting.Store(false)
		return nil, err
	}
	return c, nil
}

// Ranks returns the ranks that were present. The cut may have pieces of others:
// of replacements that were not committed, and of what is nobody's any more.
func (c *Cut) Ranks() []CutRank { return c.ranks }

// Begun returns when every batch before the cut is applied.
func (c *Cut) Begun() { <-c.begun }

// Next has every shard give out pieces of about as many blocks and holders as
// told, and then call after, if not nil, in its owner. It reports whether the cut is given
// out. ctx bounds the wait for room in the queue.
func (c *Cut) Next(ctx context.Context, amount int, after func(shard int)) (done bool, err error) {
	all := make([]bool, len(c.parts))
	err = c.space.submitWait(ctx, func(t *task) {
		t.inspect = func(o *owner) {
			all[o.number] = c.parts[o.number].Next(amount)
			if after != nil {
				after(o.number)
			}
		}
	})
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if !d {
			return false, nil
		}
	}
	return true, nil
}

// Inferred returns the engine hashes of inferred blocks by shard and holder, once Begun
// has returned. The caller does not change them.
func (c *Cut) Inferred() []map[core.Holder][]uint64 {
	list := make([]map[core.Holder][]uint64, len(c.parts))
	for i, p := range c.parts {
		list[i] = p.Inferred()
	}
	return list
}

// Groups returns the cache groups of ranks by shard, once Begun has returned. The caller does
// not change them.
func (c *Cut) Groups() [][]CutGroups { return c.groups }

// End ends the cut, given out or not. emit is not called once it has returned.
func (c *Cut) End() {
	if c.ended {
		return
	}
	c.ended = true
	// An error says that the space is closed: its owners stop.
	_ = c.space.submitWait(context.Background(), func(t *task) {
		t.inspect = func(o *owner) { c.parts[o.number].End() }
	})
	c.space.cutting.Store(false)
}

// Shards returns how many shards the space has.
func (s *Space) Shards() int { return len(s.shards) }
