package shard

import (
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Result is the answer to one Find. The zero value is ready; a reused Result
// makes Find and Each allocate nothing. It is not safe for concurrent use.
type Result struct {
	space   *Space
	version uint64                    // of the space's table, before the lookup
	slots   *[]atomic.Pointer[member] // of the table, then
	matches core.Matches
	grouped groupedFind
	pooled  pooledFind

	// EarlyExit makes Find stop once a single rank is left: its depth is then
	// a lower bound. The caller sets it.
	EarlyExit bool
	// Tokens is how long the prompt is, which the caller may set: as its last token is
	// computed in any case, a model with cache groups may reuse less of a prompt that ends
	// with a block. 0: something follows its last block.
	Tokens int
}

// Find puts into r, for every rank and tier level, how many leading blocks of
// the prompt it holds, given the local hashes of the prompt's complete blocks
// from the first on. It takes no lock and touches one shard.
func (s *Space) Find(local []uint64, r *Result) {
	r.space, r.grouped.is = s, s.grouped.Load()
	for {
		swaps := s.table.swaps.Load()
		r.slots, r.version = s.table.slots.Load(), s.table.version.Load()
		r.pooled.is = s.table.pooled.Load() // after the version: see table.show
		// Who has most of full attention may reuse less, and who has nothing what a pool has.
		r.matches.EarlyExit = r.EarlyExit && !r.grouped.is && !r.pooled.is
		if len(local) == 0 {
			r.matches.Reset()
			r.grouped.found, r.grouped.estimated = r.grouped.found[:0], false
			r.pooled.named = r.pooled.named[:0]
			return
		}
		s.shards[s.shardOf(local[0])].index.Find(local, &r.matches)
		if r.grouped.is {
			s.regroup(local, r)
		}
		if r.pooled.is {
			s.extend(r)
		}
		if s.table.swaps.Load() == swaps {
			return
		}
	}
}

// Each calls f once, in no particular order, for every rank that holds the
// first block on any tier. Depths are in blocks and cumulative, also beside the
// owners: depth[t] counts the tiers up to and including t. Ranks removed since
// are left out.
func (r *Result) Each(f func(id RankID, depth [event.NumTiers]uint32)) {
	r.EachMember(func(m Member, depth [event.NumTiers]uint32) { f(m.ID(), depth) })
}

// memberOf returns who had the holder's number when the lookup began, unless
// that rank has been removed since.
func (r *Result) memberOf(slots []atomic.Pointer[member], h core.Holder) (Member, bool) {
	if int(h) >= len(slots) {
		return Member{}, false
	}
	rk := slots[h].Load()
	return Member{rk}, rk != nil && rk.since <= r.version && !rk.removed.Load()
}

// Sum returns how many ranks match at the tier level and the sum of their
// depths in blocks, as the lookup saw them: without looking whether a rank has
// been removed since, and with what is nobody's any more and not yet taken apart.
func (r *Result) Sum(t event.Tier) (ranks int, blocks uint64) { return r.matches.Sum(t) }
