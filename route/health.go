package route

import (
	"math"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// What becomes of requests makes a worker's state: a breaker for what failed or was
// refused, and requests that wait for their first token for a worker that
// takes requests and says nothing. At most Settings.LeftOutShare of the workers that decode
// are left out so: what fails everywhere is no worker's fault, and where most
// fail the rest would be crushed. Prefill workers may all be, if it is
// sure that the fault is theirs: there is a way without them.

// patience is how many times longer than predicted a first token may take, and how
// many a whole answer, before its worker is judged by it.
const patience = 8

// attempt is a request at a worker, as its state goes by it.
type attempt struct {
	worker       *workerState
	slot         uint32
	ticket       breaker.Ticket
	sent         time.Time
	allowed      time.Duration // until an answer is overdue; 0 is never
	older, newer *attempt      // of the worker's unanswered ones; itself in none: answered
	answered     bool
	watched      bool // its end is told: see Options.Watched
	firm         bool // it went on behind the first sign of its answer, or is whole
	failed       bool // which counts once
	whole        bool // all of its answer came
	client       uint64
	due          time.Time // when its first token, which nobody sees, should be out; zero of others
	followed
	trip trip // of one that is chosen
}

// maxSpare bounds the ended ones that are kept for their memory.
const maxSpare = 1024

// health is what requests tell of a worker.
type health struct {
	breaker        breaker.Breaker
	oldest, newest *attempt
	spoke          time.Time // when it last gave anything
	calmUntil      time.Time // until then none of the unanswered is overdue
	silent         bool      // left out for one of them
	mute           bool      // left out, as the router's own request gave nothing either: see Router.Ask
	relented       bool      // half open for such a one alone, which was answered
	failed         uint64    // requests
	leftOut        [2]uint64 // times: for failures and silence, for want of room
	told           uint64    // times that another router's word made it half open
	heard          time.Time // when such a word last counted
	spared         uint64    // times that it would have been, but for the others
	proven         bool      // an answer of it was firm
	cuts           int       // in a row; see Router.Cut
	cutters        []uint64  // their clients, as many as count
	under          under
	trying         trying
	// Requests in a row that it called wrong, and of how many on it is doubted for that, if they
	// are more than Settings.Breaker has.
	wrong, wrongMost int
	// What all workers had said when the first of these requests was called wrong.
	before tally
}

// send notes that the rank's worker is sent a request. A question (Options.Question) is no probe.
func (r *Router) send(k load.Key, m *member, client uint64, allowed time.Duration, question bool, now time.Time) *attempt {
	var a *attempt
	if n := len(r.spare); n > 0 {
		a, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		a = new(attempt)
	}
	w := m.worker
	*a = attempt{worker: w, slot: m.slot, sent: now, allowed: allowed, client: client, older: w.newest}
	if !question || w.breaker.Closed() {
		a.ticket = w.breaker.Sent(now)
	}
	a.tells(1)
	if w.newest != nil {
		w.newest.newer = a
	} else {
		w.oldest = a
	}
	w.newest = a
	r.attempts[k] = a
	if allowed > 0 {
		w.calmUntil = earlier(w.calmUntil, now.Add(allowed))
		r.wellUntil = earlier(r.wellUntil, now.Add(allowed))
	}
	return a
}

// allWell reports whether no worker can be left out for what became of its requests. It
// looks at them again only when one may have become overdue since the last time, or has
// failed: until Router.wellUntil all are well. A request that is sent sets that back, and
// one that fails; what is overdue is past it.
func (r *Router) allWell(now time.Time) bool {
	if !now.After(r.wellUntil) {
		return true
	}
	until := now.Add(time.Hour)
	for _, m := range r.members {
		if m.worker.silent || m.worker.mute || !m.worker.breaker.Closed() || m.worker.overdue(now) {
			return false
		}
		until = earlier(until, m.worker.calmUntil)
	}
	r.wellUntil = until
	return true
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// allowed is how long the worker has for the first sign of an answer.
func (r *Router) allowed(o *Options, c *Candidate, e *estimate) time.Duration {
	if !o.Watched || r.settings.OverdueAfter <= 0 {
		return 0
	}
	ms := e.first
	prompt, answer := r.times.alone(&r.weigh, c)
	if o.Stage == DecodeStage {
		ms += prompt // which another worker computes first
	}
	if o.Whole {
		ms += answer
	}
	return max(min(r.settings.OverdueAfter, longest), duration(patience*ms))
}

// longest is the longest time that is predicted, or waited for: more is no Duration, added to others.
const longest = math.MaxInt64 / 4

// duration is so many ms.
func duration(ms float64) time.Duration {
	return time.Duration(finite(ms*float64(time.Millisecond), 0, longest))
}

// spokeNow notes that something came from the request's worker.
func (r *Router) spokeNow(k load.Key, now time.Time) {
	if a := r.attempts[k]; a != nil {
		a.worker.speaks(now)
		if a.answered && !a.firm && now.Sub(a.first) >= firmAfter {
			r.firm(a, now)
		}
	}
}

// succeeded notes the first sign of an answer, and then that it is whole.
func (r *Router) succeeded(a *attempt, now time.Time) {
	if a == nil {
		return
	}
	a.worker.speaks(now)
	a.worker.wrong, a.worker.wrongMost = 0, 0
	if a.first.IsZero() {
		a.first = now
	}
	switch {
	case !a.answered:
		r.said.well++
		if a.unlist(); !a.watched {
			r.firm(a, now)
		}
	case !a.failed:
		a.whole = true
		a.worker.cuts, a.worker.cutters = 0, a.worker.cutters[:0]
		r.ends.count(true)
		r.firm(a, now)
	}
}

// gone notes the end of a request of which nothing more will come.
func (r *Router) gone(k load.Key, a *attempt, now time.Time) {
	r.closeAccount(k, a, now)
	if !a.failed {
		a.tells(-1)
	}
	switch {
	case a.answered:
		if !a.firm && !a.failed { // an end without a word speaks for the worker, and proves nothing
			r.outcome(a, breaker.Succeeded, 0, now)
		}
	case a.overdue(now):
		r.gaveUp(a, now)
	default:
		a.unlist()
		r.outcome(a, breaker.Neutral, 0, now)
	}
}

// spares keeps the memory of one that is over.
func (r *Router) spares(a *attempt) {
	if len(r.spare) < maxSpare {
		a.worker, a.name, a.holder, a.table = nil, "", shard.Member{}, nil // it keeps nothing alive
		r.spare = append(r.spare, a)
	}
}

// gaveUp is for a request that was overdue and is over. Its worker is out for it
// already, or is now; when its last one is over it is tried as one that failed.
func (r *Router) gaveUp(a *attempt, now time.Time) {
	w := a.worker
	a.unlist()
	w.failed++
	if w.silent || r.mayLeaveOut(w, true, false) {
		if !w.silent && w.breaker.Closed() {
			r.leavesOut(w)
		}
		w.breaker.Trip(&r.settings.Breaker, now)
	} else {
		r.outcome(a, breaker.Failed, 0, now) // of a probe, as others
	}
	if !w.overdue(now) {
		w.silent = false
	}
}

func (a *attempt) unlist() {
	w := a.worker
	if a.older != nil {
		a.older.newer = a.newer
	} else {
		w.oldest = a.newer
	}
	if a.newer != nil {
		a.newer.older = a.older
	} else {
		w.newest = a.older
	}
	a.older, a.newer, a.answered = nil, nil, true
}

// overdue reports whether the request waits for longer than it should, and its worker
// has given nothing to anybody for as long.
func (a *attempt) overdue(now time.Time) bool {
	return a.allowed > 0 && now.Sub(a.since()) > a.allowed
}

// overdue reports whether a request is that waits for the worker: not the oldest of all need be the first, as those
// that are not watched, or are to come as a whole, have longer.
func (h *health) overdue(now time.Time) bool {
	if !now.After(h.calmUntil) {
		return false
	}
	until := now.Add(time.Hour)
	for a := h.oldest; a != nil; a = a.newer {
		if a.overdue(now) {
			return true
		}
		if a.allowed > 0 {
			until = earlier(until, a.since().Add(a.allowed))
		}
	}
	h.calmUntil = until
	return false
}

// since is from when on its worker has been giving nothing.
func (a *attempt) since() time.Time {
	if a.worker.spoke.After(a.sent) {
		return a.worker.spoke
	}
	return a.sent
}

func (r *Router) outcome(a *attempt, o breaker.Outcome, retryAfter time.Duration, now time.Time) {
	r.outcomeOf(a, o, retryAfter, false, now)
}

// outcomeOf is outcome; the failure is shared if another worker may be the cause.
func (r *Router) outcomeOf(a *attempt, o breaker.Outcome, retryAfter time.Duration, shared bool, now time.Time) {
	w := a.worker
	if o == breaker.Failed || o == breaker.Refused {
		r.wellUntil = time.Time{}
	}
	probed := w.breaker.State(now) == breaker.HalfOpen
	out := w.breaker.Ended(&r.settings.Breaker, &a.ticket, o, retryAfter, now, func() bool {
		may := r.mayLeaveOut(w, !shared, false)
		if !may {
			w.spared++
		}
		return may
	})
	switch {
	case !out:
		if probed && w.breaker.State(now) == breaker.Open {
			r.tellFailing(w) // who has not heard of it, or has come since, does now
		}
	case o == breaker.Refused:
		w.leftOut[1]++
	default:
		r.leavesOut(w)
	}
}

// leavesOut notes that the worker is out for failures or silence, and tells the other routers.
func (r *Router) leavesOut(w *workerState) {
	w.leftOut[0]++
	r.tellFailing(w)
}

func (r *Router) tellFailing(w *workerState) {
	r.record(load.Change{Kind: load.Failing, Key: load.Key{Owner: r.cfg.ID}, Rank: shard.RankID{Worker: w.ID}})
}

// mayLeaveOut reports whether the workers that stay are enough without this one. Without prefill workers
// the decode workers do all: so all of them may be left out, if it is sure that what failed is theirs.
// Those that are doubted for other routers' word alone are out for who is told of only: they do not keep in one that fails here.
func (r *Router) mayLeaveOut(w *workerState, sure, told bool) bool {
	now := r.cfg.Now()
	all, out, decode := 0, 0, false
	for _, other := range r.workers {
		if other != w && other.absent() != Eligible {
			continue
		}
		left := other != w && (other.silent || other.breaker.State(now) != breaker.Closed && (told || !other.breaker.Doubted()))
		if (other.Role == Prefill) != (w.Role == Prefill) {
			decode = decode || !left
			continue
		}
		all++
		if left {
			out++
		}
	}
	share := r.settings.LeftOutShare
	return sure && w.Role == Prefill && decode && share > 0 || float64(out+1) <= share*float64(all)+1e-9
}

// leftOut says whether a worker gets no requests for what became of others.
func (r *Router) leftOut(w *workerState, now time.Time) Reason {
	if !w.silent && w.overdue(now) && r.mayLeaveOut(w, true, false) {
		w.silent = true
		r.leavesOut(w)
	}
	if w.breaker.Doubted() && !r.mayLeaveOut(w, false, true) { // others fail, or are gone, since it was told
		w.breaker.Trust()
	}
	switch {
	case w.silent, r.unheard(w):
		return Failing
	case w.breaker.Admits(&r.settings.Breaker, now):
		return Eligible
	case w.breaker.State(now) == breaker.Full:
		return Refusing
	}
	return Failing
}

// Failure is why a worker did not serve a request.
type Failure struct {
	// Full is set if it says that it has no room, for as long as RetryAfter; else it
	// is at fault.
	Full       bool
	RetryAfter time.Duration
	// Wrong is set if it says that the request is wrong. That is taken as said until it has said
	// so of as many requests in a row as fail to open a breaker: then another is to be asked.
	Wrong bool
	// Alone is set with Wrong if no other can be asked. Then it takes more requests in a row, and
	// that others served more in the meantime than they called wrong.
	Alone bool
	// Shared is set if another worker has failed with this one, and which of them is at fault is not known. Then
	// prefill workers are left out no further than others may be: Settings.LeftOutShare.
	Shared bool
}

// Blame is a failure that a worker was held to; see Withdraw.
type Blame struct {
	worker *workerState
	ticket breaker.Ticket
	wrong  bool
}

// None reports whether no worker was held to anything.
func (b *Blame) None() bool { return b.worker == nil }

// Failed tells that the worker of the request's stage did not serve it, or broke off.
// After several it is left out for a while, and then tried with a few requests. The
// booking stays; Free it. Twice is fine. Without a word of failure the end of a request says nothing
// against its worker.
func (r *Router) Failed(requestID string, stage Stage, f Failure) (b Blame) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	if a == nil || a.failed {
		return b
	}
	w := a.worker
	if f.Wrong && !r.callsWrong(&w.health, f.Alone) {
		return b
	}
	a.fails()
	if !f.Full && !a.answered && a.overdue(now) {
		r.gaveUp(a, now)
		return b
	}
	if !a.answered {
		a.unlist()
	}
	if f.Full {
		w.speaks(now)
		r.outcome(a, breaker.Refused, f.RetryAfter, now)
		return b
	}
	w.failed++
	r.outcomeOf(a, breaker.Failed, 0, f.Shared, now)
	return Blame{w, a.ticket, f.Wrong}
}

// Withdraw takes a failure back: the same request fails at another worker, too.
func (r *Router) Withdraw(b Blame) {
	if b.worker == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.worker.breaker.Withdraw(b.ticket)
	if b.wrong {
		b.worker.agreed(&r.settings.Breaker)
	}
}

// Succeeded tells of the first sign that the worker of the request's stage does its part, and told
// again, that it has done it. MarkPrefillComplete tells it of all stages. A prefill worker's first sign is its first token.
func (r *Router) Succeeded(requestID string, stage Stage) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.key(requestID, stage)
	a := r.attempts[k]
	r.succeeded(a, now)
	if a != nil && stage == PrefillStage {
		r.firstToken(k, a, now)
	}
}

// Overdue reports whether the request waits for its first token for longer than it
// should, and its worker is left out because it has given nothing to anybody.
func (r *Router) Overdue(requestID string, stage Stage) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	return a != nil && !a.answered && a.overdue(now) && r.leftOut(a.worker, now) != Eligible
}

// Renew tells that a worker may be well again: if it is left out for failures, it is
// tried at once.
func (r *Router) Renew(worker uint64) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[worker]; w != nil {
		w.breaker.Renew(now)
	}
}

// Health is what requests tell of a worker.
type Health struct {
	Worker uint64
	State  breaker.State
	Silent bool // left out for a request that waits, or as the router's own was not answered
	// Failed counts requests, LeftOut and Refused how often it was left out for
	// failures and for want of room, Spared how often it was not because too many
	// others were, Told how often another router's word made it half open.
	Failed, LeftOut, Refused, Spared, Told uint64
}

// Health returns what requests tell of each worker, sorted by id.
func (r *Router) Health() []Health {
	now := r.cfg.Now()
	var list []Health
	for _, w := range r.Workers() {
		r.mu.Lock()
		if st := r.workers[w.ID]; st != nil {
			h := &st.health
			list = append(list, Health{w.ID, h.breaker.State(now), h.silent || h.mute, h.failed, h.leftOut[0], h.leftOut[1], h.spared, h.told})
		}
		r.mu.Unlock()
	}
	return list
}
