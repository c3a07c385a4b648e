package route

import (
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// Where a request can be tried at one worker only, as where a gateway has it, what is in flight at a sick
// worker is lost. So the caller may try workers with small requests of its own before others go
// there: those that were left out and may be well again, and those of which nothing is known yet.

// trying is what is known of the trials of a worker. The Router's lock guards it.
type trying struct {
	live  bool      // one is under way
	first time.Time // when its first was due, while it had proved nothing
	last  time.Time // when the last began
	until time.Time // before that its trials say nothing, as they are refused: clients' requests tell
	asks  bool      // the one under way is of Router.Ask
	vain  bool      // nothing was to be learnt of the last of those: that it is asked is no reason to send it nothing
}

// onTrial reports whether a worker gets none of those requests that can be tried nowhere else: it is half open,
// or has proved nothing while a trial is under way, within the time since its first one was due, or if what it last
// did was to fail.
func (r *Router) onTrial(w *workerState, within time.Duration, now time.Time) bool {
	switch {
	case w.Role == Prefill || now.Before(w.trying.until):
		return false
	case w.breaker.State(now) == breaker.HalfOpen:
		return true
	}
	return !w.proven && w.breaker.Closed() && (w.trying.live || w.trying.fresh(within, now) || !w.breaker.Well())
}

// fresh reports whether the worker's first trial is due, or was within the time.
func (t *trying) fresh(within time.Duration, now time.Time) bool {
	return t.first.IsZero() || now.Sub(t.first) < within
}

// Trials returns workers that are to be tried now, most at most, each once until Tried is told of it, for callers with
// Options.Trial, which is within. They book a request there as any other, by Options.Worker, and tell what
// becomes of it. wait is set if no other worker may be chosen, and one is being tried.
// One that has proved nothing, and fails without being left out, is tried once in so long after its first time, and
// nobody waits for that.
func (r *Router) Trials(within time.Duration, most int) (list []uint64, wait bool) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if within <= 0 || r.allProven && r.allWell(now) {
		return nil, false
	}
	all, others, well := true, 0, false
	for _, w := range r.workers {
		if w.Role == Prefill {
			continue
		}
		if all = all && w.proven; w.absent() != Eligible {
			continue
		}
		others++
		switch {
		case !r.onTrial(w, within, now):
			well = well || w.breaker.State(now) == breaker.Closed && !w.silent && (w.proven || !now.Before(w.trying.until))
		case w.trying.live:
			wait = wait || !w.breaker.Closed() || w.trying.fresh(within, now)
		case w.breaker.Closed() && !w.trying.fresh(within, now) && now.Sub(w.trying.last) < within:
		case w.breaker.Closed() || w.breaker.Admits(&r.settings.Breaker, now):
			list = append(list, w.ID)
		}
	}
	if r.allProven = all; others < 2 {
		return nil, false // there is nobody to be asked in its place
	}
	slices.Sort(list)
	list = list[:min(len(list), most)]
	for _, id := range list {
		w := r.workers[id]
		wait = wait || !w.breaker.Closed() || w.trying.fresh(within, now)
		if w.trying.live, w.trying.last = true, now; w.trying.first.IsZero() {
			w.trying.first = now
		}
	}
	return list, !well && wait
}

// Tried tells that a worker's trial is over. If it said nothing of the worker, as one that is refused for its
// key or cannot be sent, there is none for so long, and clients' requests tell; 0 takes that back.
func (r *Router) Tried(worker uint64, silentFor time.Duration) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[worker]; w != nil {
		// What the worker is asked goes on.
		w.trying.live, w.trying.until = w.trying.live && w.trying.asks, time.Time{}
		if silentFor > 0 { // a choice may go by a clock that was read before
			w.trying.until = now.Add(silentFor)
		}
	}
}
