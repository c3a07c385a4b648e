package route

import "time"

// A whole answer may take longer than any prediction: that its worker gives nothing for long tells
// nothing. So a worker that gives nothing to anybody is asked a small request of the router's own,
// and when that is late as well, another one is. If that one answers in time the worker is mute: it gets
// nothing, and who waits there may go elsewhere, until it answers the router, which asks again whenever its breaker's time
// is over. A worker that answers the router only gets no others for it than may probe it.

// Asked is what became of the caller's own request to a worker.
type Asked uint8

// The outcomes.
const (
	AskUnclear  Asked = iota // nothing that tells: it was refused or failed, or others are as late
	AskAnswered              // as it should be
	AskSilent                // the worker gave nothing for as long as it was allowed, and another one did
)

// quiet is for how long a worker gives nothing before it is asked.
func (r *Router) quiet() time.Duration { return r.settings.OverdueAfter / 2 }

// Ask reports whether the worker at which the request waits is to be asked: it has given nothing to
// anybody for half of Settings.OverdueAfter, may get requests, and there is another one. Asked is to be told of it then. The question is booked
// with Options.Worker, Watched and Question, its Answer.Overdue is for how long it is waited for, and its booking's end says nothing.
func (r *Router) Ask(requestID string, stage Stage) (worker uint64, due bool) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	if a == nil || a.answered || r.quiet() <= 0 || now.Sub(a.since()) < r.quiet() || now.Sub(a.worker.trying.last) < r.quiet() || now.Before(a.worker.trying.until) {
		return 0, false
	}
	return a.worker.ID, r.ask(a.worker, now)
}

// AskAgain is Ask for a worker that was asked before.
func (r *Router) AskAgain(worker uint64) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[worker]
	return w != nil && w.mute && r.ask(w, now)
}

func (r *Router) ask(w *workerState, now time.Time) bool {
	if w.trying.live && w.trying.asks {
		return false
	}
	if !w.trying.live && w.Role != Prefill && w.absent() == Eligible {
		for _, other := range r.workers {
			if other != w && other.Role != Prefill && other.absent() == Eligible {
				w.trying.live, w.trying.asks, w.trying.last = true, true, now
				return true
			}
		}
	}
	w.mute = false // as nobody asks on
	return false
}

// Asked tells what became of asking a worker. It returns when to ask again (AskAgain), 0 if not before Ask says
// so. Where nothing was to be learnt of it, it is not asked for so long.
func (r *Router) Asked(worker uint64, what Asked, unclearFor time.Duration) (again time.Duration) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[worker]
	if w == nil || !w.trying.asks { // it is another one, that was not asked
		return 0
	}
	was := w.mute
	w.mute, w.trying.live, w.trying.asks, w.trying.vain = false, false, false, what == AskUnclear
	switch c := &r.settings.Breaker; {
	case what == AskAnswered && was:
		w.breaker.Renew(now)
	case what == AskAnswered && w.silent:
		w.spoke, w.silent, w.relented = now, false, w.relented || w.breaker.Closed()
		w.breaker.Doubt()
		r.wellUntil = time.Time{}
	case what == AskUnclear && unclearFor > 0:
		w.trying.until = now.Add(unclearFor)
	case what == AskSilent && !w.spoke.After(w.trying.last) && (w.silent || r.mayLeaveOut(w, true, false)):
		if !w.silent && w.breaker.Closed() {
			r.leavesOut(w)
		}
		w.breaker.Trip(c, now)
		w.mute, r.wellUntil = true, time.Time{}
		return max(w.breaker.Rest(now), time.Millisecond)
	}
	return 0
}

// unheard reports whether the worker gets nothing until it answers the router.
func (r *Router) unheard(w *workerState) bool {
	return (w.mute || w.trying.asks && !w.trying.vain && !w.breaker.Closed()) && r.mayLeaveOut(w, true, false)
}

// speaks notes that something came from the worker for who asks it.
func (h *health) speaks(now time.Time) {
	h.spoke, h.silent, h.mute = now, false, false
	if h.relented {
		h.relented = false
		h.breaker.Trust()
	}
}

// Mute reports whether the request waits for its first token at a worker that gives nothing to the router either, and is left
// out for that: others are enough without it.
func (r *Router) Mute(requestID string, stage Stage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attempts[r.key(requestID, stage)]
	return a != nil && !a.answered && a.worker.mute && r.unheard(a.worker)
}
