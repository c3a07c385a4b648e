package shard

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// RankID names one holder of a space: a worker's data-parallel rank.
type RankID struct {
	Worker uint64
	DPRank uint32
}

// rank is the identity of a holder number, from the first block stored for a
// RankID until the rank is removed.
type rank struct {
	id     RankID
	holder core.Holder
	since  uint64 // the table's version that brought it

	// held is how many blocks each shard holds for the rank: NumTiers counts a
	// shard. The shard's owner publishes them after each batch.
	held []atomic.Int64
}

// table gives holder numbers to ranks. Numbers are dense and reused, so a
// reader must not credit a number to whoever has it later: it notes the
// version before its lookup and afterwards believes only ranks that are no
// younger. A number is given away again only after every shard has dropped the
// blocks of its last owner; so a rank that is no younger than the lookup owned
// all that the lookup saw under its number.
//
// Writers hold Space.mu. Readers take no lock.
type table struct {
	version atomic.Uint64
	slots   atomic.Pointer[[]atomic.Pointer[rank]] // by holder number; nil where free

	byWorker map[uint64]map[uint32]*rank
	free     []core.Holder
	next     core.Holder
	count    atomic.Int64
}

func newTable() *table {
	t := &table{byWorker: make(map[uint64]map[uint32]*rank)}
	t.slots.Store(&[]atomic.Pointer[rank]{})
	return t
}

// find returns the rank of id, or nil.
func (t *table) find(id RankID) *rank { return t.byWorker[id.Worker][id.DPRank] }

// add gives id, which has none, a number.
func (t *table) add(id RankID, shards int) *rank {
	r := &rank{id: id, since: t.version.Load() + 1, held: make([]atomic.Int64, shards*event.NumTiers)}
	if n := len(t.free); n > 0 {
		r.holder = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		r.holder = t.next
		t.next++
	}
	slots := *t.slots.Load()
	if int(r.holder) >= len(slots) {
		grown := make([]atomic.Pointer[rank], max(16, 2*len(slots)))
		for i := range slots {
			grown[i].Store(slots[i].Load())
		}
		t.slots.Store(&grown)
		slots = grown
	}
	// The slot before the version: a reader that notes the new version finds
	// the rank, one that noted the old version finds it too young.
	slots[r.holder].Store(r)
	t.version.Store(r.since)

	if t.byWorker[id.Worker] == nil {
		t.byWorker[id.Worker] = make(map[uint32]*rank)
	}
	t.byWorker[id.Worker][id.DPRank] = r
	t.count.Add(1)
	return r
}

// remove ends the identity at once. The number stays taken until release.
func (t *table) remove(r *rank) {
	(*t.slots.Load())[r.holder].Store(nil)
	ranks := t.byWorker[r.id.Worker]
	delete(ranks, r.id.DPRank)
	if len(ranks) == 0 {
		delete(t.byWorker, r.id.Worker)
	}
	t.count.Add(-1)
}

// release makes a removed rank's number free. No shard may hold a block of it.
func (t *table) release(r *rank) { t.free = append(t.free, r.holder) }

// RankStat is what one rank holds.
type RankStat struct {
	RankID
	// Held is how many blocks the rank holds on each tier: distinct engine
	// hashes with copies there.
	Held [event.NumTiers]int
}

// Ranks returns what every rank holds, sorted by worker and rank. It reads
// counts that the owners publish after each batch.
func (s *Space) Ranks() []RankStat {
	var stats []RankStat
	slots := *s.table.slots.Load()
	for i := range slots {
		r := slots[i].Load()
		if r == nil {
			continue
		}
		st := RankStat{RankID: r.id}
		for j := range r.held {
			st.Held[j%event.NumTiers] += int(r.held[j].Load())
		}
		stats = append(stats, st)
	}
	slices.SortFunc(stats, func(a, b RankStat) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.DPRank, b.DPRank))
	})
	return stats
}
