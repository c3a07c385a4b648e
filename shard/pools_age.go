package shard

import (
	"context"
	"time"

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

// leavingKeep is how long what is left to be read of a worker without a registration is awaited.
const leavingKeep = time.Minute

// AgePools takes out of pools what has not been said for their age, and ends what is awaited of workers for too long, as of now. ctx bounds the wait
// for room in the queue.
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
	due := false
	for id, age := range ages {
		third, at := 3*now.Unix()/age, s.table.ages[id]
		switch {
		case at == nil:
			// What is there, on any tier by another run, may stay for so long again.
			s.table.ages[id] = &poolAge{age: age, third: third, keep: event.NumTiers - 1}
		case at.age != age:
			at.age, at.third = age, third
		default:
			due = due || third > at.third
		}
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.submitWait(ctx, func(t *task) {
		gone := make(map[*member][]event.Tier)
		for id, age := range ages {
			at, third := s.table.ages[id], 3*now.Unix()/age
			for n := 0; at.age == age && n < event.NumTiers && at.third < third; n++ {
				at.third++
				at.slot = (at.slot + 1) % event.NumTiers
				if at.keep > 0 {
					at.keep--
				} else if m := s.table.find(id); m != nil {
					gone[m] = append(gone[m], at.slot)
				}
			}
			at.age, at.third = age, max(at.third, third)
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
