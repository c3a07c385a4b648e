package lab

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/trace"
)

// readAll takes up to n requests from the source, or all if n is 0.
func readAll(source trace.Source, n int) (all []trace.Request, err error) {
	for n == 0 || len(all) < n {
		var r trace.Request
		if err := source.Next(&r); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("lab: %w", err)
		}
		all = append(all, r)
	}
	return all, nil
}

// listed is a source of requests that are in memory.
type listed struct {
	rest     []trace.Request
	idTokens int
}

// Next implements trace.Source.
func (l *listed) Next(r *trace.Request) error {
	if len(l.rest) == 0 {
		return io.EOF
	}
	*r, l.rest[0], l.rest = l.rest[0], trace.Request{}, l.rest[1:]
	return nil
}

// IDTokens implements trace.Source.
func (l *listed) IDTokens() int { return l.idTokens }

// Restart reads all of a source and gives its sessions other starts, drawn from the seed
// between the first and the last start that there was; within a session times stay as far
// apart. Which sessions meet is chance in a trace, so one start of it is one sample.
func Restart(source trace.Source, seed uint64) (trace.Source, error) {
	all, err := readAll(source, 0)
	if err != nil || len(all) == 0 {
		return source, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x737461727473))
	first, starts, span := all[0].Arrival, make(map[string]time.Duration), time.Duration(0)
	for i := range all {
		if name := all[i].Session; name != "" {
			if _, ok := starts[name]; !ok {
				starts[name], span = all[i].Arrival, all[i].Arrival-first
			}
		}
	}
	moved := make(map[string]time.Duration, len(starts))
	for i := range all {
		r := &all[i]
		if r.Session == "" {
			continue
		}
		by, ok := moved[r.Session]
		if !ok {
			by = first + time.Duration(rng.Int64N(int64(span)+1)) - starts[r.Session]
			moved[r.Session] = by
		}
		r.Arrival += by
	}
	slices.SortStableFunc(all, func(a, b trace.Request) int { return int(a.Arrival - b.Arrival) })
	return &listed{all, source.IDTokens()}, nil
}

// session is one whose next request waits for the last to end.
type session struct {
	later []trace.Request
	began time.Duration // below 0: not yet
}

// closeLoop reads the source and leaves the first request of each session to arrive by
// itself. Without a name a request is a session of its own.
func (s *sim) closeLoop() error {
	all, err := readAll(s.source, s.cfg.Requests)
	if err != nil {
		return err
	}
	s.cfg.Requests, s.sessions = 0, make(map[string]*session)
	firsts := &listed{idTokens: s.source.IDTokens()}
	for i := range all {
		r := all[i]
		if in := s.sessions[r.Session]; in != nil && r.Session != "" {
			in.later = append(in.later, r)
			continue
		}
		s.sessions[r.Session] = &session{began: -1}
		firsts.rest = append(firsts.rest, r)
	}
	delete(s.sessions, "")
	s.source = firsts
	return nil
}

// answered lets the session of a request that is over think, and then go on.
func (s *sim) answered(q *request) {
	in := s.sessions[q.session]
	switch {
	case in == nil:
	case len(in.later) > 0:
		// Of the request, not of the run, so that all policies are asked alike.
		rng := rand.New(rand.NewPCG(s.cfg.Seed, in.later[0].Serial))
		think := time.Duration(rng.ExpFloat64() * float64(s.cfg.Think))
		s.turns = append(s.turns, q.session)
		s.agenda.add(s.now, s.now+think, turnComes, len(s.turns)-1)
	default:
		s.result.session = append(s.result.session, (s.now - in.began).Seconds())
		delete(s.sessions, q.session)
	}
}

// turn sends the next request of a session.
func (s *sim) turn(name string) error {
	in := s.sessions[name]
	c := arrival{Request: in.later[0]}
	in.later = in.later[1:]
	s.hasher.hash(&c.hashes, &c.Request)
	return s.arrive(&c)
}
