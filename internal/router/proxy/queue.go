package proxy

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"
)

// The orders of a queue.
const (
	OrderFCFS     = "fcfs"     // first come, first served
	OrderShortest = "shortest" // shortest-weighted first: arrival plus what the prompt costs
)

// perToken is by how much a token of its prompt puts a request back in
// OrderShortest: what it costs to compute one, roughly. A request thus never
// waits for all shorter ones that come later.
const perToken = 100 * time.Microsecond

// errQueueFull says that a request cannot wait.
var errQueueFull = errors.New("the queue is full")

// queue holds requests while all workers are busy. One is woken whenever load
// goes away; it then tries again.
type queue struct {
	limit int // 0: nobody waits
	order string

	mu   sync.Mutex
	heap waiters
}

type waiter struct {
	key  time.Time
	wake chan struct{}
	at   int // in the heap; -1 when out of it
}

// busy reports whether somebody waits, so that a newcomer is not served first.
func (q *queue) busy() bool {
	if q.limit == 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap) > 0
}

func (q *queue) key(arrival time.Time, tokens int) time.Time {
	if q.order == OrderShortest {
		return arrival.Add(time.Duration(tokens) * perToken)
	}
	return arrival
}

// wait returns nil when the request of the key is to try again, at the latest
// after patience; errQueueFull at once if there is no room, or the error of ctx.
func (q *queue) wait(ctx context.Context, key time.Time, patience time.Duration) error {
	w := &waiter{key: key, wake: make(chan struct{})}
	q.mu.Lock()
	if len(q.heap) >= q.limit {
		q.mu.Unlock()
		return errQueueFull
	}
	heap.Push(&q.heap, w)
	q.mu.Unlock()
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
			return nil
		case <-tick.C: // load may have gone away that this router does not see go
			if q.leave(w, true) {
				return nil
			}
		case <-ctx.Done():
			if !q.leave(w, false) {
				q.wake() // it was this one's turn
			}
			return ctx.Err()
		}
	}
}

// leave takes w out of the queue, if asked for only as its first, and reports
// whether it did.
func (q *queue) leave(w *waiter, first bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.at < 0 || first && w.at > 0 {
		return false
	}
	heap.Remove(&q.heap, w.at)
	return true
}

// wake lets the first one try.
func (q *queue) wake() {
	if q.limit == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.heap) > 0 {
		close(heap.Pop(&q.heap).(*waiter).wake) //nolint:forcetypeassert // the heap holds nothing else
	}
}

// waiters is a heap by key.
type waiters []*waiter

func (h waiters) Len() int           { return len(h) }
func (h waiters) Less(i, j int) bool { return h[i].key.Before(h[j].key) }
func (h waiters) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }

// Push implements heap.Interface.
func (h *waiters) Push(x any) {
	w := x.(*waiter) //nolint:forcetypeassert // the heap holds nothing else
	w.at = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface.
func (h *waiters) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1], w.at = nil, -1
	*h = old[:len(old)-1]
	return w
}
