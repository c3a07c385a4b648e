package route

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/shard"
)

// ErrNoDump is returned by DumpEvents of a Router without an index that can be
// dumped.
var ErrNoDump = errors.New("the router has no index to dump")

// dumper is an Index whose content can be had as events.
type dumper interface {
	Ranks() []shard.RankStat
	DumpRank(ctx context.Context, id shard.RankID) ([]shard.Dumped, error)
}

var _ dumper = (*shard.Space)(nil)

// DumpEvents calls f with the events that rebuild what each rank holds, ranks
// in order, until f returns false: of full attention, where there are more cache groups. Each rank's are of one moment; between two
// ranks the index goes on.
func (r *Router) DumpEvents(ctx context.Context, f func(id shard.RankID, d shard.Dumped) bool) error {
	index, ok := r.cfg.Index.(dumper)
	if r.cfg.Guesses != nil {
		index, ok = r.cfg.Guesses.(dumper)
	}
	if !ok {
		return ErrNoDump
	}
	for _, rank := range index.Ranks() {
		events, err := index.DumpRank(ctx, rank.RankID)
		if err != nil {
			return fmt.Errorf("dumping worker %d rank %d: %w", rank.Worker, rank.DPRank, err)
		}
		for _, d := range events {
			if d.Event.Group == 0 && !f(rank.RankID, d) {
				return nil
			}
		}
	}
	return nil
}
