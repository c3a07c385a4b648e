package registry

import "sync"

// Subscription is a bounded queue of events. Next is for one goroutine.
type Subscription struct {
	registry *Registry
	limit    int
	wake     chan struct{} // holds one token while there may be events

	mu struct {
		sync.Mutex
		queue  []Event
		resync bool // the queue overflowed
	}
}

// Subscribe returns a queue of at most limit events, from now on. When it is
// full everything in it is replaced by one Resync.
func (r *Registry) Subscribe(limit int) *Subscription {
	s := &Subscription{registry: r, limit: max(1, limit), wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.subs[s] = struct{}{}
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	delete(s.registry.mu.subs, s)
}

// Wait returns a channel that has a value when Next may have events.
func (s *Subscription) Wait() <-chan struct{} { return s.wake }

// Next takes the events that wait, oldest first. With a Resync it is the
// first.
func (s *Subscription) Next() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.mu.queue
	s.mu.queue = nil
	if s.mu.resync {
		s.mu.resync = false
		events = append([]Event{{Kind: Resync}}, events...)
	}
	return events
}

// put queues an event and never waits. It reports an overflow.
func (s *Subscription) put(e Event) (overflow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.queue) >= s.limit {
		s.mu.queue = nil
		overflow = !s.mu.resync
		s.mu.resync = true
	}
	s.mu.queue = append(s.mu.queue, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return overflow
}
