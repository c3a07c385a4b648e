package mock

import "slices"

// queue is a first-in first-out queue of sequences that preempted ones may
// enter at the front.
type queue struct {
	items []*sequence
	head  int // items before it are gone
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) front() *sequence { return q.items[q.head] }

func (q *queue) pushBack(s *sequence) {
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = slices.Delete(q.items, 0, q.head)
		q.head = 0
	}
	q.items = append(q.items, s)
}

func (q *queue) pushFront(s *sequence) {
	if q.head == 0 {
		q.items = slices.Insert(q.items, 0, s)
		return
	}
	q.head--
	q.items[q.head] = s
}

func (q *queue) popFront() *sequence {
	s := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	return s
}

// remove takes the sequence of the id out, or returns nil.
func (q *queue) remove(id uint64) *sequence {
	for i := q.head; i < len(q.items); i++ {
		if s := q.items[i]; s.id == id {
			q.items = slices.Delete(q.items, i, i+1)
			return s
		}
	}
	return nil
}
