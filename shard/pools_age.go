package shard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// poolAge is how blocks of a pool grow old: in each third of the pool's age those that are said to be
// there are stored on another tier of the pool, and what was there a round ago goes. What is on any
// tier is there, as in every answer; so that takes nothing that an index does not have.
type poolAge struct {
	age, third int64 // in seconds; which third it is
	slot       event.Tier
	keep       int // thirds at whose beginning nothing goes: when it was said is not known
}

// tier returns where blocks are stored that are said to be there now.
func (a *poolAge) tier() event.Tier {
	if a == nil {
		return event.Device
	}
	return a.slot
}

// moveTo goes on to a third, and returns the tiers on which what is there goes.
func (a *poolAge) moveTo(third int64) (gone []event.Tier) {
	for n := 0; n < event.NumTiers && a.third < third; n++ {
		a.third++
		a.slot = (a.slot + 1) % event.NumTiers
		if a.keep > 0 {
			a.keep--
		} else {
			gone = append(gone, a.slot)
		}
	}
	a.third = max(a.third, third)
	return gone
}

// leavingKeep is how long what is left to be read of a worker without a registration is awaited.
const leavingKeep = time.Minute

// AgePools takes out of pools what has not been said for their age, and ends what is awaited of workers for too long, as of now. ctx bounds the wait
// for room in the queue. There is one call at a time.
func (s *Space) AgePools(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	overdue := s.early.overdue(now)
	s.early.forget(overdue...)
	for _, worker := range overdue {
		if len(s.table.byWorker[worker]) > 0 { // until it goes
			s.table.unpooled[worker] = struct{}{}
		}
	}
	for worker, since := range s.table.leaving {
		if since.IsZero() {
			s.table.leaving[worker] = now
		} else if now.Sub(since) >= leavingKeep {
			s.table.leave(worker)
		}
	}
	s.mu.Unlock()
	if !s.table.pooled.Load() {
		return nil
	}
	if err := s.forgetPools(ctx, now); err != nil {
		return err
	}
	s.mu.Lock()
	ages := make(map[RankID]int64)
	for _, w := range s.table.pools {
		for i := range w.list {
			if age := int64(w.list[i].Age); age > 0 {
				id := w.named[i].id
				ages[id] = max(ages[id], age)
			}
		}
	}
	due := make(map[RankID][]event.Tier) // on which tiers of pools all goes
	for id, age := range ages {
		third, at := 3*now.Unix()/age, s.table.ages[id]
		switch {
		case at == nil:
			// What is there, on any tier by another run, may stay for so long again.
			s.table.ages[id] = &poolAge{age: age, third: third, keep: event.NumTiers - 1}
		case at.age != age:
			at.age, at.third = age, third
		case third > at.third:
			after := *at
			due[id] = after.moveTo(third)
		}
	}
	s.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	for id, tiers := range due {
		for _, tier := range tiers {
			if err := s.takeOld(ctx, id, tier); err != nil {
				return err
			}
		}
	}
	return s.submitWait(ctx, func(t *task) {
		gone := make(map[*member][]event.Tier)
		for id, age := range ages {
			at, third := s.table.ages[id], 3*now.Unix()/age
			if at.age != age {
				at.age, at.third = age, max(at.third, third)
			} else if tiers := at.moveTo(third); len(tiers) > 0 {
				if m := s.table.find(id); m != nil {
					gone[m] = tiers
				}
			}
		}
		t.inspect = func(o *owner) {
			for m, tiers := range gone {
				for _, tier := range tiers {
					o.index.Clear(o.holder(m), tier, false)
				}
				o.publish(m)
			}
		}
	})
}

// poolRuns is in how many of a pool's chains owners clear a tier at a time: what others say is applied in between.
const poolRuns = 1024

// takeOld takes out of a pool what it has on a tier, in steps: nothing that may stay is stored there until AgePools goes on.
func (s *Space) takeOld(ctx context.Context, id RankID, tier event.Tier) error {
	walks := make([]*core.Walk, len(s.shards)) // each its owner's
	defer s.endWalks(ctx, walks)
	for first := true; ; first = false {
		var left atomic.Bool
		err := s.submitWait(ctx, func(t *task) {
			m := s.table.find(id)
			t.inspect = func(o *owner) {
				if m == nil {
					return
				}
				if first {
					walks[o.number] = o.walk(m, nil)
				}
				// Of one that is gone through already it all goes in the end.
				if w := walks[o.number]; w != nil && !w.Clear(tier, poolRuns) {
					left.Store(true)
				}
				o.publish(m)
			}
		})
		if err != nil || !left.Load() {
			return err
		}
	}
}

// poolKeep is how long a pool is kept that no worker names: nobody tells what leaves it. It is no
// setting: it outlasts a redeployment of all its workers, and bounds the memory of one that is gone.
const poolKeep = time.Hour

// forgetPools removes pools that nobody has named for long, and at once those that have nothing.
func (s *Space) forgetPools(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	var gone []RankID
	for id := range s.table.unnamed {
		if s.table.byPool[id] != nil {
			delete(s.table.unnamed, id)
		}
	}
	for id := range s.table.ages {
		if s.table.byPool[id] == nil && s.table.find(id) == nil {
			delete(s.table.ages, id) // there was no room for it
		}
	}
	s.EachMember(func(m Member) {
		if !m.ID().Pool() || s.table.byPool[m.ID()] != nil {
			return
		}
		since, known := s.table.unnamed[m.ID()]
		if !known {
			s.table.unnamed[m.ID()], since = now, now
		}
		if m.Held() == 0 && known || now.Sub(since) >= poolKeep {
			gone = append(gone, m.ID())
		}
	})
	s.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	return s.removeRanks(ctx, func(remove func(*member)) {
		for _, id := range gone {
			if m := s.table.find(id); m != nil && s.table.byPool[id] == nil {
				delete(s.table.unnamed, id)
				delete(s.table.ages, id)
				remove(m)
			}
		}
	})
}
