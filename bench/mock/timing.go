package mock

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// Timing is how long a step takes, in ms: a part for the n prompt tokens in it,
// PrefillBase + PrefillToken n + PrefillSquare n², and a part for its decodes,
// DecodeBase + DecodeToken c + DecodeSquare c² for the c tokens that they
// attend to; both add up, and so do LoadHost, LoadDisk and LoadShared for each block that is
// loaded from there, as the step waits for them. Where DecodeSquare is negative,
// more tokens than at the greatest value take as long as there.
type Timing struct {
	PrefillBase, PrefillToken, PrefillSquare float64
	DecodeBase, DecodeToken, DecodeSquare    float64
	LoadHost, LoadDisk, LoadShared           float64
}

// DefaultTiming is that of the replay simulator of Dynamo 1.6.1 with its
// default engine: its decode time is 5.74 + 54.01 p - 25.74 p² ms where p is the
// part in use of a cache of 16,384 blocks of 64 tokens.
func DefaultTiming() Timing {
	const cache = 16384 * 64
	return Timing{
		PrefillBase: 16.5, PrefillToken: 0.0152, PrefillSquare: 4.2e-7,
		DecodeBase: 5.74, DecodeToken: 54.01 / cache, DecodeSquare: -25.74 / cache / cache,
		// A block of 64 tokens of an 8B model, 0.13 MB each, at 40 and at 10 GB/s.
		LoadHost: 0.2, LoadDisk: 0.8, LoadShared: 0.4, // from others' memory, at 20 GB/s
	}
}

// Step returns how long the step takes.
func (t *Timing) Step(r *Report) time.Duration {
	ms := 0.0
	if n := float64(r.Prefill); n > 0 {
		ms += t.PrefillBase + t.PrefillToken*n + t.PrefillSquare*n*n
	}
	if r.Decode > 0 {
		c := float64(r.Context)
		if t.DecodeSquare < 0 {
			c = min(c, -t.DecodeToken/t.DecodeSquare/2)
		}
		ms += t.DecodeBase + t.DecodeToken*c + t.DecodeSquare*c*c
	}
	if r.Loaded != ([event.NumTiers]int{}) {
		ms += t.LoadHost*float64(r.Loaded[event.HostPinned]) + t.LoadDisk*float64(r.Loaded[event.Disk]) + t.LoadShared*float64(r.Loaded[event.External])
	}
	return time.Duration(ms * float64(time.Millisecond))
}
