package query

import (
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Shards is the Index of a shard.Set.
type Shards struct{ Set *shard.Set }

// Spaces implements Index.
func (x Shards) Spaces() []event.Space { return x.Set.Spaces() }

// Space implements Index.
func (x Shards) Space(id event.Space) Space {
	if sp := x.Set.Lookup(id); sp != nil {
		return shardSpace{sp}
	}
	return nil
}

type shardSpace struct{ *shard.Space }

// Find implements Space.
func (s shardSpace) Find(local []uint64, f *Found) {
	f.result.EarlyExit, f.result.Tokens = f.early, f.tokens
	s.Space.Find(local, &f.result)
	if f.finds++; !f.result.Exact() {
		f.bounds++
	}
	f.result.EachMember(f.addRank)
	f.addPools(f.result.Pools())
}

// addRank adds one rank of a shard.Result.
func (f *Found) addRank(k shard.Member, depth [event.NumTiers]uint32) {
	f.Add(k.ID(), depth, uint64(k.Held()))
}
