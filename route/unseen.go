package route

import (
	"container/heap"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// unseen is when the prompts of requests should be computed whose first token nobody
// sees, as their answers come as a whole. Until then they count as prompts to compute,
// from then on as decoding.
type unseen []unseenEnd

type unseenEnd struct {
	key load.Key
	at  time.Time
}

func (u *unseen) add(k load.Key, at time.Time) { heap.Push(u, unseenEnd{k, at}) }

// until calls f for all that end by now, in order. They may be over.
func (u *unseen) until(now time.Time, f func(k load.Key, at time.Time)) {
	for len(*u) > 0 && !(*u)[0].at.After(now) {
		e := heap.Pop(u).(unseenEnd) //nolint:forcetypeassert // the heap holds nothing else
		f(e.key, e.at)
	}
}

// NextUnseen returns when the next prompt should be computed of those whose first token nobody
// sees; false if there is none.
func (r *Router) NextUnseen() (time.Time, bool) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	if len(r.unseen) == 0 {
		return time.Time{}, false
	}
	return r.unseen[0].at, true
}

func (u unseen) Len() int           { return len(u) }
func (u unseen) Less(i, j int) bool { return u[i].at.Before(u[j].at) }
func (u unseen) Swap(i, j int)      { u[i], u[j] = u[j], u[i] }

// Push implements heap.Interface.
func (u *unseen) Push(x any) { *u = append(*u, x.(unseenEnd)) } //nolint:forcetypeassert // the heap holds nothing else

// Pop implements heap.Interface.
func (u *unseen) Pop() any {
	old := *u
	e := old[len(old)-1]
	old[len(old)-1] = unseenEnd{}
	*u = old[:len(old)-1]
	return e
}
