package replica

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/shard"
)

// doubtful says of which ranks the index does not have what they hold, as far as is
// known; "" if there are none.
func (r *Replica) doubtful() string { return doubts(r.EachReading) }

func doubts(each func(f func(*Reading))) string {
	type rank struct {
		space event.Space
		id    shard.RankID
	}
	last := make(map[rank]Reading) // as it is read by now
	each(func(s *Reading) { last[rank{s.Space, s.RankID}] = *s })
	var texts []string
	ranks := slices.SortedFunc(maps.Values(last), func(a, b Reading) int {
		return cmp.Or(strings.Compare(a.Space.Model, b.Space.Model), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.DPRank, b.DPRank))
	})
	for _, kind := range []struct {
		is   func(*Reading) bool
		text string
	}{
		{func(s *Reading) bool { return s.State == follow.Contested }, "in conflict"},
		{func(s *Reading) bool { return s.Stale && s.State != follow.Contested }, "stale"},
	} {
		n, first := 0, (*Reading)(nil)
		for i := range ranks {
			if s := &ranks[i]; kind.is(s) {
				if n++; first == nil {
					first = s
				}
			}
		}
		if n > 0 {
			texts = append(texts, fmt.Sprintf("%d ranks are %s, worker %d, rank %d of model %q the first: %s",
				n, kind.text, first.Worker, first.DPRank, first.Space.Model, first.Why))
		}
	}
	return strings.Join(texts, "; ")
}

// contradictedWait bounds how long a request's answer waits for a partition that is busy.
const contradictedWait = 100 * time.Millisecond

// Contradicted says that a rank's engine finds other blocks than the index has of it: who publishes
// them is asked for all of them, where that is an ingest of this process and nothing of the rank is
// known to be missing.
func (r *Replica) Contradicted(sp event.Space, id shard.RankID) {
	in := r.ingest.Load()
	if in == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), contradictedWait)
	defer cancel()
	in.Contradicted(ctx, sp, id)
}

// Stale returns the ranks of which the index lacks events, as far as is known.
func (r *Replica) Stale() map[event.Space]map[shard.RankID]bool {
	if r.shares != nil {
		return r.shares.Stale()
	}
	stale := make(map[event.Space]map[shard.RankID]bool)
	r.EachReading(func(s *Reading) {
		switch {
		case !s.Stale: // as it is read by now
			delete(stale[s.Space], s.RankID)
			return
		case stale[s.Space] == nil:
			stale[s.Space] = make(map[shard.RankID]bool)
		}
		stale[s.Space][s.RankID] = true
	})
	return stale
}
