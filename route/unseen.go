package route

import (
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// unseen is when the prompts of requests should be computed whose first token nobody
// sees, as their answers come as a whole. Until then they count as prompts to compute,
// from then on as decoding.
// Requests that are over stay until then: what is due is due only if their attempt says so.
// It is a heap: none is before the one at half its place.
type unseen []unseenEnd

type unseenEnd struct {
	key load.Key
	at  time.Time
}

func (u *unseen) add(k load.Key, at time.Time) {
	*u = append(*u, unseenEnd{k, at})
	for h, i := *u, len(*u)-1; i > 0; { // package heap would allocate each
		above := (i - 1) / 2
		if !h[i].at.Before(h[above].at) {
			return
		}
		h[i], h[above] = h[above], h[i]
		i = above
	}
}

// until calls f for all that end by now, in order.
func (u *unseen) until(now time.Time, f func(k load.Key, at time.Time)) {
	for len(*u) > 0 && !(*u)[0].at.After(now) {
		e := u.pop()
		f(e.key, e.at)
	}
}

// pop takes the first one out.
func (u *unseen) pop() unseenEnd {
	h, last := *u, len(*u)-1
	first := h[0]
	h[0], h[last] = h[last], unseenEnd{}
	h = h[:last]
	*u = h
	for i := 0; ; {
		next := i
		for below := 2*i + 1; below <= 2*i+2 && below < len(h); below++ {
			if h[below].at.Before(h[next].at) {
				next = below
			}
		}
		if next == i {
			return first
		}
		h[i], h[next] = h[next], h[i]
		i = next
	}
}

// NextUnseen returns when the next prompt should be computed of those whose first token nobody
// sees; false if there is none.
func (r *Router) NextUnseen() (time.Time, bool) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	for ; len(r.unseen) > 0; r.unseen.pop() {
		if e := &r.unseen[0]; r.awaits(e.key, e.at) {
			return e.at, true
		}
	}
	return time.Time{}, false
}

// awaitUnseen notes when the first token of a request that is booked should be out.
func (r *Router) awaitUnseen(k load.Key, a *attempt, at time.Time) {
	a.due = at
	r.unseen.add(k, at)
}

// awaits reports whether that is still so: the request may be over, and tried again at another worker.
func (r *Router) awaits(k load.Key, at time.Time) bool {
	a := r.attempts[k]
	return a != nil && a.due.Equal(at)
}
