package shard

import (
	"cmp"
	"math"
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
	id RankID
	// holder is its number, for readers; owners have their own (part). Space.mu guards writing.
	holder atomic.Uint32
	since  uint64 // the table's version that brought it
	// removed says that lookups are to stop crediting it, in every slots array.
	removed atomic.Bool
	// replaced says that another one is shown in its place.
	replaced atomic.Bool
	// heldAll is the sum of what its parts hold, which a choice asks of every rank.
	heldAll atomic.Int64

	parts []part // by shard

	// reached says which shards have, or had, blocks of it: no other one has a part
	// in its events. Space.mu guards it. It stands behind what every choice reads of
	// every rank, which is one line of the cache.
	reached []bool
	// groups is set once the rank is known to have cache groups.
	groups atomic.Pointer[grouped]
	// stored is how many blocks its number may have at most, as far as batches were given to the shards, or more than
	// can be cleared at once; tiers are where, a bit for each. Space.mu guards them.
	stored int
	tiers  uint8
	// pools are those that its worker names; nil: none.
	pools atomic.Pointer[workerPools]
	// loaded says that it comes from a snapshot, which does not tell what its groups hold, or
	// when what a pool has was said.
	// Space.mu guards it.
	loaded bool
}

// part is what one shard says of a rank: its owner writes it. It is one line of the cache.
type part struct {
	holder   core.Holder                  // what the rank is called here, in the order of tasks; the owner's alone
	held     [event.NumTiers]atomic.Int64 // how many blocks there are, published after each batch
	inferred atomic.Int64                 // how many of them are inferred
	lost     atomic.Uint64                // how many blocks the rank's events have taken from it
	lostAt   atomic.Int64                 // when the last batch that did was published
}

// holder returns what this shard calls the rank.
func (o *owner) holder(m *member) core.Holder { return m.parts[o.number].holder }

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
// that its array stands for; otherwise it looks again. A rank that is cleared of more
// than can be taken apart at once gets another number in the same way, and stays the same member.
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
	m.stored, m.tiers = 0, 0
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
	m.since = old.since // to a reader it is the same rank
	t.moveTo(m, old.holder.Load(), m.holder.Load())
	old.replaced.Store(true)
	t.enter(m)
	if m.id.Pool() {
		t.isPool(m.id, m)
	}
	t.swaps.Add(1)
	return old
}

// moveTo has readers find the rank under one number in the place of another. The caller adds to swaps.
func (t *table) moveTo(m *member, from, to core.Holder) {
	slots := grow(*t.slots.Load(), int(to))
	slots[from].Store(nil)
	slots[to].Store(m)
	t.slots.Store(&slots)
}

// renumber gives the rank another number, under which nobody has anything: to readers it is empty at once.
func (t *table) renumber(m *member) (from, to core.Holder) {
	from, to = m.holder.Load(), t.number()
	t.moveTo(m, from, to)
	m.holder.Store(to)
	t.swaps.Add(1)
	return from, to
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
		id: id, reached: make([]bool, shards), parts: make([]part, shards),
		stored: math.MaxInt, tiers: 1<<event.NumTiers - 1, // others than batches may bring what it has
	}
	if w := t.pools[id.Worker]; w != nil && !id.Pool() {
		m.pools.Store(w)
	}
	h := t.number()
	m.holder.Store(h)
	for i := range m.parts {
		m.parts[i].holder = h
	}
	return m
}

// number returns one that nobody has.
func (t *table) number() (h core.Holder) {
	if n := len(t.free); n > 0 {
		h, t.free = t.free[n-1], t.free[:n-1]
		return h
	}
	t.next++
	return t.next - 1
}

// show lets readers find the rank.
func (t *table) show(m *member) {
	m.since = t.version.Load() + 1
	slots := *t.slots.Load()
	h := int(m.holder.Load())
	if h >= len(slots) {
		slots = grow(slots, h)
		t.slots.Store(&slots)
	}
	// The slot before the version: a reader that notes the new version finds
	// the rank, one that noted the old version finds it too young. And that there are pools
	// before the version, so that a pool is never taken for a rank.
	if m.id.Pool() {
		t.isPool(m.id, m)
	}
	slots[h].Store(m)
	t.version.Store(m.since)

	t.enter(m)
	t.count.Add(1)
}

// enter lets the rank be found by its id, in the place of one that has the same.
func (t *table) enter(m *member) {
	if t.byWorker[m.id.Worker] == nil {
		t.byWorker[m.id.Worker] = make(map[uint32]*member)
	}
	t.byWorker[m.id.Worker][m.id.DPRank] = m
}

// remove ends the identity at once. The number stays taken until release.
func (t *table) remove(m *member) {
	m.removed.Store(true)
	(*t.slots.Load())[m.holder.Load()].Store(nil)
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

// release makes a number free that no reader finds a rank under. No shard may hold a block of it.
func (t *table) release(h core.Holder) { t.free = append(t.free, h) }

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
	for i := range m.m.parts {
		p := &m.m.parts[i]
		for t := range p.held {
			st.Held[t] += int(p.held[t].Load())
		}
		st.Inferred += int(p.inferred.Load())
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
