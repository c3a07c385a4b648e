package shard

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// RankID names one holder of a space: a worker's data-parallel rank.
type RankID struct {
	Worker uint64
	DPRank uint32
}

// Compare orders ranks by worker, then rank, as cmp.Compare does.
func (id RankID) Compare(o RankID) int {
	if id.Worker != o.Worker { // lookups sort: no cmp.Or, which makes a list first
		return cmp.Compare(id.Worker, o.Worker)
	}
	return cmp.Compare(id.DPRank, o.DPRank)
}

// Pool reports whether it is a pool and no worker's rank; see [Space.SetPools].
func (id RankID) Pool() bool { return id.DPRank == event.PoolRank }

// member is the identity of a holder number, from the first block stored for a
// RankID until the rank is removed.
type member struct {
	id     RankID
	holder core.Holder
	since  uint64 // the table's version that brought it
	// removed says that lookups are to stop crediting it, in every slots array.
	removed atomic.Bool
	// replaced says that another one is shown in its place.
	replaced atomic.Bool
	// heldAll is the sum of held, which a choice asks of every rank.
	heldAll atomic.Int64

	// held is how many blocks each shard holds for the rank: NumTiers counts a
	// shard. The shard's owner publishes them after each batch.
	held []atomic.Int64
	// inferred is how many of them are inferred, by shard.
	inferred []atomic.Int64
	// lost is how many blocks its events have taken from it, by shard, and lostAt when
	// the last batch that did was published. The shard's owner writes them.
	lost   []atomic.Uint64
	lostAt []atomic.Int64

	// reached says which shards have, or had, blocks of it: no other one has a part
	// in its events. Space.mu guards it. It stands behind what every choice reads of
	// every rank, which is one line of the cache.
	reached []bool
	// groups is set once the rank is known to have cache groups.
	groups atomic.Pointer[grouped]
	// pools are those that its worker names; nil: none.
	pools atomic.Pointer[workerPools]
	// loaded says that it comes from a snapshot, which does not tell what its groups hold, or
	// when what a pool has was said.
	// Space.mu guards it.
	loaded bool
}

// reachAll notes that any shard may have blocks of the rank.
func (m *member) reachAll() {
	for i := range m.reached {
		m.reached[i] = true
	}
}

// table gives holder numbers to ranks. Numbers are dense and reused, so a
// reader must not credit a number to whoever has it later: it notes the
// version before its lookup and afterwards believes only ranks that are no
// younger. A number is given away again only after every shard has dropped the
// blocks of its last owner; so a rank that is no younger than the lookup owned
// all that the lookup saw under its number.
//
// A replacement gives a rank another number and the table another slots array,
// in which the old number is free: a reader believes the array that it noted
// before its lookup. The old number's blocks go only after swaps has moved, so
// a reader that finds swaps unmoved after its lookup has seen all of the state
// that its array stands for; otherwise it looks again.
//
// Writers hold Space.mu. Readers take no lock.
type table struct {
	version atomic.Uint64
	swaps   atomic.Uint64
	slots   atomic.Pointer[[]atomic.Pointer[member]] // by holder number; nil where free

	byWorker  map[uint64]map[uint32]*member
	pools     map[uint64]*workerPools // by worker that names some
	byPool    map[RankID]*namedPool
	unpooled  map[uint64]struct{}          // workers that are known to name none
	leaving   map[uint64]time.Time         // workers of pools whose registration is gone, until they are removed: since when, as far as AgePools has looked
	unnamed   map[RankID]time.Time         // pools that no worker names: when that was first seen
	ages      map[RankID]*poolAge          // of pools that age
	named     atomic.Pointer[[]*namedPool] // by name, for lookups; does not change
	pooled    atomic.Bool                  // some worker has named a pool, or a snapshot had one
	replacing map[RankID]*Replacement
	free      []core.Holder
	next      core.Holder
	count     atomic.Int64
}

func newTable() *table {
	t := &table{
		byWorker: make(map[uint64]map[uint32]*member), replacing: make(map[RankID]*Replacement),
		pools: make(map[uint64]*workerPools), unpooled: make(map[uint64]struct{}), leaving: make(map[uint64]time.Time),
		byPool: make(map[RankID]*namedPool), unnamed: make(map[RankID]time.Time), ages: make(map[RankID]*poolAge),
	}
	t.named.Store(&[]*namedPool{})
	t.slots.Store(&[]atomic.Pointer[member]{})
	return t
}

// find returns the rank of id, or nil.
func (t *table) find(id RankID) *member { return t.byWorker[id.Worker][id.DPRank] }

// add gives id, which has none, a number.
func (t *table) add(id RankID, shards int) *member {
	m := t.hidden(id, shards)
	t.show(m)
	return m
}

// swap puts the hidden rank in the place of the one with the same id, which it
// returns: nil if there is none.
func (t *table) swap(m *member) *member {
	old := t.find(m.id)
	if old == nil {
		t.show(m)
		return nil
	}
	slots := grow(*t.slots.Load(), int(m.holder))
	slots[old.holder].Store(nil)
	m.since = old.since // to a reader it is the same rank
	slots[m.holder].Store(m)
	t.slots.Store(&slots)
	old.replaced.Store(true)
	t.byWorker[m.id.Worker][m.id.DPRank] = m
	if m.id.Pool() {
		t.isPool(m.id, m)
	}
	t.swaps.Add(1)
	return old
}

// grow returns a copy of the slots with room for number n.
func grow(slots []atomic.Pointer[member], n int) []atomic.Pointer[member] {
	size := len(slots)
	if n >= size {
		size = max(16, 2*size)
	}
	grown := make([]atomic.Pointer[member], size)
	for i := range slots {
		grown[i].Store(slots[i].Load())
	}
	return grown
}

// hidden gives id a number that no reader finds yet.
func (t *table) hidden(id RankID, shards int) *member {
	m := &member{
		id: id, reached: make([]bool, shards), held: make([]atomic.Int64, shards*event.NumTiers), inferred: make([]atomic.Int64, shards),
		lost: make([]atomic.Uint64, shards), lostAt: make([]atomic.Int64, shards),
	}
	if w := t.pools[id.Worker]; w != nil && !id.Pool() {
		m.pools.Store(w)
	}
	if n := len(t.free); n > 0 {
		m.holder = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		m.holder = t.next
		t.next++
	}
	return m
}

// show lets readers find the rank.
func (t *table) show(m *member) {
	m.since = t.version.Load() + 1
	slots := *t.slots.Load()
	if int(m.holder) >= len(slots) {
		slots = grow(slots, int(m.holder))
		t.slots.Store(&slots)
	}
	// The slot before the version: a reader that notes the new version finds
	// the rank, one that noted the old version finds it too young. And that there are pools
	// before the version, so that a pool is never taken for a rank.
	if m.id.Pool() {
		t.isPool(m.id, m)
	}
	slots[m.holder].Store(m)
	t.version.Store(m.since)

	if t.byWorker[m.id.Worker] == nil {
		t.byWorker[m.id.Worker] = make(map[uint32]*member)
	}
	t.byWorker[m.id.Worker][m.id.DPRank] = m
	t.count.Add(1)
}

// remove ends the identity at once. The number stays taken until release.
func (t *table) remove(m *member) {
	m.removed.Store(true)
	(*t.slots.Load())[m.holder].Store(nil)
	ranks := t.byWorker[m.id.Worker]
	delete(ranks, m.id.DPRank)
	if m.id.Pool() {
		t.isPool(m.id, nil)
	}
	if len(ranks) == 0 {
		delete(t.byWorker, m.id.Worker)
	}
	t.count.Add(-1)
}

// release makes the number of a rank that is removed, replaced or was never
// shown free. No shard may hold a block of it.
func (t *table) release(m *member) { t.free = append(t.free, m.holder) }

// renew makes a table new again of which every number is free.
func (t *table) renew() {
	if t.count.Load() == 0 && len(t.free) == int(t.next) {
		t.free, t.next = nil, 0
	}
}

// RankStat is what one rank holds.
type RankStat struct {
	RankID
	// Held is how many blocks the rank holds on each tier: distinct engine
	// hashes with copies there.
	Held [event.NumTiers]int
	// Inferred is how many blocks of the device tier are inferred: no event
	// that is known stored them (core.Index.Infer).
	Inferred int
}

// Stat returns what the rank holds: counts that the owners publish after each batch.
func (m Member) Stat() RankStat {
	st := RankStat{RankID: m.m.id}
	for j := range m.m.held {
		st.Held[j%event.NumTiers] += int(m.m.held[j].Load())
	}
	for j := range m.m.inferred {
		st.Inferred += int(m.m.inferred[j].Load())
	}
	return st
}

// Ranks returns what every rank holds, sorted by worker and rank. It reads
// counts that the owners publish after each batch.
func (s *Space) Ranks() []RankStat {
	var stats []RankStat
	s.EachMember(func(m Member) { stats = append(stats, m.Stat()) })
	slices.SortFunc(stats, func(a, b RankStat) int { return a.RankID.Compare(b.RankID) })
	return stats
}
