package route

import (
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// A worker may begin all its answers well and then break them off, or hang: to its breaker an answer
// that is watched is a success only once it is whole, or has gone on for a while. And where
// a gateway has the request, nobody says whether an answer was cut by its client or by its engine: there
// chance tells, beside what is cut elsewhere.

// firmAfter is for how long an answer must go on behind its first sign to speak for its worker.
const firmAfter = 250 * time.Millisecond

// Trial says what the request that was chosen for tells of its worker.
type Trial struct {
	// Probe is set if the worker was left out, and the request tells whether it is well again.
	Probe bool
	// Unproven is set if the worker has yet to show that its answers go on behind their first sign, and
	// another one could answer.
	Unproven bool
}

// firm notes that an answer speaks for its worker.
func (r *Router) firm(a *attempt, now time.Time) {
	if a.firm || a.failed {
		return
	}
	a.firm, a.worker.proven = true, true
	r.outcome(a, breaker.Succeeded, 0, now)
}

// unproven reports whether an answer of the worker may well break off behind its first sign, and another could
// give it: none of its answers was firm yet, or the last that counted has failed.
func (r *Router) unproven(w *workerState) bool {
	if w.proven && w.breaker.Well() {
		return false
	}
	for _, other := range r.workers {
		if other != w && other.Role != Prefill && other.absent() == Eligible {
			return true
		}
	}
	return false
}

// ends counts how exchanges of late ended: whole, or cut by who knows whom.
type ends struct{ whole, cut float64 }

// maxEnds bounds how far back ends remembers.
const maxEnds = 512

func (e *ends) count(whole bool) {
	if whole {
		e.whole++
	} else {
		e.cut++
	}
	if e.whole+e.cut > maxEnds {
		e.whole, e.cut = e.whole/2, e.cut/2
	}
}

// cutChance is how unlikely a row of cuts must be, if it were the clients', to be held against the worker.
const cutChance = 1e-3

// tell reports whether so many cuts in a row at one worker are more than clients do by chance, who cut
// as often at the others.
func (e *ends) tell(row int) bool {
	others := max(e.cut-float64(row), 0)
	return math.Pow((others+1)/(e.whole+others+2), float64(row)) < cutChance
}

// Cut tells that the request's exchange ended before its answer was whole, and that its client may have
// ended it as well as its worker. A row of them that clients hardly cut by chance, as they cut few
// elsewhere, counts as failures do, unless answers of others go on at the worker: one client alone has no
// worker left out that serves others. Succeeded, told of an answer that is whole, ends a row.
func (r *Router) Cut(requestID string, stage Stage) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	if a == nil || a.failed || a.whole || !a.answered && a.overdue(now) {
		return
	}
	w, c := a.worker, &r.settings.Breaker
	w.cuts++
	if (a.client == 0 || !slices.Contains(w.cutters, a.client)) && len(w.cutters) < c.Failures {
		w.cutters = append(w.cutters, a.client)
	}
	r.ends.count(false)
	if !a.answered {
		a.unlist()
	}
	a.fails() // nothing more is told of it
	blamed := c.Failures > 0 && w.cuts >= c.Failures && r.ends.tell(w.cuts) && !r.othersTell(w)
	switch state := w.breaker.State(now); {
	case !blamed:
		if !a.firm {
			r.outcome(a, breaker.Neutral, 0, now)
		}
		return
	case state != breaker.Closed:
		r.outcome(a, breaker.Failed, 0, now)
	case r.mayLeaveOut(w, true, false):
		w.breaker.Trip(c, now)
		r.leavesOut(w)
		r.wellUntil = time.Time{}
	default:
		w.spared++
	}
	w.failed++
}

// othersTell reports whether how answers of other clients end at the worker, which are under way, tells more
// than a row of few clients' cuts.
func (r *Router) othersTell(w *workerState) bool {
	if len(w.cutters) >= r.settings.Breaker.Failures {
		return false
	}
	return w.under.other(w.cutters)
}

// under counts a worker's requests that are under way and have not failed, by their clients, so that nobody has
// to look through all requests for them. What is counted is not 0.
type under map[uint64]int

// other reports whether one is of a client that the list has not.
func (u under) other(list []uint64) bool {
	for client := range u { // at most one more than the list has
		if !slices.Contains(list, client) {
			return true
		}
	}
	return false
}

// tells counts the request among its worker's, or off.
func (a *attempt) tells(by int) {
	h := &a.worker.health
	if h.under == nil {
		h.under = make(under)
	}
	if n := h.under[a.client] + by; n > 0 {
		h.under[a.client] = n
	} else {
		delete(h.under, a.client)
	}
}

// fails notes that the request has failed, which counts once.
func (a *attempt) fails() {
	a.failed = true
	a.tells(-1)
}

// Stalled tells that the request's answer has begun, and nothing of it has come for as long as its first sign
// may take: it counts as a failure, unless that is withdrawn as it goes on. What is waited for before
// that is overdue, by itself.
func (r *Router) Stalled(requestID string, stage Stage) (b Blame) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	if a == nil || a.failed || a.whole || !a.answered {
		return b
	}
	a.fails()
	a.worker.failed++
	r.outcome(a, breaker.Failed, 0, now)
	return Blame{worker: a.worker, ticket: a.ticket}
}

// WentOn withdraws what Stalled gave, as the answer goes on. How it ends is still to come.
func (r *Router) WentOn(requestID string, stage Stage, b Blame) {
	r.Withdraw(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.attempts[r.key(requestID, stage)]; a != nil && a.worker == b.worker {
		a.failed, a.ticket = false, b.worker.breaker.Sent(r.cfg.Now()) // which others' failures may have opened
		a.tells(1)
	}
}
