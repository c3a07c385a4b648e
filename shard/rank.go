package shard

import (
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Rank is one rank's time in a space, from the first block stored for it until
// it is removed or replaced. Ranks are comparable; the zero value is none.
type Rank struct{ r *rank }

// ID returns which rank it is.
func (k Rank) ID() RankID { return k.r.id }

// Number returns a small number that no other present rank of the space has,
// for use as an index into a table. After the rank is removed or replaced
// another one may get it, so a table keeps the Rank too and compares.
func (k Rank) Number() int { return int(k.r.holder) }

// Held returns how many blocks the rank holds, over all tiers: a count that
// the owners publish after each batch.
func (k Rank) Held() int {
	var n int64
	for i := range k.r.held {
		n += k.r.held[i].Load()
	}
	return int(n)
}

// EachRank calls f once for every rank that is present, by rising number. It
// takes no lock.
func (s *Space) EachRank(f func(k Rank)) {
	slots := *s.table.slots.Load()
	for i := range slots {
		if r := slots[i].Load(); r != nil && !r.removed.Load() {
			f(Rank{r})
		}
	}
}

// EachRank is [Result.Each] with the Rank in place of its id.
func (r *Result) EachRank(f func(k Rank, depth [event.NumTiers]uint32)) {
	if r.space == nil {
		return
	}
	slots := *r.slots
	if !r.matches.Tiered() { // the common case, for less than EachHolder takes
		r.matches.Each(event.Device, func(h core.Holder, d uint32) {
			if k, ok := r.rankOf(slots, h); ok {
				f(k, [event.NumTiers]uint32{d, d, d, d})
			}
		})
		return
	}
	r.matches.EachHolder(func(h core.Holder, depth [event.NumTiers]uint32) {
		if k, ok := r.rankOf(slots, h); ok {
			f(k, depth)
		}
	})
}
