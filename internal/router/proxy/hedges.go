package proxy

import (
	"sync"
	"time"
)

// hedges are the questions for tokens that wait for their first engine. One timer looks after all of
// them, and runs on when they have ended: one for each question would be the runtime's earliest nearly
// always, for which it wakes a thread each time where one is idle.
type hedges struct {
	mu      sync.Mutex
	waiting []*asking
	timer   *time.Timer // calls look; nil before it was needed
	at      time.Time   // when it does; zero: it does not
}

// add has x.late called, on a goroutine of its own, at that time, unless x is removed before.
func (h *hedges) add(x *asking, due time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.due, x.place = due, len(h.waiting)
	h.waiting = append(h.waiting, x)
	if h.at.IsZero() || due.Before(h.at) {
		h.set(due)
	}
}

// remove reports whether late is not called, and will not be.
func (h *hedges) remove(x *asking) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.place < 0 {
		return false
	}
	h.drop(x)
	return true
}

func (h *hedges) drop(x *asking) {
	n := len(h.waiting) - 1
	last := h.waiting[n]
	h.waiting[x.place], last.place = last, x.place
	h.waiting[n], x.place = nil, -1
	h.waiting = h.waiting[:n]
}

func (h *hedges) set(at time.Time) {
	h.at = at
	if d := time.Until(at); h.timer == nil {
		h.timer = time.AfterFunc(d, h.look)
	} else {
		h.timer.Reset(d)
	}
}

// look is the timer's.
func (h *hedges) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.at = time.Time{}
	var next time.Time
	for i := 0; i < len(h.waiting); {
		x := h.waiting[i]
		switch {
		case !x.due.After(now):
			h.drop(x) // another one takes its place
			x.other = make(chan tokenAnswer, 1)
			go x.late()
			continue
		case next.IsZero() || x.due.Before(next):
			next = x.due
		}
		i++
	}
	if !next.IsZero() {
		h.set(next)
	}
}
