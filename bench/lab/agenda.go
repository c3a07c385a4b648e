package lab

import "time"

// kind orders what happens at the same time: an engine that has ended a step
// takes in what arrives at that moment before it starts the next.
type kind uint8

const (
	stepEnds kind = iota
	faultStrikes
	promptArrives // at a decode worker
	blocksArrive  // that a worker fetched for a request
	requestArrives
	turnComes // of a session, in a closed loop
	stepStarts
	settles     // what a router put off until it has heard of others' choices
	wordArrives // of what another router placed, where one may wait for it
)

// happening is one entry of the agenda.
type happening struct {
	at   time.Duration
	made time.Duration // when it was put down, or would have been; see leap
	seq  uint64        // breaks ties by the order of entry
	of   int           // worker, request or fault, as kind says
	leap uint32        // of the worker that it ends; 0 for none
	kind kind
}

func (a *happening) before(b *happening) bool {
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.kind != b.kind:
		return a.kind < b.kind
	case a.made != b.made:
		return a.made < b.made
	}
	return a.seq < b.seq
}

// agenda is a binary heap of what is to happen, first things first.
type agenda struct {
	heap []happening
	seq  uint64
}

// add puts down at a time what is to happen at another.
func (a *agenda) add(now, at time.Duration, k kind, of int) {
	a.push(happening{at: at, made: now, seq: a.seq, kind: k, of: of})
	a.seq++
}

func (a *agenda) push(h happening) {
	a.heap = append(a.heap, h)
	i := len(a.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !h.before(&a.heap[up]) {
			break
		}
		a.heap[i] = a.heap[up]
		i = up
	}
	a.heap[i] = h
}

func (a *agenda) next() (happening, bool) {
	if len(a.heap) == 0 {
		return happening{}, false
	}
	first := a.heap[0]
	last := a.heap[len(a.heap)-1]
	a.heap = a.heap[:len(a.heap)-1]
	if n := len(a.heap); n > 0 {
		i := 0
		for {
			kid := 2*i + 1
			if kid >= n {
				break
			}
			if kid+1 < n && a.heap[kid+1].before(&a.heap[kid]) {
				kid++
			}
			if !a.heap[kid].before(&last) {
				break
			}
			a.heap[i] = a.heap[kid]
			i = kid
		}
		a.heap[i] = last
	}
	return first, true
}
