package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fairqueue"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// told is a change that one router made, on its way to the others.
type told struct {
	at     time.Duration
	from   int
	change load.Change
}

// journal is a router's word to the others.
type journal struct {
	s    *sim
	from int
}

// Record implements route.Journal.
func (j journal) Record(c load.Change) {
	c.Request.Blocks = slices.Clone(c.Request.Blocks)
	at := j.s.now + j.s.cfg.SyncDelay
	j.s.told = append(j.s.told, told{at, j.from, c})
	if j.s.cfg.Queue.Order != Unheld {
		j.s.agenda.add(j.s.now, at, wordArrives, 0)
	}
}

// routerEpoch is the routers' time at virtual time 0.
var routerEpoch = time.Unix(1_700_000_000, 0)

func (s *sim) makeRouters() error {
	for i := range s.cfg.Routers {
		settings := s.cfg.Route
		settings.Seed += uint64(i)
		var policy route.Policy
		if s.cfg.policy != nil {
			policy = s.cfg.policy(s)
		}
		r, err := route.New(route.Config{
			BlockSize: s.cfg.Engine.BlockSize, Index: s.feed.space, Settings: settings, Policy: policy, ID: uint64(i + 1),
			Now:     func() time.Time { return routerEpoch.Add(s.now) },
			Doubted: func(id shard.RankID) { s.doubted = append(s.doubted, int(id.Worker)) },
		})
		if err != nil {
			return err //nolint:wrapcheck // it says what to do
		}
		if s.cfg.Routers > 1 {
			r.SetDelay(s.cfg.SyncDelay, s.cfg.SyncDelay)
			r.SetJournal(journal{s, i})
		}
		s.routers = append(s.routers, r)
		s.lines = append(s.lines, line{queue: s.cfg.Queue, late: fairqueue.New(fairqueue.Config{Limit: 1 << 30, Age: time.Hour, Tries: fairqueue.Tries})})
	}
	return nil
}

// register makes the worker known to every router.
func (s *sim) register(w int) error {
	role := route.Aggregated
	switch {
	case w >= s.cfg.Workers:
		role = route.Prefill
	case s.cfg.PrefillWorkers > 0:
		role = route.Decode
	}
	for _, r := range s.routers {
		err := r.SetWorker(route.Worker{
			ID: uint64(w), Ranks: 1, Role: role, Pooled: s.cfg.PoolBlocks > 0, Peer: s.cfg.Peers,
			TotalBlocks: s.cfg.Engine.Blocks, MaxBatchedTokens: s.cfg.Engine.MaxBatched,
		})
		if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return nil
}

// spread lets the routers hear what others told and has come by the time t.
func (s *sim) spread(t time.Duration) {
	n := 0
	for ; n < len(s.told) && s.told[n].at <= t; n++ {
		m := &s.told[n]
		s.now = m.at
		for i, r := range s.routers {
			if i != m.from {
				r.Apply(m.change)
				s.lines[i].freed = s.lines[i].freed || m.change.Kind != load.Sought
			}
		}
	}
	if n > 0 {
		s.told = slices.Delete(s.told, 0, n)
	}
}

// choose asks the request's router where to send it, and books it there.
func (s *sim) choose(q *request) error {
	if err := s.feed.sync(s.now); err != nil {
		return err
	}
	o := route.Options{RequestID: q.key, Pull: true, Patient: s.cfg.Queue.Order == Late, Waiting: s.lines[q.router].late.Len(), Waited: s.now - q.arrival}
	if s.cfg.TellOutput {
		o.ExpectedOutput = q.output
	}
	p := route.Prompt{Local: q.prompt, Length: q.input}
	r := s.routers[q.router]
	q.prefill, q.source = -1, -1
	if s.cfg.PrefillWorkers > 0 {
		pair, err := r.BestPair(context.Background(), p, o)
		if pair.Decode.Settle > 0 {
			return s.putOff(q, &pair.Decode)
		}
		if err != nil {
			return s.refused(q, err)
		}
		q.worker = int(pair.Decode.Worker)
		if pair.Prefill != nil {
			q.prefill = int(pair.Prefill.Worker)
		}
		return nil
	}
	if s.cfg.sessions { // else what o points to would be allocated for nothing
		if at, known := s.went[q.session]; known {
			o.Session = &at
		}
	}
	a, err := r.BestWorker(context.Background(), p, o)
	if a.Settle > 0 {
		return s.putOff(q, &a)
	}
	if err != nil {
		return s.refused(q, err)
	}
	if s.cfg.sessions && q.session != "" {
		s.went[q.session] = route.Session{Rank: a.RankID, Tokens: q.input}
	}
	q.worker = int(a.Worker)
	if a.Pull.Tokens > 0 {
		q.source = int(a.Pull.From.Worker)
	}
	return nil
}

// putOff has the request's router choose again when it has heard of what the others do.
func (s *sim) putOff(q *request, a *route.Answer) error {
	s.agenda.add(s.now, s.now+a.Settle, settles, q.number)
	return errSettles
}

// errSettles says that the request's router will choose when it has heard of what the others do.
var errSettles = errors.New("the routers settle it")

var errRefused = errors.New("the routers refused the request")

// refused tells a request that no worker may take from a fault of the run.
func (s *sim) refused(q *request, err error) error {
	if errors.Is(err, route.ErrLater) {
		return err
	}
	if errors.Is(err, route.ErrOverloaded) || errors.Is(err, route.ErrNoWorker) {
		return errRefused
	}
	return fmt.Errorf("lab: request %s: %w", q.key, err)
}
