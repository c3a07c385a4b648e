package route

import (
	"math"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/load"
)

// Of a large fleet most ranks cannot be the best one of mode auto, as little of the prompt is cached there and others
// compute there. To make candidates of them costs more than all else of a choice. So the rank that has most of the
// prompt is weighed first, and of those that cost more, whatever else is found of them, none is made.

// fewestPassed is how many ranks there are at least for some to be passed over.
const fewestPassed = 32

// passed is what the policy still needs of ranks that it does not see.
type passed struct {
	least float64 // ms that the rank costs that has most of the prompt: who costs more is passed over
	best  speed   // no rank is faster
	ranks int     // how many were
	idle  bool    // one of them has no prompt to compute
}

// passing returns the rank that has most of the prompt, and whether others may be passed over: not where all are to be
// explained, or compared by more than their costs, or looked at one by one, nor where what a rank has is not what counts.
func (r *Router) passing(s *scratch, o *Options, look, track bool) (most *member, passes bool) {
	w := &r.weigh
	w.passed = passed{}
	if look || !s.looked || s.unknown != nil || w.estimated || w.Temperature != 0 || o.Stage == DecodeStage || o.Session != nil || len(r.members) < fewestPassed ||
		r.policy != Policy(r.times) || len(r.others) > 0 || r.peers > 1 || r.settings.TierCredits[event.Device] != 1 || r.times.aiming(w) {
		return nil, false
	}
	deepest := uint32(0)
	for _, m := range r.members {
		if d := r.depth[m.slot][event.Device]; d > deepest {
			most, deepest = m, d
		}
	}
	if most == nil || !r.plain(most) || most.worker.absent() != Eligible || (most.worker.Role == Prefill) != (o.Stage == PrefillStage) {
		return nil, false
	}
	var c Candidate
	var e estimate
	l := r.table.Load(most.slot)
	r.fill(&c, s, most, &l, o.Stage, track, w.Now)
	r.times.estimate(&e, w, &c, w.heldBy(&c))
	w.passed.least, w.passed.best = e.cost(), r.times.speeds.best()
	return most, !math.IsNaN(w.passed.least)
}

// plain reports whether what the index has of the rank is on the device: no more of it counts than that. Of a stale one
// it is to be told what it had.
func (r *Router) plain(m *member) bool {
	d := &r.depth[m.slot]
	return d[event.Device] == d[event.External] && !m.stale && !m.worker.Pooled
}

// passed reports whether the rank costs more than the one that has most of the prompt, whatever else is found of it.
func (r *Router) passed(s *scratch, m *member, l *load.Load) bool {
	if !r.plain(m) {
		return false
	}
	behind := l.PrefillTokens + s.tokens - min(int(r.depth[m.slot][event.Device])*r.cfg.BlockSize, s.tokens)
	head, _ := r.table.Turn(m.slot)
	w := &r.weigh // how fast this rank is need mostly not be looked up
	if least(w, &w.passed.best, l.Requests, l.PromptTokens, behind-head) <= w.passed.least {
		v := r.times.speeds.of(m.slot, rankKey{m.Worker, m.DPRank})
		if least(w, &v, l.Requests, l.PromptTokens, behind-head) <= w.passed.least {
			return false
		}
	}
	w.passed.ranks++
	w.passed.idle = w.passed.idle || l.Prefilling == 0
	return true
}
