package route

import (
	"context"
	"errors"
)

// Pair is the workers of a request whose prompt is computed on one and whose
// output is generated on another.
type Pair struct {
	Prefill *Answer // nil: the Decode worker does all of it
	Decode  Answer
}

// BestPair chooses a prefill worker and a decode worker as one step, and books
// both if Options.RequestID is set. Where no prefill worker can take the
// request it goes to a decode worker as a whole. Stage is not looked at; a pin
// and lists of workers mean the decode worker.
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
	first := Options{
		RequestID: o.RequestID, Name: o.Name, Stage: PrefillStage, Explain: o.Explain, Watched: o.Watched,
		Weight: o.Weight, Temperature: o.Temperature, ExpectedOutput: o.ExpectedOutput, FirstToken: o.FirstToken, Token: o.Token, Waited: o.Waited,
		Patient: o.Patient, Settled: o.Settled, Pull: o.Pull, avoid: o.Excluded,
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
	o.Stage = DecodeStage
	decode, err := r.choose(ctx, s, o, now)
	if err != nil {
		if a := r.attempts[r.key(o.RequestID, PrefillStage)]; o.RequestID != "" && a != nil {
			a.followed = followed{} // nothing came of the choice
			r.free(r.key(o.RequestID, PrefillStage))
		}
		return Pair{}, err
	}
	if a := r.attempts[r.key(o.RequestID, DecodeStage)]; o.RequestID != "" && a != nil && a.allowed > 0 {
		a.allowed += prefill.Overdue // which is over before: it is not at fault for what the prefill worker takes
		decode.Overdue = a.allowed
	}
	return Pair{Prefill: &prefill, Decode: decode}, nil
}
