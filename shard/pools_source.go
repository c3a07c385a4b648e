package shard

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// A pool with a stream of its own (event.PoolSource) is what that says: what workers say of it is
// left out. Whoever follows it calls the methods here, one after the other, and has lookups see the
// pool while it knows what is in it. Objects are named by engine hashes alone; where one stands is
// learnt from any worker that names the pool, as they find them by these.

// says notes that one more worker, or one less, names a stream of the pool's own. Space.mu is held.
func (p *namedPool) says(more int) {
	had := p.sources > 0
	if p.sources += more; had != (p.sources > 0) {
		p.hidden.Store(!had) // until it is known what is in it
	}
}

// PoolReadable says whether what is known of a pool with a stream of its own is how it is: else
// lookups find nothing there.
func (s *Space) PoolReadable(name string, readable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.table.byPool[poolID(name)]; p != nil && p.sources > 0 {
		p.hidden.Store(!readable)
	}
}

// PoolHidden reports whether a pool has a stream of its own of which that was not said: since
// somebody has named it first, or anew.
func (s *Space) PoolHidden(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.table.byPool[poolID(name)]
	return p != nil && p.hidden.Load()
}

// PoolStore puts objects into a pool with a stream of its own, and returns those whose place no
// worker that names the pool can tell now. ctx bounds the wait for room in the queue.
func (s *Space) PoolStore(ctx context.Context, name string, hashes []uint64) (unplaced []uint64, err error) {
	knows := make([][]parentVote, len(s.shards)) // by shard and hash
	p, err := s.ofSource(ctx, name, func(m *member, t *task) {
		m.reachAll()
		t.inspect = func(o *owner) {
			votes := make([]parentVote, len(hashes))
			for i, e := range hashes {
				votes[i] = parentUnknown
				if o.index.Knows(o.holder(m), e) {
					votes[i] = parentHere
				} else if from, whole, ok := core.Knower(o.index, e, func(h core.Holder) bool { return o.names(h, m.id) }); ok {
					votes[i] = parentOf(from, whole)
				}
			}
			knows[o.number] = votes
		}
	})
	if err != nil || p == nil {
		return hashes, err
	}
	in := make([][]int, len(s.shards)) // which hashes each shard stores
	for i, e := range hashes {
		at := -1
		for j := range knows {
			if v := knows[j][i]; v != parentUnknown && (at < 0 || v > knows[at][i]) {
				at = j
			}
		}
		if at < 0 {
			unplaced = append(unplaced, e)
			continue
		}
		in[at] = append(in[at], i)
	}
	lost := make([][]uint64, len(s.shards))
	_, err = s.ofSource(ctx, name, func(m *member, t *task) {
		t.inspect = func(o *owner) {
			ev := event.Event{Kind: event.Stored, Engine: make([]uint64, 0, len(in[o.number]))}
			for _, i := range in[o.number] {
				ev.Engine = append(ev.Engine, hashes[i])
			}
			core.StoreHashOnly(o.index, o.holder(m), &ev, false, func(j int) (core.Holder, bool) {
				v := knows[o.number][in[o.number][j]]
				return v.holder(), v != parentHere && o.names(v.holder(), m.id)
			})
			for _, e := range ev.Engine {
				if !o.index.Knows(o.holder(m), e) {
					lost[o.number] = append(lost[o.number], e)
				}
			}
			if len(ev.Engine) > 0 {
				o.assignHolder(m)
				o.publish(m)
			}
		}
	})
	return append(unplaced, slices.Concat(lost...)...), err
}

// names reports whether the holder is a rank, and its worker names the pool.
func (o *owner) names(h core.Holder, pool RankID) bool {
	if _, hidden := o.hidden[h]; hidden || int(h) >= len(o.members) || o.members[h] == nil || o.members[h].id.Pool() {
		return false
	}
	w := o.members[h].pools.Load()
	return w != nil && slices.ContainsFunc(w.named, func(p *namedPool) bool { return p.id == pool })
}

// PoolRemove takes objects out of a pool with a stream of its own. ctx bounds the wait for room in the queue.
func (s *Space) PoolRemove(ctx context.Context, name string, hashes []uint64) error {
	_, err := s.ofSource(ctx, name, func(m *member, t *task) {
		t.inspect = func(o *owner) {
			if o.index.Empty(o.holder(m)) {
				return
			}
			o.takeOut(m, hashes)
			o.publish(m)
		}
	})
	return err
}

// poolChunk is how many blocks owners look at, or take out of a pool, at a time: what others say is applied in between.
const poolChunk = 4096

// PoolKeep takes out of a pool with a stream of its own what keep does not want: owners only name what they
// have, some of it at a time, and are not held up while keep is asked. ctx bounds the wait for room in the queue.
func (s *Space) PoolKeep(ctx context.Context, name string, keep func(hash uint64) bool) error {
	walks := make([]*core.Walk, len(s.shards)) // each its owner's
	defer s.endWalks(ctx, walks)
	var of *member
	for {
		has, left, busy := make([][]uint64, len(s.shards)), atomic.Bool{}, atomic.Bool{}
		m, err := s.ofSource(ctx, name, func(m *member, t *task) {
			anew := m != of // it was loaded from a snapshot meanwhile
			t.inspect = func(o *owner) {
				w := walks[o.number]
				if anew {
					w = o.walk(m, w)
				}
				if walks[o.number] = w; w == nil {
					busy.Store(true)
				} else if !w.Next(poolChunk, func(e uint64) { has[o.number] = append(has[o.number], e) }) {
					left.Store(true)
				}
			}
		})
		if err != nil || m == nil {
			return err
		}
		if of = m; busy.Load() {
			return fmt.Errorf("what pool %q has is gone through already", name)
		}
		if gone := slices.DeleteFunc(slices.Concat(has...), keep); len(gone) > 0 {
			if err := s.PoolRemove(ctx, name, gone); err != nil {
				return err
			}
		}
		if !left.Load() {
			return nil
		}
	}
}

// endWalks ends the walks of all shards.
func (s *Space) endWalks(ctx context.Context, walks []*core.Walk) {
	_ = s.submitWait(context.WithoutCancel(ctx), func(t *task) { // it fails if the space is closed
		t.inspect = func(o *owner) {
			if w := walks[o.number]; w != nil {
				w.End()
			}
		}
	})
}

// walk begins a walk over what the pool has here, in the place of the one before; nil: another one is still under way.
func (o *owner) walk(m *member, before *core.Walk) *core.Walk {
	if before != nil {
		before.End()
	}
	x, _ := o.index.(interface{ BeginWalk(core.Holder) *core.Walk })
	if x == nil {
		return nil
	}
	return x.BeginWalk(o.holder(m))
}

// ofSource has prepare fill in a task about the pool, if it has a stream of its own and there is
// room for it; else m is nil.
func (s *Space) ofSource(ctx context.Context, name string, prepare func(m *member, t *task)) (m *member, err error) {
	err = s.submitWait(ctx, func(t *task) {
		t.inspect = func(*owner) {}
		p := s.table.byPool[poolID(name)]
		if p == nil || p.sources == 0 {
			return
		}
		if m = p.member.Load(); m == nil && s.table.count.Load() < int64(s.maxRanks) {
			m = s.table.add(p.id, len(s.shards))
		}
		if m != nil {
			prepare(m, t)
		}
	})
	return m, err
}
