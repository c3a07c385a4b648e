package route

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/load"
)

// seen is what a choice went by. It is put into words when the lock is released, which
// takes far longer than to choose: the call that chose has the candidates to itself.
type seen struct {
	weigh Weighing
	cands []Candidate
	left  []Explained
	table *table // of the decision; nil if it is not sampled
}

// table is a decision that is sampled, until its rows are written and its request is over,
// whichever comes first. The lock guards it.
type table struct {
	*account.Decision
	written, over, judged bool
	ended                 time.Time
}

// note keeps what a choice went by, and takes it from s. The lock is held.
func (r *Router) note(s *scratch, k load.Key, booked *attempt, sampled bool) {
	v := seen{weigh: r.weigh, cands: s.cands, left: s.left}
	v.weigh.Settings, v.weigh.Rand, v.weigh.holds, v.weigh.chance = &r.cfg.Settings, nil, nil, nil // what others write
	s.cands, s.left, r.weigh.parts = nil, nil, nil
	if sampled {
		v.table = &table{Decision: r.decision(k, booked)}
		v.table.Rows = len(v.cands) + len(v.left)
		booked.table = v.table
	}
	s.seen = append(s.seen, v)
}

// write puts what choices went by into words, for whoever asked. The lock is not held.
func (r *Router) write(ctx context.Context, s *scratch, o *Options, best, prefill *Answer) {
	for i := range s.seen {
		v, chosen := &s.seen[i], best
		if v.weigh.Stage == PrefillStage && prefill != nil {
			chosen = prefill
		}
		ranks := make([]Explained, 0, len(v.cands)+len(v.left))
		for j := range v.cands {
			c := &v.cands[j]
			ranks = append(ranks, Explained{Candidate: *c, Formula: r.policy.Formula(&v.weigh, c)})
		}
		ranks = append(ranks, v.left...)
		if o.Explain {
			chosen.Ranks = ranks
		}
		if v.table != nil {
			r.keep(v.table, rows(ranks, chosen))
		}
		r.log(ctx, o, chosen, ranks)
	}
	clear(s.seen) // it keeps nothing alive
	s.seen = s.seen[:0]
}

// keep gives a decision its rows, and to Config.Decisions if it is over.
func (r *Router) keep(t *table, ranks []account.Row) {
	r.mu.Lock()
	t.Ranks, t.written = ranks, true
	over := t.over
	r.mu.Unlock()
	if over {
		r.cfg.Decisions.Add(t.ended, t.Decision, true, t.judged)
	}
}

func rows(ranks []Explained, chosen *Answer) []account.Row {
	list := make([]account.Row, 0, len(ranks))
	for i := range ranks {
		e := &ranks[i]
		row := account.Row{
			Worker: e.Worker, DPRank: e.DPRank, Chosen: e.RankID == chosen.RankID, Cost: account.Cost(e.Cost), Formula: e.Formula, Stale: e.Stale, Unknown: e.Unknown,
			Cached: e.Cached, CachedTokens: e.CachedTokens, NewTokens: e.NewTokens, PrefillTokens: e.PrefillTokens,
			NewBlocks: e.NewBlocks, DecodeBlocks: e.DecodeBlocks, Requests: e.Requests, Prefilling: e.Prefilling,
		}
		if e.Left != Eligible {
			row.Left, row.Cost = e.Left.String(), account.NoCost()
		}
		list = append(list, row)
	}
	return list
}

func (r *Router) log(ctx context.Context, o *Options, a *Answer, ranks []Explained) {
	if r.cfg.Log == nil || !r.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, e := range ranks {
		r.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "rank weighed",
			slog.String("request", o.RequestID), slog.Uint64("worker", e.Worker), slog.Uint64("dp_rank", uint64(e.DPRank)),
			slog.String("cost", e.Formula), slog.String("left_out", e.Left.String()),
			slog.Uint64("cached_blocks", uint64(e.Cached[event.External])), slog.Bool("chosen", e.RankID == a.RankID))
	}
}
