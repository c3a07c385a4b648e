package route

import (
	"context"
	"errors"
	"slices"
	"time"
)

// IsApart reports whether a prefill worker must not be paired with another worker, as no prompt gets from one to the
// other. It is asked with the Router locked: it neither waits nor calls the Router.
type IsApart func(prefill, decode uint64) bool

// SetApart says which workers must not be paired from now on; nil: all may be, which costs nothing.
func (r *Router) SetApart(apart IsApart) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apart = apart
}

// takersOf returns the workers that may go on with the request, however little the prefill workers fit to them.
// The result is valid until the next call.
func (r *Router) takersOf(o *Options, now time.Time) []uint64 {
	part := *o
	part.Stage, part.Trial = DecodeStage, 0 // those on trial are taken where there are no others
	r.markWorkers(&part)
	r.takers = r.takers[:0]
	well := r.allWell(now)
	for _, m := range r.members {
		if n := len(r.takers); n > 0 && r.takers[n-1] == m.RankID.Worker {
			continue // a worker's ranks stand together, mostly
		}
		l := r.table.Load(m.slot)
		if r.eligible(m, &part, now, well) == Eligible && r.busy(m, &l, now) == Eligible {
			r.takers = append(r.takers, m.RankID.Worker)
		}
	}
	return r.takers
}

// mayPair reports whether the worker may be one of a pair with those that the other part may go to, or has gone to.
func (r *Router) mayPair(w *workerState, o *Options) bool {
	switch {
	case o.Stage == PrefillStage && o.takers != nil:
		return slices.ContainsFunc(o.takers, func(d uint64) bool { return !r.apart(w.ID, d) })
	case o.Stage == DecodeStage && o.from != nil:
		return !r.apart(*o.from, w.ID)
	}
	return true
}

// Pair is the workers of a request whose prompt is computed on one and whose
// output is generated on another.
type Pair struct {
	Prefill *Answer // nil: the Decode worker does all of it
	Decode  Answer
}

// BestPair chooses a prefill worker and a decode worker as one step, and books
// both if Options.RequestID is set. Where no prefill worker can take the
// request it goes to a decode worker as a whole, and in mode direct always. Stage is not
// looked at; a pin and lists of workers mean the decode worker. The error is as that of BestWorker.
//
// If the prefill fails later, Free the request and ask BestWorker for all of
// it.
func (r *Router) BestPair(ctx context.Context, p Prompt, o Options) (Pair, error) {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	o.Stage = Whole
	if err := r.prepare(ctx, s, &p, &o); err != nil {
		return Pair{}, err
	}
	pair, err := r.choosePair(ctx, s, &o)
	if err == nil && o.RequestID != "" {
		if pair.Prefill != nil {
			r.placed(pair.Prefill.RankID, s)
		}
		r.placed(pair.Decode.RankID, s)
	}
	if err == nil {
		r.write(ctx, s, &o, &pair.Decode, pair.Prefill)
		if s.trace.On() {
			r.tell(s, &pair.Decode, pair.Prefill)
		}
	}
	return pair, err
}

func (r *Router) choosePair(ctx context.Context, s *scratch, o *Options) (Pair, error) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	if _, named := r.policy.(direct); named {
		decode, err := r.choose(ctx, s, o, now)
		return Pair{Decode: decode}, err
	}
	first := Options{
		RequestID: o.RequestID, Name: o.Name, Stage: PrefillStage, Explain: o.Explain, Watched: o.Watched,
		Weight: o.Weight, Temperature: o.Temperature, ExpectedOutput: o.ExpectedOutput, MostOutput: o.MostOutput, FirstToken: o.FirstToken, Token: o.Token, Waited: o.Waited,
		Patient: o.Patient, Settled: o.Settled, Pull: o.Pull, avoid: o.Excluded,
	}
	if r.apart != nil {
		first.takers = r.takersOf(o, now)
	}
	before := r.stats
	prefill, err := r.choose(ctx, s, &first, now)
	var none *NoWorkerError
	if err != nil {
		if !errors.As(err, &none) {
			return Pair{Decode: prefill}, err // it may be put off
		}
		r.stats = before // the request is not refused yet
		decode, err := r.choose(ctx, s, o, now)
		if err == nil { // else it may be tried again
			r.stats.DecodeOnly++
		}
		return Pair{Decode: decode}, err
	}
	o.Stage, o.from = DecodeStage, &prefill.Worker
	decode, err := r.choose(ctx, s, o, now)
	if err != nil {
		if a := r.attempts[r.key(o.RequestID, PrefillStage)]; o.RequestID != "" && a != nil {
			if a.table != nil {
				r.cfg.Decisions.Unsample(len(r.members))
			}
			a.followed = followed{chosen: true} // of which nothing came
			r.free(r.key(o.RequestID, PrefillStage))
		}
		return Pair{}, err
	}
	if a := r.attempts[r.key(o.RequestID, DecodeStage)]; o.RequestID != "" && a != nil {
		a.trip.expected += ms(prefill.First)
		if a.allowed > 0 {
			a.allowed += prefill.Overdue // which is over before: it is not at fault for what the prefill worker takes
			decode.Overdue = a.allowed
		}
	}
	return Pair{Prefill: &prefill, Decode: decode}, nil
}
