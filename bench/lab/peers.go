package lab

import (
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
)

// compute has a request computed by its worker.
func (s *sim) compute(n int) error {
	q := &s.requests[n]
	return s.admit(n, q.worker, &mock.Request{ID: uint64(n), Input: q.input, Output: q.output, Local: q.local, Names: q.names, Fetched: q.fetched})
}

// fetches has a request's worker fetch what the source has of the prompt and it has not, if it is
// to: the request waits for that, and for the links of both.
func (s *sim) fetches(n int) bool {
	q := &s.requests[n]
	if q.fetched = 0; q.source < 0 || !s.workers[q.source].present {
		return false
	}
	from, to := s.workers[q.source], s.workers[q.worker]
	q.fetched = from.engine.Leading(q.prompt)
	tokens := (q.fetched - to.engine.Leading(q.prompt)) * s.cfg.Engine.BlockSize
	if tokens <= 0 {
		return false
	}
	q.fetch = max(s.now, from.link, to.link) + time.Duration(tokens)*s.cfg.PullToken
	from.link, to.link = q.fetch, q.fetch
	s.result.Pulls++
	s.result.Pulled += tokens
	s.agenda.add(s.now, q.fetch, blocksArrive, n)
	return true
}
