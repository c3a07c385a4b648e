package core

import "github.com/kvatlas/kvatlas/event"

// Restorer rebuilds one holder from the events of [Index.Dump]: Add each in
// order, then Finish. The holder must be empty before.
type Restorer struct {
	Index  Index
	Holder Holder

	knownOnly [event.NumTiers][]uint64 // hashes to take the copy away from again
}

// Add applies one dumped event.
func (r *Restorer) Add(ev *event.Event, copies []uint32) Outcome {
	out := r.Index.Store(r.Holder, ev, false)
	for i, e := range ev.Engine[:min(len(ev.Engine), len(copies))] {
		if i+1 < len(ev.Engine) && ev.Engine[i+1] == e {
			continue // passes over a position without a hash
		}
		if copies[i] == 0 && ev.Tier < event.NumTiers {
			r.knownOnly[ev.Tier] = append(r.knownOnly[ev.Tier], e)
		}
		if copies[i] > 1 {
			out.Add(r.Index.StoreCopies(r.Holder, ev.Tier, e, copies[i]-1))
		}
	}
	return out
}

// Finish takes the copies of the hashes that are known but not held away; until
// then they hold the chain together.
func (r *Restorer) Finish() Outcome {
	var out Outcome
	for t, knownOnly := range r.knownOnly {
		if len(knownOnly) > 0 {
			ev := event.Event{Kind: event.Removed, Tier: event.Tier(t), Engine: knownOnly}
			out.Add(r.Index.Remove(r.Holder, &ev, false))
		}
		r.knownOnly[t] = nil
	}
	return out
}
