package mock

import (
	"container/heap"
	"time"
)

// Fleet steps engines in the order of virtual time. Ties go to the lower
// number. It is not safe for concurrent use.
type Fleet struct {
	engines []*Engine
	timing  func(engine int, r *Report) time.Duration
	queue   schedule
}

// schedule is a heap of the engines that have something to do.
type schedule struct {
	at    []time.Duration // of each engine: when its step under way, or its last one, ends
	heap  []int
	place []int // of each engine in heap, -1 if absent
}

// NewFleet makes a Fleet of idle engines, which it owns from then on. timing
// says how long a step of an engine takes.
func NewFleet(engines []*Engine, timing func(engine int, r *Report) time.Duration) *Fleet {
	f := &Fleet{engines: engines, timing: timing, queue: schedule{
		at: make([]time.Duration, len(engines)), place: make([]int, len(engines)),
	}}
	for i := range f.queue.place {
		f.queue.place[i] = -1
	}
	return f
}

// Admit passes a request to an engine at the virtual time now, which must not
// be before the start of the last step. Errors are those of Engine.Admit.
func (f *Fleet) Admit(now time.Duration, engine int, r *Request) error {
	if err := f.engines[engine].Admit(r); err != nil {
		return err
	}
	if q := &f.queue; q.place[engine] < 0 {
		q.at[engine] = max(q.at[engine], now)
		heap.Push(q, engine)
	}
	return nil
}

// Next returns when the next step starts; ok is false if all engines are idle.
func (f *Fleet) Next() (at time.Duration, ok bool) {
	if len(f.queue.heap) == 0 {
		return 0, false
	}
	return f.queue.at[f.queue.heap[0]], true
}

// Step runs the next step; there must be one. The events come at its start,
// the tokens in its report at its end. The report lives until the engine's
// next step.
func (f *Fleet) Step() (engine int, start, end time.Duration, r *Report) {
	q := &f.queue
	engine = q.heap[0]
	start = q.at[engine]
	r = f.engines[engine].Step()
	end = start + f.timing(engine, r)
	q.at[engine] = end
	if f.engines[engine].Idle() {
		heap.Pop(q)
	} else {
		heap.Fix(q, 0)
	}
	return engine, start, end, r
}

// Replace puts another engine in an engine's place, as a process that dies is started
// again, and returns what was lost with it: blocks that could be reused, and requests. A
// step under way is its last.
func (f *Fleet) Replace(engine int, by *Engine) (blocks int, lost []Request) {
	blocks, lost = f.engines[engine].Held(), f.engines[engine].unfinished()
	f.engines[engine] = by
	if at := f.queue.place[engine]; at >= 0 {
		heap.Remove(&f.queue, at)
	}
	return blocks, lost
}

func (s *schedule) Len() int { return len(s.heap) }
func (s *schedule) Less(i, j int) bool {
	a, b := s.heap[i], s.heap[j]
	return s.at[a] < s.at[b] || s.at[a] == s.at[b] && a < b
}
func (s *schedule) Swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.place[s.heap[i]], s.place[s.heap[j]] = i, j
}
func (s *schedule) Push(x any) {
	engine := x.(int)
	s.place[engine] = len(s.heap)
	s.heap = append(s.heap, engine)
}
func (s *schedule) Pop() any {
	engine := s.heap[len(s.heap)-1]
	s.heap = s.heap[:len(s.heap)-1]
	s.place[engine] = -1
	return engine
}
