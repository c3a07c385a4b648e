package shard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Errors of a Replacement.
var (
	// ErrReplacing is returned while another replacement of the rank is open.
	ErrReplacing = errors.New("the rank is being replaced already")
	// ErrRankRemoved is returned if the rank, or its worker, was removed since
	// the replacement began.
	ErrRankRemoved = errors.New("the rank was removed while it was being replaced")
	// ErrReplaced is returned once the replacement is committed or aborted.
	ErrReplaced = errors.New("the replacement is committed or aborted already")
)

// Replacement builds a rank's new state from a dump beside its present one.
// Lookups see nothing of it until Commit, and from then on nothing of the old
// state: there is no moment at which a lookup sees a mixture or neither.
//
// Calls are made one after the other; exactly one of Commit and Abort ends it.
type Replacement struct {
	space  *Space
	id     RankID
	member *member // has a number, and is not in the table
	// restorers has one a shard, each of that shard's owner.
	restorers []core.Restorer
	removed   atomic.Bool  // written under Space.mu
	gave      *workerPools // these have got what was restored; Space.mu guards it
	over      bool         // committed or aborted: what was hidden is the rank's, or nobody's
}

// Replace begins a replacement of what the rank holds. There may be one for
// each rank at a time. The rank need not be present.
func (s *Space) Replace(ctx context.Context, id RankID) (*Replacement, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("not replaced: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return nil, ErrClosed
	case s.table.replacing[id] != nil:
		return nil, ErrReplacing
	case s.table.find(id) == nil && s.table.count.Load() >= int64(s.maxRanks):
		return nil, fmt.Errorf("replacing worker %d, rank %d: already %d ranks", id.Worker, id.DPRank, s.maxRanks)
	}
	p := &Replacement{space: s, id: id, member: s.table.hidden(id, len(s.shards)), restorers: make([]core.Restorer, len(s.shards))}
	p.member.loaded = id.Pool()
	if m, ok := s.models.Load(id.Worker); ok && m.model != nil && !id.Pool() {
		p.member.give(newGrouped())
	}
	s.table.replacing[id] = p
	return p, nil
}

// FromSnapshot says that what is added comes from a snapshot. Where that does not tell what
// the rank's cache groups hold, depths of the rank are bounds until it is cleared or replaced.
func (p *Replacement) FromSnapshot() {
	p.space.mu.Lock()
	defer p.space.mu.Unlock()
	p.member.loaded = true
	p.member.groups.Store(nil)
}

// Add applies events of a dump (see [core.Index]), with one number of copies
// for each of an event's engine hashes, and returns what they did once all
// shards are done. ctx bounds the wait for room in the queue.
func (p *Replacement) Add(ctx context.Context, events []event.Event, copies [][]uint32) (core.Outcome, error) {
	if err := checkCopies(events, copies); err != nil {
		return core.Outcome{}, err
	}
	return p.do(ctx, func(t *task) {
		t.batch = &event.Batch{Space: p.space.key, Worker: p.id.Worker, Events: events}
		t.copies = copies
		for i := range events {
			t.members = append(t.members, p.member)
			if events[i].Group > 0 && p.member.groups.Load() == nil {
				p.member.give(newGrouped()) // a dump begins with the groups
				p.member.loaded = false
				p.space.MarkHybrid()
				p.space.grouped.Store(true)
			}
		}
		p.space.reach(t)
	})
}

// Attach applies, after Finish, events of what the rank holds below parents, or
// by hash alone, that its publisher does not know: as other ranks of its hash
// scheme have them (core.Index.Infer, core.Index.StoreFrom), or not at all.
func (p *Replacement) Attach(ctx context.Context, events []event.Event, copies [][]uint32) (core.Outcome, error) {
	if err := checkCopies(events, copies); err != nil {
		return core.Outcome{}, err
	}
	b := &event.Batch{Space: p.space.key, Worker: p.id.Worker, Events: events}
	scheme := p.space.schemeOf(b)
	return p.do(ctx, func(t *task) {
		t.attach, t.batch, t.scheme = true, b, scheme
		t.copies = copies
		for range events {
			t.members = append(t.members, p.member)
		}
		p.space.reach(t)
		p.givePools(t)
	})
}

// checkCopies refuses what an owner would look for in vain.
func checkCopies(events []event.Event, copies [][]uint32) error {
	if len(copies) != len(events) {
		return fmt.Errorf("restoring %d events: copies of %d are given", len(events), len(copies))
	}
	for i := range events {
		if len(copies[i]) < len(events[i].Engine) {
			return fmt.Errorf("restoring an event of %d blocks: copies of %d are given", len(events[i].Engine), len(copies[i]))
		}
	}
	return nil
}

// Finish is called after the last Add.
func (p *Replacement) Finish(ctx context.Context) (core.Outcome, error) {
	return p.do(ctx, p.givePools)
}

// givePools names the pools that take over what is the pools' of what was restored: the rank
// has said it, and no more than that is known.
func (p *Replacement) givePools(t *task) {
	p.gave = p.member.pools.Load()
	if p.gave != nil {
		t.takers = p.space.takers(p.gave)
	}
}

// do has every shard do its part of the restoring, and waits.
func (p *Replacement) do(ctx context.Context, prepare func(t *task)) (core.Outcome, error) {
	switch {
	case p.over:
		return core.Outcome{}, ErrReplaced
	case p.removed.Load():
		return core.Outcome{}, ErrRankRemoved
	}
	applied := make(chan core.Outcome, 1)
	err := p.space.submit(ctx, func(t *task) {
		t.restore = p
		prepare(t)
		t.done = func(out core.Outcome) { applied <- out }
	})
	if err != nil {
		return core.Outcome{}, err
	}
	return <-applied, nil
}

// Commit makes the new state the rank's: in one step for lookups, and between
// the batches applied before and after the call for writers. Then done, if not
// nil, is called; it must not block. The old blocks, which are nobody's, are taken apart after that. After
// an error the Replacement is still open, and Abort ends it.
func (p *Replacement) Commit(ctx context.Context, done func()) error {
	if p.over {
		return ErrReplaced
	}
	removed := false
	err := p.space.submit(ctx, func(t *task) {
		if removed = p.removed.Load(); removed {
			return
		}
		if old := p.space.table.swap(p.member); old != nil {
			t.members = append(t.members, old)
		}
		delete(p.space.table.replacing, p.id)
		t.reveal = p.member
		if p.member.pools.Load() != p.gave { // it was registered meanwhile
			p.givePools(t)
		}
		t.done = func(core.Outcome) {
			if done != nil {
				done()
			}
		}
	})
	if err == nil && removed {
		err = ErrRankRemoved
	}
	p.over = err == nil
	return err
}

// Abort drops the new state, unless it was committed. It returns when that is done.
func (p *Replacement) Abort(ctx context.Context) error {
	if p.over {
		return nil
	}
	err := p.space.submitWait(ctx, func(t *task) {
		delete(p.space.table.replacing, p.id)
		t.members = append(t.members, p.member)
	})
	if err != nil {
		return err
	}
	p.over = true
	p.space.mu.Lock()
	defer p.space.mu.Unlock()
	p.space.table.renew()
	return nil
}

// restore does this shard's part of building a replacement.
func (o *owner) restore(t *task) {
	p := t.restore
	out := &t.outs[o.number]
	r := &p.restorers[o.number]
	if r.Index == nil {
		r.Holder = o.holder(p.member)
		if o.hidden == nil {
			o.hidden = make(map[core.Holder]struct{})
		}
		o.hidden[r.Holder] = struct{}{}
	}
	if t.batch == nil {
		r.Index = o.index
		out.Add(r.Finish())
		if g := p.member.groups.Load(); g != nil && g.home == o.number {
			g.mu.Lock()
			g.mu.table.Restored()
			g.mu.Unlock()
		}
		o.publish(p.member)
		o.giveTo(t.takers, p.member)
		return
	}
	for i := range t.batch.Events {
		ev := &t.batch.Events[i]
		if ev.Group > 0 || p.member.groups.Load() != nil && !t.attach {
			out.Add(o.restoreGroups(p.member, ev, t.copies[i]))
		}
		if ev.Group > 0 {
			continue
		}
		if t.attach {
			o.lackGroups(p.member)
			o.attach(t, i, out)
			continue
		}
		// The chain of an event goes to the shard that has it; all that
		// follows from it, by hash, finds its shard by itself.
		chain := routed{Index: o.index, store: func() core.Outcome {
			var part core.Outcome
			o.store(t, i, &part)
			return part
		}}
		r.Index = &chain
		part := r.Add(&t.batch.Events[i], t.copies[i])
		part.UnknownBlock = 0 // hashes of other shards
		out.Add(part)
	}
	o.publish(p.member)
	o.giveTo(t.takers, p.member) // of Attach
}

// attach does this shard's part of an event of Attach.
func (o *owner) attach(t *task, i int, out *core.Outcome) {
	ev := &t.batch.Events[i]
	var part core.Outcome
	o.store(t, i, &part)
	for j, hash := range ev.Engine {
		if n := t.copies[i][j]; n > 1 {
			more := o.index.StoreCopies(o.holder(t.members[i]), ev.Tier, hash, n-1)
			more.UnknownBlock = 0 // a hash of another shard, or of none
			part.Add(more)
		}
	}
	out.Add(part)
}

// routed is an index whose first Store goes where store says.
type routed struct {
	core.Index
	store func() core.Outcome
}

func (x *routed) Store(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	if f := x.store; f != nil {
		x.store = nil
		return f()
	}
	return x.Index.Store(h, ev, countCopies)
}

// hiddenDigest returns what the replacements under way add to the digest of
// this shard: the index has their blocks, the space has not.
func (o *owner) hiddenDigest(space uint64) uint64 {
	var sum uint64
	for h := range o.hidden {
		// A copy of the holder in an index of its own tells.
		alone := core.NewRadix(core.Options{Key: o.space.hashKey})
		r := core.Restorer{Index: alone, Holder: 0}
		o.index.Dump(h, func(ev *event.Event, copies []uint32) bool {
			r.Add(ev, copies)
			return true
		})
		r.Finish()
		sum += alone.Digest(space, func(core.Holder) (uint64, uint32) { return o.identity(h) })
	}
	return sum
}
