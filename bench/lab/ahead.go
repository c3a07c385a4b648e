package lab

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// ahead reads a source and hashes its requests before they arrive, on another thread: neither
// depends on what happens in the run. Its goroutine ends with the source, or by stop.
type ahead struct {
	full, empty chan []arrival
	quit        chan struct{}
	reader      sync.WaitGroup
	batch       []arrival // what was received last, and how many of it are taken
	taken       int
}

// arrival is a request of the source.
type arrival struct {
	trace.Request
	hashes
	err error // in place of a request: the last one of the source
}

const (
	aheadBatch   = 64 // requests that change threads together
	aheadBatches = 4
)

// readAhead begins to read the source, up to so many requests, or all if that is 0.
func readAhead(source trace.Source, engine mock.Config, requests int) *ahead {
	a := &ahead{full: make(chan []arrival, aheadBatches), empty: make(chan []arrival, aheadBatches), quit: make(chan struct{})}
	for range aheadBatches {
		a.empty <- make([]arrival, aheadBatch)
	}
	a.reader.Go(func() { a.read(source, &engine, requests) })
	return a
}

func (a *ahead) read(source trace.Source, engine *mock.Config, requests int) {
	defer close(a.full)
	hasher := newHasher(source.IDTokens(), engine)
	for more, n := true, 0; more; {
		var batch []arrival
		select {
		case batch = <-a.empty:
		case <-a.quit:
			return
		}
		batch = batch[:0]
		for more && len(batch) < aheadBatch {
			if more = requests == 0 || n < requests; !more {
				break
			}
			batch = batch[:len(batch)+1]
			r := &batch[len(batch)-1]
			if r.err = source.Next(&r.Request); r.err != nil {
				more = false
				break
			}
			hasher.hash(&r.hashes, &r.Request)
			n++
		}
		a.full <- batch // there is room for all
	}
}

// next returns the request after the last one, nil after all of them. It lives until the next call.
func (a *ahead) next() *arrival {
	if a.taken == len(a.batch) {
		if a.batch != nil {
			a.empty <- a.batch
		}
		a.batch, a.taken = <-a.full, 0
		if len(a.batch) == 0 {
			return nil
		}
	}
	a.taken++
	return &a.batch[a.taken-1]
}

// stop ends the reading, and waits for that.
func (a *ahead) stop() {
	close(a.quit)
	a.reader.Wait()
}

// readNext looks at the request after the one that has arrived.
func (s *sim) readNext() error {
	c := s.ahead.next()
	if c == nil || errors.Is(c.err, io.EOF) {
		return nil
	}
	if c.err != nil {
		return fmt.Errorf("lab: %w", c.err)
	}
	s.coming = c
	s.agenda.add(s.now, max(s.now, time.Duration(float64(c.Arrival)/s.cfg.SpeedUp)), requestArrives, 0)
	return nil
}

// arrive takes a request in, and its hashes: it gives others' memory for them.
func (s *sim) arrive(c *arrival) error {
	var n int
	if k := len(s.spare); k > 0 {
		n, s.spare = s.spare[k-1], s.spare[:k-1]
	} else {
		n = len(s.requests)
		s.requests = append(s.requests, request{})
	}
	q := &s.requests[n]
	if in := s.sessions[c.Session]; in != nil && in.began < 0 {
		in.began = s.now
	}
	q.hashes, c.hashes = c.hashes, q.hashes
	*q = request{
		key: strconv.Itoa(s.serial), session: c.Session, serial: s.serial, number: n, arrival: s.now, present: true, stage: stage{since: s.now},
		input: c.Input, output: c.Output,
		hashes: q.hashes, prompt: q.local[:q.blocks],
		router: s.serial % s.cfg.Routers,
	}
	s.serial++
	return s.lineUp(n)
}
