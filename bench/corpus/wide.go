package corpus

import "github.com/kvatlas/kvatlas/event"

// Wide is the corpus in which workers all store the same chain of length
// blocks, each in one event, and every request asks for all of it.
func Wide(length, workers int) *Corpus {
	x := uint64(88172645463325252)
	next := func() uint64 { // xorshift64, as the harness of the other indexes
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return x
	}
	engine, local := make([]uint64, length), make([]uint64, length)
	for i := range length {
		engine[i], local[i] = next(), next()
	}
	c := &Corpus{BlockSize: 16, Workers: uint64(workers), Trace: "wide"}
	for w := range workers {
		c.Events = append(c.Events, Event{
			Worker: uint64(w),
			Event:  event.Event{Kind: event.Stored, ID: 1, Engine: engine, Local: local},
		})
	}
	for range 64 {
		c.Requests = append(c.Requests, local)
	}
	c.Totals = c.count()
	return c
}
