package query

import (
	"context"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Index is what a Server answers from. Its methods are safe for concurrent
// use.
type Index interface {
	// Spaces returns the spaces, sorted. The caller must not change the slice.
	Spaces() []event.Space
	// Space returns the space, or nil if there is none.
	Space(event.Space) Space
}

// Space is one index space.
type Space interface {
	// Find adds every rank that holds the first block to f, in any order.
	Find(local []uint64, f *Found)
	// Eagle reports whether tokens are to be looked up as shard.Space.Eagle says.
	Eagle() bool
	// Hybrid reports whether depths may be upper bounds, as shard.Space.Hybrid says.
	Hybrid() bool
	// Unfold appends the local hashes of the longest chain that has the
	// sequence hashes seq, as far as the space knows one.
	Unfold(dst, seq []uint64) []uint64
	// Pools returns the pools that workers name, sorted by name.
	Pools() []shard.PoolStat
	// Ranks returns what every rank holds, sorted by worker and rank.
	Ranks() []shard.RankStat
	// BeginDump queues a copying of what the rank holds; begun returns when it is to be copied, and wait, which is to be called,
	// the copy. See shard.Space.
	BeginDump(ctx context.Context, id shard.RankID) (begun func(), wait func(context.Context) ([]shard.Dumped, error), err error)
}

// Found collects the ranks of one lookup. It is reused.
type Found struct {
	ranks  []rankDepth
	early  bool // stop once one rank is left; its depth is then a lower bound
	tokens int  // of the prompt; 0: not known
	finds  int  // of Shards
	bounds int  // of them those some of whose depths may be upper bounds
	pools  []shard.PoolDepth
	result shard.Result // scratch of Shards
}

// rankDepth is the depth of one rank, in blocks, cumulative over tiers.
type rankDepth struct {
	shard.RankID
	depth [event.NumTiers]uint32
	held  uint64 // blocks that the rank holds, over all tiers
}

// Add adds one rank with its depths in blocks, cumulative over tiers, and how
// many blocks it holds in all.
func (f *Found) Add(id shard.RankID, depth [event.NumTiers]uint32, held uint64) {
	f.ranks = append(f.ranks, rankDepth{id, depth, held})
}

// addPools adds what pools, by name, hold of the prompt: the deeper of two lookups.
func (f *Found) addPools(list []shard.PoolDepth) {
	for _, p := range list {
		i, there := slices.BinarySearchFunc(f.pools, p.Name, func(p shard.PoolDepth, name string) int { return strings.Compare(p.Name, name) })
		if !there {
			f.pools = slices.Insert(f.pools, i, p)
		} else {
			f.pools[i].Depth = max(f.pools[i].Depth, p.Depth)
		}
	}
}

// sort brings the ranks into the order of answers: by worker, then rank.
func (f *Found) sort() {
	slices.SortFunc(f.ranks, func(a, b rankDepth) int { return a.RankID.Compare(b.RankID) })
}

// merge makes one of a rank that two lookups found, with the greater depths.
func (f *Found) merge() {
	f.sort()
	list := f.ranks[:0]
	for _, r := range f.ranks {
		if n := len(list); n > 0 && list[n-1].RankID == r.RankID {
			for t, d := range r.depth {
				list[n-1].depth[t] = max(list[n-1].depth[t], d)
			}
			continue
		}
		list = append(list, r)
	}
	f.ranks = list
}
