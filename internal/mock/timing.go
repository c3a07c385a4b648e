package mock

import "time"

// Timing is how long a step takes, in ms: a part for the n prompt tokens in it,
// PrefillBase + PrefillToken n + PrefillSquare n², and a part for its decodes,
// DecodeBase + DecodeToken × the tokens that they attend to; both add up.
type Timing struct {
	PrefillBase, PrefillToken, PrefillSquare float64
	DecodeBase, DecodeToken                  float64
}

// DefaultTiming is fitted to single-request runs of the replay simulator of
// Dynamo 1.6.1 with its default engine.
func DefaultTiming() Timing {
	return Timing{PrefillBase: 16.5, PrefillToken: 0.0152, PrefillSquare: 4.2e-7, DecodeBase: 5.75, DecodeToken: 4.9e-5}
}

// Step returns how long the step takes.
func (t Timing) Step(r *Report) time.Duration {
	ms := 0.0
	if n := float64(r.Prefill); n > 0 {
		ms += t.PrefillBase + t.PrefillToken*n + t.PrefillSquare*n*n
	}
	if r.Decode > 0 {
		ms += t.DecodeBase + t.DecodeToken*float64(r.Context)
	}
	return time.Duration(ms * float64(time.Millisecond))
}
