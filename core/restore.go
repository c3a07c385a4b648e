package core

import "github.com/kvatlas/kvatlas/event"

// Restorer rebuilds one holder from the events of [Index.Dump]: Add each in
// order, then Finish. The holder must be empty before.
type Restorer struct {
	Index  Index
	Holder Holder

	links [event.NumTiers][]uint64 // names to take the copy away from again
}

// Add applies one dumped event.
func (r *Restorer) Add(ev *event.Event, copies []uint32) Outcome {
	out := r.Index.Store(r.Holder, ev, false)
	one := event.Event{Kind: event.Stored, Tier: ev.Tier, Engine: make([]uint64, 1)}
	for i, e := range ev.Engine[:min(len(ev.Engine), len(copies))] {
		if i+1 < len(ev.Engine) && ev.Engine[i+1] == e {
			continue // passes over a place without a name
		}
		if copies[i] == 0 && ev.Tier < event.NumTiers {
			r.links[ev.Tier] = append(r.links[ev.Tier], e)
		}
		one.Engine[0] = e
		for c := uint32(1); c < copies[i]; c++ {
			out.Add(r.Index.Store(r.Holder, &one, true))
		}
	}
	return out
}

// Finish takes the copies of the names that are known but not held away; until
// then they hold the chain together.
func (r *Restorer) Finish() Outcome {
	var out Outcome
	for t, links := range r.links {
		if len(links) > 0 {
			ev := event.Event{Kind: event.Removed, Tier: event.Tier(t), Engine: links}
			out.Add(r.Index.Remove(r.Holder, &ev, false))
		}
		r.links[t] = nil
	}
	return out
}
