package route

import (
	"iter"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// Apply takes a change that another router made to a booking of its own. It
// reports whether it changed anything; changes that name this router do not.
func (r *Router) Apply(c load.Change) bool {
	if c.Key.Owner == r.cfg.ID {
		return false
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch c.Kind {
	case load.Added:
		r.meet(c.Key.Owner)
		r.bids.placed(c.Key, c.Request.NewTokens, r.times.speeds.prompt, now)
		return r.bookRemote(c, now)
	case load.Sought:
		if !r.table.Has(c.Key) { // else it was told late
			return r.bids.hear(c, r.times.speeds.prompt, now)
		}
	case load.Fetched:
		return r.fetchedElsewhere(c)
	case load.Failing:
		return r.failsElsewhere(c.Rank.Worker, now)
	case load.Prefilled:
		r.times.away.over(r.times, c.Key)
		return r.table.PrefillComplete(c.Key, now)
	case load.Generated:
		_, live := r.table.Output(c.Key, c.Tokens, now)
		return live
	case load.Filled:
		return r.table.OutputBlock(c.Key, c.Weight, now)
	case load.Freed:
		r.times.away.over(r.times, c.Key)
		return r.table.Free(c.Key)
	}
	return false
}

// DropOwner ends all bookings of another router.
func (r *Router) DropOwner(owner uint64) {
	if owner == r.cfg.ID {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part(owner)
	r.table.DropOwner(owner)
	r.fetchesOf(owner)
}

// Own calls begin and then each for every live booking of this router, as the
// change that adds it, with no other change in between: what the journal was
// told before begin is in, what it is told later is not. A change's Blocks
// live until each returns.
func (r *Router) Own(begin func(), each func(c load.Change)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin()
	r.table.Each(r.cfg.ID, func(k load.Key, rank shard.RankID, req load.Request) bool {
		each(load.Change{Kind: load.Added, Key: k, Rank: rank, Request: req})
		return true
	})
}

// Replace makes live the bookings of another router, in place of those that
// are known, as one step.
func (r *Router) Replace(owner uint64, live iter.Seq[load.Change]) {
	if owner == r.cfg.ID {
		return
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meet(owner)
	r.table.DropOwner(owner)
	for c := range live {
		if c.Kind == load.Added && c.Key.Owner == owner {
			r.bids.take(c.Key)
			r.bookRemote(c, now)
		}
	}
	r.fetchesOf(owner)
}

// bookRemote books what another router has placed.
func (r *Router) bookRemote(c load.Change, now time.Time) bool {
	if r.table.Has(c.Key) {
		return false
	}
	// Its router sees to its end, so it needs no lease here. The worker may be
	// one that this router does not know yet: its load counts once it does.
	c.Request.Leased = false
	return r.table.Add(c.Key, r.table.Slot(c.Rank), c.Request, now) == nil
}

// failsElsewhere is for a worker that another router has left out. Here it is half open then, so that a few requests
// tell, unless too many are out already. A word that is wrong, whoever says it and however often, costs the worker its
// requests for two probes once in the longest time that one is left out. It reports whether that changed anything.
func (r *Router) failsElsewhere(worker uint64, now time.Time) bool {
	w, c := r.workers[worker], &r.settings.Breaker
	switch {
	case w == nil || w.silent || w.breaker.State(now) != breaker.Closed || c.Failures == 0 && c.Share == 0:
		return false
	case !w.heard.IsZero() && now.Sub(w.heard) < c.Longest():
		return false
	}
	w.heard = now
	if !r.mayLeaveOut(w, false, true) {
		w.spared++
		return false
	}
	w.told++
	w.relented = false // that was of a doubt before
	w.breaker.Doubt()
	r.wellUntil = time.Time{}
	return true
}
