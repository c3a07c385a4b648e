package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fairqueue"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
)

// The orders of a tenant's requests in a queue.
const (
	OrderFCFS     = "fcfs"     // first come, first served
	OrderShortest = "shortest" // shortest-weighted first: arrival plus what the prompt costs that is not cached
)

// What `priority` of a body means in a queue.
const (
	PriorityLower  = "lower"  // lower goes first, as at vLLM
	PriorityHigher = "higher" // higher goes first, as at SGLang
	PriorityIgnore = "ignore"
)

const (
	// perPriority is how much later a request may come that goes first for one more
	// of priority, and maxPriority bounds that.
	perPriority = time.Second
	maxPriority = 100
	// maxObjective bounds the priority of an objective, which is added to others.
	maxObjective = 1 << 20
	// perRequest is what a request costs in a tenant's share beside its prompt, in
	// tokens: nobody knows yet what it will generate.
	perRequest = 256
)

// errQueueFull says that a request cannot wait.
var errQueueFull = errors.New("the queue is full")

// queue holds requests while all workers of their model are busy, or one will serve them
// better a little later (route.ErrLater). One is woken whenever load goes away; it then tries
// again, and after it the next ones if what is there does not suit it.
type queue struct {
	limit    int // of a model; 0: nobody waits
	order    string
	priority string
	age      time.Duration

	mu     sync.Mutex
	models map[*fleet.Model]*line
	lines  atomic.Int32 // how many models has: each request asks, and as a rule there are none
	others atomic.Bool  // whether another router has been heard of, at which some may wait
}

// line is a model's queue.
type line struct {
	*fairqueue.Queue
	woken time.Time   // when one was let out last
	room  *time.Timer // runs expect
}

// waiter is one request in a queue.
type waiter struct {
	fairqueue.Item
	model *fleet.Model
	turn  chan bool // whether it is to try; else it has lost its place
}

// busy reports whether somebody waits, so that a newcomer is not served first.
func (q *queue) busy(m *fleet.Model) bool {
	if q.lines.Load() == 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.models[m]
	return l != nil && l.Len() > 0
}

// key orders the request among those of its tenant.
func (q *queue) key(c *call, tokens int) time.Time {
	at := c.arrival
	if q.order == OrderShortest {
		at = fairqueue.Shortest(at, tokens)
	}
	first := time.Duration(min(max(c.priority, -maxPriority), maxPriority)) * perPriority
	switch q.priority {
	case PriorityLower:
		at = at.Add(first)
	case PriorityHigher:
		at = at.Add(-first)
	}
	return at
}

// enter puts the request into its model's queue.
func (q *queue) enter(c *call, tokens int) *waiter {
	w := &waiter{model: c.m, turn: make(chan bool, 1)}
	o := &c.options
	w.Item = fairqueue.Item{
		Tenant: c.payer.name, Weight: 1, Key: q.key(c, tokens), Cost: float64(perRequest + tokens),
		Only: only(o), Value: w,
	}
	if l := c.payer.limits; l != nil {
		w.Weight, w.Priority = l.Weight, l.Priority
	}
	if y := c.passage; y != nil && y.Priority != 0 {
		// A priority is all of a tenant's to the fairqueue: so those of an objective are one of its own.
		level := min(max(y.Priority, -maxObjective), maxObjective)
		w.Tenant, w.Priority = fmt.Sprintf("%s\x00%d", w.Tenant, level), w.Priority+level
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.models[c.m]
	if l == nil {
		l = &line{Queue: fairqueue.New(fairqueue.Config{Limit: q.limit, Age: q.age, Tries: fairqueue.Tries})}
		m := c.m // the call is another's, by then
		l.room = time.AfterFunc(0, func() { q.expect(m, l, false) })
		if q.models == nil {
			q.models = make(map[*fleet.Model]*line)
		}
		q.models[c.m] = l
		q.lines.Add(1)
	}
	if out := l.Push(time.Now(), &w.Item); out != nil {
		out.Value.(*waiter).turn <- false //nolint:forcetypeassert // the queue holds nothing else
	}
	return w
}

// only tells apart requests that may not use the same workers; "" is all of them.
func only(o *route.Options) string {
	if o.Worker == nil && o.Allowed == nil && len(o.Excluded) == 0 {
		return ""
	}
	var worker uint64
	if o.Worker != nil {
		worker = *o.Worker
	}
	return fmt.Sprint(o.Worker != nil, worker, o.Allowed, o.Excluded)
}

// wait returns nil when the request is to try again: then back or leave must be called.
// It returns errQueueFull if it has to go for others, or the error of ctx.
func (q *queue) wait(ctx context.Context, w *waiter, patience time.Duration) error {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case mine := <-w.turn:
			if !mine {
				return errQueueFull
			}
			return nil
		case <-tick.C: // load may have gone away that this router does not see go
			q.poll(w.model, patience)
		case <-ctx.Done():
			if !q.remove(w) && <-w.turn {
				q.leave(w) // it was this one's turn
			}
			return ctx.Err()
		}
	}
}

func (q *queue) remove(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.models[w.model]
	if l == nil || !l.Remove(&w.Item) {
		return false
	}
	q.forget(w.model, l)
	return true
}

// forget drops a queue that nobody is in. q.mu is held.
func (q *queue) forget(m *fleet.Model, l *line) {
	if l.Idle() {
		l.room.Stop()
		delete(q.models, m)
		q.lines.Add(-1)
	}
}

// back puts a request that has tried in vain back into its place.
func (q *queue) back(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, now := q.models[w.model], time.Now()
	l.Return(now, &w.Item)
	l.Settle(now)
}

// pass puts aside one that is better served a little later, or may use busy workers only, so
// that the next one tries.
func (q *queue) pass(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l, now := q.models[w.model], time.Now(); l.Pass(now, &w.Item) {
		l.next(now)
	}
}

// leave is for one that has tried: there may be room for the next one, too.
func (q *queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, now := q.models[w.model], time.Now()
	l.Done(&w.Item)
	l.Settle(now)
	l.next(now)
	q.forget(w.model, l)
}

// next lets the first one try.
func (l *line) next(now time.Time) {
	if i := l.Pop(now); i != nil {
		l.woken = now
		i.Value.(*waiter).turn <- true //nolint:forcetypeassert // the queue holds nothing else
	}
}

// changed does so where who was put aside may find room now.
func (l *line) changed(now time.Time) {
	l.Settle(now)
	l.next(now)
}

// poll does so unless one has been let out lately.
func (q *queue) poll(m *fleet.Model, patience time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l, now := q.models[m], time.Now(); l != nil && now.Sub(l.woken) >= patience {
		l.changed(now)
	}
}

// wake lets the first one of the model try, or with nil of each.
func (q *queue) wake(m *fleet.Model) {
	if q.lines.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if m == nil {
		for _, l := range q.models {
			l.changed(now)
		}
	} else if l := q.models[m]; l != nil {
		l.changed(now)
	}
}

// expect sets the line's timer to when the next prompt should be computed whose end nobody sees,
// which makes room for those who wait: of requests that began when nobody did. Those that begin
// later see to it themselves. When that is, due is set, the first tries.
func (q *queue) expect(m *fleet.Model, l *line, due bool) {
	at, ok := m.Router.NextUnseen()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.models[m] != l {
		return // nobody waits any more
	}
	if due {
		l.changed(time.Now())
	}
	if ok {
		l.room.Stop()
		l.room = time.AfterFunc(time.Until(at), func() { q.expect(m, l, true) })
	}
}

// Relieved lets those try that wait for a model of the router: another router's requests have
// left it room.
func (p *Proxy) Relieved(r *route.Router) {
	q := &p.queue
	q.others.Store(true)
	if q.lines.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for m, l := range q.models {
		if m.Router == r {
			l.changed(time.Now())
		}
	}
}

// waiting returns how many wait for the model.
func (q *queue) waiting(m *fleet.Model) int {
	if q.lines.Load() == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.models[m]; l != nil {
		return l.Len()
	}
	return 0
}

// waits reports whether a request is to try again later.
func waits(err error) bool {
	return errors.Is(err, route.ErrOverloaded) || errors.Is(err, route.ErrLater)
}

// chooseLast is for a request that may wait no more: it takes what is best now, if anything.
func (p *Proxy) chooseLast(ctx context.Context, q *call, why error) (route.Pair, error) {
	best, err := p.chooseNow(ctx, q, hasty)
	if errors.Is(err, route.ErrOverloaded) {
		err = fmt.Errorf("%w, %w", route.ErrOverloaded, why)
	}
	return best, err
}
