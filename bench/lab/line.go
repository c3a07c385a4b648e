package lab

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/router/fairqueue"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// Queue holds requests at the router, as Dynamo 1.6.1's router queue does: while every
// worker has more prompt tokens to compute than Threshold times what a step takes, or others
// are held already. The zero value holds none.
type Queue struct {
	Order     Order
	Threshold float64
}

// Order is in which order requests that are held are placed.
type Order uint8

// The orders. Shortest goes by the tokens that the worker with the longest match would have
// to compute, as it was when the request came (weighted shortest processing time). Late is
// kvrouter's own queue: a request waits where route.ErrLater says so.
const (
	Unheld Order = iota
	FirstCome
	LastCome
	Shortest
	Late
)

// line is what one router holds.
type line struct {
	queue Queue
	held  heldRequests
	freed bool // a worker has less to compute since it was looked at
	found shard.Result
	late  *fairqueue.Queue // of Late
}

// held is a request that waits: the lowest key is placed first, of equal ones the first to come.
type held struct {
	key    float64
	serial int
	number int // the request's
}

type heldRequests []held

func (h heldRequests) Len() int { return len(h) }
func (h heldRequests) Less(i, j int) bool {
	return h[i].key < h[j].key || h[i].key == h[j].key && h[i].serial < h[j].serial
}
func (h heldRequests) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heldRequests) Push(v any)   { *h = append(*h, v.(held)) } //nolint:forcetypeassert // only held are pushed
func (h *heldRequests) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// lineUp places a request, or holds it.
func (s *sim) lineUp(n int) error {
	q := &s.requests[n]
	l := &s.lines[q.router]
	q.worker, q.prefill = -1, -1
	if l.queue.Order == Late {
		return s.lineUpLate(l, n)
	}
	if l.queue.Order == Unheld || len(l.held) == 0 && !s.allBusy(q.router) {
		return s.place(n)
	}
	key, err := s.keyOf(l, q)
	if err != nil {
		return err
	}
	heap.Push(&l.held, held{key: key, serial: q.serial, number: n})
	return nil
}

func (s *sim) keyOf(l *line, q *request) (float64, error) {
	at := float64(q.arrival) / float64(time.Second)
	switch l.queue.Order {
	case FirstCome:
		return at, nil
	case LastCome:
		return -at, nil
	}
	if err := s.feed.sync(s.now); err != nil {
		return 0, err
	}
	s.feed.space.Find(q.prompt, &l.found)
	longest := uint32(0)
	l.found.Each(func(_ shard.RankID, depth [event.NumTiers]uint32) { longest = max(longest, depth[event.Device]) })
	return float64(max(1, q.input-int(longest)*s.cfg.Engine.BlockSize)), nil
}

// release places what is held where a worker has become free of prompts.
func (s *sim) release() error {
	for i := range s.lines {
		l := &s.lines[i]
		if !l.freed {
			continue
		}
		l.freed = false
		if l.queue.Order == Late {
			if err := s.letOut(l); err != nil {
				return err
			}
			continue
		}
		for len(l.held) > 0 && !s.allBusy(i) {
			if err := s.place(heap.Pop(&l.held).(held).number); err != nil { //nolint:forcetypeassert // only held are pushed
				return err
			}
		}
	}
	return nil
}

// lineUpLate places a request, or lets it wait for a better moment.
func (s *sim) lineUpLate(l *line, n int) error {
	others := l.late.Len() > 0
	if !others {
		if err := s.place(n); !errors.Is(err, route.ErrLater) {
			return err
		}
	}
	l.freed = l.freed || others
	return s.waits(n)
}

// waits puts a request into its router's queue.
func (s *sim) waits(n int) error {
	q := &s.requests[n]
	r, p := s.routers[q.router], route.Prompt{Local: q.prompt, Length: q.input}
	if err := s.feed.sync(s.now); err != nil {
		return err
	}
	a, err := r.BestWorker(context.Background(), p, route.Options{Waited: s.now - q.arrival})
	if err != nil {
		return s.place(n) // it says so again
	}
	s.lines[q.router].late.Push(s.wall(), &fairqueue.Item{Weight: 1, Cost: 1, Key: fairqueue.Shortest(routerEpoch.Add(q.arrival), a.NewTokens), Value: n})
	return nil
}

// letOut lets those try that wait, in their order.
func (s *sim) letOut(l *line) error {
	for {
		i := l.late.Pop(s.wall())
		if i == nil {
			return nil
		}
		err := s.place(i.Value.(int)) //nolint:forcetypeassert // only numbers are pushed
		if errors.Is(err, route.ErrLater) {
			if !l.late.Pass(s.wall(), i) {
				return nil
			}
			continue
		}
		l.late.Done(i)
		l.late.Settle(s.wall())
		if err != nil {
			return fmt.Errorf("placing what waited: %w", err)
		}
	}
}

// wall is the time that routers see.
func (s *sim) wall() time.Time { return routerEpoch.Add(s.now) }

// allBusy reports whether every worker that computes prompts has more of them than the
// threshold, as the router knows it.
func (s *sim) allBusy(router int) bool {
	most := s.lines[router].queue.Threshold * float64(s.cfg.Engine.MaxBatched)
	loads := s.routers[router].Loads()
	for i := range loads {
		l := &loads[i]
		if computes := s.cfg.PrefillWorkers == 0 || int(l.Worker) >= s.cfg.Workers; computes && float64(l.PrefillTokens) <= most {
			return false
		}
	}
	return len(loads) > 0
}
