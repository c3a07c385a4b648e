package ingest

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// simGroups are the cache groups of the engines that have some.
var simGroups = []event.CacheGroup{
	{Number: 0, Kind: "full_attention", BlockSize: testSpace.BlockSize},
	{Number: 1, Kind: "sliding_window", BlockSize: testSpace.BlockSize, Span: testSpace.BlockSize + 2},
	{Number: 2, Kind: "mamba", BlockSize: testSpace.BlockSize},
}

// groupBlock is a block that a cache group besides full attention holds.
type groupBlock struct {
	group uint8
	tier  event.Tier
	name  uint64
}

// groupStep is an event of another cache group than full attention's.
func (e *engine) groupStep(n uint32) event.Event {
	c := e.ranks[n]
	ev := event.Event{Kind: event.Stored, DPRank: n, Group: uint8(1 + e.rng.IntN(2)), Tier: event.Tier(e.rng.IntN(2))}
	if len(c.grouped) > 0 && e.rng.IntN(3) == 0 {
		one := c.grouped[e.rng.IntN(len(c.grouped))]
		ev.Kind, ev.Group, ev.Tier = event.Removed, one.group, one.tier
		c.grouped = slices.DeleteFunc(c.grouped, func(b groupBlock) bool {
			goes := b == one || b.group == one.group && b.tier == one.tier && e.rng.IntN(4) == 0
			if goes {
				ev.Engine = append(ev.Engine, b.name)
			}
			return goes
		})
		return ev
	}
	for range 1 + e.rng.IntN(8) {
		b := groupBlock{ev.Group, ev.Tier, e.rng.Uint64()}
		if len(c.held) > 0 && e.rng.IntN(8) > 0 {
			b.name = c.held[e.rng.IntN(len(c.held))]
		}
		if !slices.Contains(c.grouped, b) {
			c.grouped, ev.Engine = append(c.grouped, b), append(ev.Engine, b.name)
		}
	}
	return ev
}

// groupAnswers is what the literal reference says of ranks with cache groups.
type groupAnswers map[shard.RankID]*groups.Oracle

func (a groupAnswers) apply(worker uint64, ev *event.Event) {
	id := shard.RankID{Worker: worker, DPRank: ev.DPRank}
	if a[id] == nil {
		a[id] = groups.NewOracle()
	}
	a[id].Apply(ev, false)
}

// check asks the space for prompts that ranks hold, and returns how many answers were exact
// and how many ranks could reuse something.
func (a groupAnswers) check(t *testing.T, sp *shard.Space, prompts [][]uint64) (exact, some int) {
	t.Helper()
	var found shard.Result
	for _, local := range prompts {
		found.Tokens = len(local)*int(testSpace.BlockSize) + 1
		if sp.Find(local, &found); !found.Exact() {
			continue
		}
		exact++
		found.Each(func(id shard.RankID, have [event.NumTiers]uint32) {
			if a[id] == nil {
				return
			}
			if want := a[id].Reusable(simGroups, int(testSpace.BlockSize), local, found.Tokens); have != want {
				t.Errorf("rank %v can reuse %v of %d blocks, the reference says %v", id, have, len(local), want)
			} else if want[event.External] > 0 {
				some++
			}
		})
	}
	return exact, some
}
