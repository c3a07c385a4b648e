package route

import (
	"context"
	"slices"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// RankLoad is what a rank's live requests occupy.
type RankLoad struct {
	shard.RankID
	load.Load
	Left Reason // why the rank takes no requests; Eligible if it does
	// Of the requests that are over, and whose engine said what it found cached: the
	// tokens of their prompts, and those of them that it found.
	Prompt, Found uint64
}

// Loads returns the load of every rank, in a fixed order.
func (r *Router) Loads() []RankLoad {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	loads := make([]RankLoad, 0, len(r.members))
	for _, m := range r.members {
		l := r.table.Load(m.slot)
		why := r.busy(m, &l, now)
		if absent := m.worker.absent(); absent != Eligible {
			why = absent
		} else if left := r.leftOut(m.worker, now); left != Eligible {
			why = left
		}
		loads = append(loads, RankLoad{m.RankID, l, why, m.prompt, m.found})
	}
	return loads
}

// PotentialLoads returns what every rank that may serve the request would
// carry with it, in a fixed order, busy ones too. Nothing is booked, and what
// is cached is looked up whatever the policy.
func (r *Router) PotentialLoads(ctx context.Context, p Prompt, o Options) ([]Candidate, error) {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	if err := r.prepare(ctx, s, &p, &o); err != nil {
		return nil, err
	}
	if !s.looked {
		r.find(ctx, s)
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	r.gather(s, &o, now, true)
	loads := slices.Clone(s.cands)
	for _, e := range s.left {
		if e.Left == BusyDecodeBlocks || e.Left == BusyPrefillTokens {
			loads = append(loads, e.Candidate)
		}
	}
	slices.SortFunc(loads, func(a, b Candidate) int { return int(a.slot) - int(b.slot) })
	return loads, nil
}
