package shard

import (
	"context"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
)

// grouped is what a rank holds in its cache groups, beside the blocks of full attention
// that the shards have: one table, as its blocks are found by their names.
//
// The owner of the home shard applies all events of the rank to it, in their order, under
// the lock; lookups ask it under the lock for reading. Neither waits for anything else
// there.
type grouped struct {
	home  int
	bytes int64 // what the home's owner has entered into the ledger

	mu struct {
		sync.RWMutex
		table *groups.Table
	}
}

func newGrouped() *grouped {
	g := &grouped{}
	g.mu.table = groups.NewTable()
	return g
}

// cacheModel is what is known of a worker's cache groups.
type cacheModel struct {
	said  []event.CacheGroup // registered
	seen  []rankGroups       // told by its ranks' streams, which are of one model
	model *groups.Model      // nil: too little is known to answer exactly
}

type rankGroups struct {
	rank uint32
	list []event.CacheGroup
}

// see notes what the stream of a rank tells, and reports whether that is new.
func (m *cacheModel) see(rank uint32, list []event.CacheGroup, maxRanks int) (changed bool) {
	i := slices.IndexFunc(m.seen, func(r rankGroups) bool { return r.rank == rank })
	switch {
	case i >= 0 && slices.Equal(m.seen[i].list, list), i < 0 && len(m.seen) >= maxRanks:
		return false
	case i < 0:
		i = len(m.seen)
		m.seen = append(slices.Clone(m.seen), rankGroups{rank: rank})
	default:
		m.seen = slices.Clone(m.seen) // others read the old one
	}
	m.seen[i].list = list
	return true
}

// SetCacheGroups tells what a worker registers of its model's cache groups.
func (s *Space) SetCacheGroups(worker uint64, list []event.CacheGroup) {
	s.noteGroups(worker, func(m *cacheModel) (changed bool) {
		changed = !slices.Equal(m.said, list)
		m.said = list
		return changed
	})
}

// noteGroups changes what is known of a worker's groups.
func (s *Space) noteGroups(worker uint64, change func(m *cacheModel) (changed bool)) {
	s.models.Compute(worker, func(old *cacheModel, _ bool) (*cacheModel, bool) {
		var m cacheModel
		if old != nil {
			m = *old
		}
		if !change(&m) {
			return old, old == nil
		}
		all := m.said
		for _, r := range m.seen {
			all = event.MergeCacheGroups(all, r.list)
		}
		m.model, _ = groups.NewModel(all, s.key.BlockSize) // without one depths stay bounds, and say so
		if len(all) > 1 {
			s.MarkHybrid()
			s.grouped.Store(true)
		}
		return &m, false
	})
}

// madeTable is a table that is not given to its rank yet.
type madeTable struct {
	*grouped
	of *member // whose blocks it was told of; nil: none
}

// tablesFor makes tables for ranks of the batch that have cache groups and no table yet. A
// rank that is there already has blocks of full attention, which the table is told of. Until
// the table is given, only the caller's own batches change what the rank has; but it may be
// removed, or replaced: see giveMade.
func (s *Space) tablesFor(ctx context.Context, b *event.Batch) (made map[uint32]madeTable, err error) {
	if b.Groups != nil {
		rank := uint32(0)
		if len(b.Events) > 0 {
			rank = b.Events[0].DPRank // a decoder's batch is of one
		}
		s.noteGroups(b.Worker, func(m *cacheModel) bool { return m.see(rank, b.Groups, s.maxRanks) })
	}
	all, last := false, (*event.Event)(nil)
	if s.grouped.Load() {
		m, ok := s.models.Load(b.Worker)
		all = ok && m.model != nil
	}
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Group == 0 && !all || ev.Kind != event.Stored || made[ev.DPRank].grouped != nil || last != nil && last.DPRank == ev.DPRank {
			continue
		}
		last = ev
		if !s.grouped.Load() {
			s.MarkHybrid()
			s.grouped.Store(true)
		}
		id := RankID{b.Worker, ev.DPRank}
		s.mu.Lock()
		m := s.table.find(id)
		loaded := m != nil && m.loaded
		s.mu.Unlock()
		if m != nil && m.groups.Load() != nil {
			continue
		}
		g := newGrouped()
		if m != nil {
			dumped, err := s.DumpRank(ctx, id)
			if err != nil {
				return nil, err
			}
			for j := range dumped {
				g.mu.table.Restore(&dumped[j].Event, dumped[j].Copies)
			}
			g.mu.table.Restored()
			if loaded {
				g.mu.table.MarkPartial()
			}
		}
		if made == nil {
			made = make(map[uint32]madeTable)
		}
		made[ev.DPRank] = madeTable{g, m}
	}
	return made, nil
}

// giveMade gives the rank, which has none, the table that was made for it; where another rank
// of its id is meanwhile, one that knows nothing. Space.mu is held.
func (m *member) giveMade(made madeTable) {
	g := made.grouped
	if fresh := !slices.Contains(m.reached, true); m != made.of && !(fresh && made.of == nil) {
		if g = newGrouped(); !fresh {
			g.mu.table.MarkPartial() // it has blocks that the table was not told of
		}
	}
	m.give(g)
}

// give gives the rank its table. Space.mu is held.
func (m *member) give(g *grouped) {
	g.home = max(0, slices.Index(m.reached, true))
	m.reached[g.home] = true
	m.groups.Store(g)
}

// applyGroups applies an event to the rank's table, if it has one and this is its home.
// named says that blocks stored by hash alone may be inferred from other workers.
func (o *owner) applyGroups(m *member, ev *event.Event, countCopies, named bool) (out core.Outcome) {
	g := m.groups.Load()
	if g == nil || g.home != o.number {
		return out
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.refusesGroups(g, ev, &out) {
		return out
	}
	if named && hashOnly(ev) && slices.ContainsFunc(ev.Engine, func(name uint64) bool { return !g.mu.table.Knows(name) }) {
		g.mu.table.MarkPartial() // the index may find it with another worker, the table does not
	}
	out = g.mu.table.Apply(ev, countCopies)
	o.weigh(g)
	return out
}

// refusesGroups tells whether the memory budget is reached; blocks of full attention are the
// index's to refuse and to count, but have no place in the table then. g is locked.
func (o *owner) refusesGroups(g *grouped, ev *event.Event, out *core.Outcome) bool {
	led := o.account.ledger
	if ev.Kind != event.Stored || led.budget == 0 || led.used.Load() <= led.budget {
		return false
	}
	g.mu.table.MarkPartial()
	o.weigh(g)
	if ev.Group > 0 {
		out.Refused = len(ev.Engine)
	}
	return true
}

// restoreGroups is applyGroups for an event of a dump.
func (o *owner) restoreGroups(m *member, ev *event.Event, copies []uint32) (out core.Outcome) {
	g := m.groups.Load()
	if g == nil || g.home != o.number {
		return out
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.refusesGroups(g, ev, &out) {
		return out
	}
	out = g.mu.table.Restore(ev, copies)
	o.weigh(g)
	if ev.Group == 0 {
		return core.Outcome{}
	}
	return out
}

// lackGroups notes that not all that the rank holds has a known place.
func (o *owner) lackGroups(m *member) {
	if g := m.groups.Load(); g != nil && g.home == o.number {
		g.mu.Lock()
		g.mu.table.MarkPartial()
		g.mu.Unlock()
	}
}

// weigh enters what the table uses now.
func (o *owner) weigh(g *grouped) {
	now := g.mu.table.Bytes()
	o.account.groups += now - g.bytes
	g.bytes = now
}

// dropGroups takes the table of a rank that is gone out of the account.
func (o *owner) dropGroups(m *member) {
	if g := m.groups.Load(); g != nil && g.home == o.number {
		o.account.groups -= g.bytes
		g.bytes = 0
	}
}

// groupsHere returns the table of the rank if its home is this shard. Its owner, which is the
// caller, is its only writer.
func (o *owner) groupsHere(m *member) *groups.Table {
	if g := m.groups.Load(); g != nil && g.home == o.number {
		return g.mu.table
	}
	return nil
}

// copyGroups returns what the table's rank holds: an event without blocks, where that is
// nothing.
func copyGroups(table *groups.Table, dpRank uint32) (list []Dumped) {
	table.Copy(func(ev *event.Event, copies []uint32) {
		d := Dumped{*ev, slices.Clone(copies)}
		d.Event.DPRank, d.Event.Engine = dpRank, slices.Clone(ev.Engine)
		list = append(list, d)
	})
	if list == nil {
		list = append(list, Dumped{Event: event.Event{Kind: event.Stored, Group: 1, Incomplete: table.Partial(), DPRank: dpRank}})
	}
	return list
}

// grouped returns the ranks that have tables. Space.mu is held.
func (t *table) grouped() (list []*member) {
	for _, ranks := range t.byWorker {
		for _, m := range ranks {
			if m.groups.Load() != nil {
				list = append(list, m)
			}
		}
	}
	return list
}

// Groups tells whether the rank's cache groups are followed, and how many blocks those
// besides full attention hold.
func (m Member) Groups() (blocks int, followed bool) {
	g := m.m.groups.Load()
	if g == nil {
		return 0, false
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.mu.table.Held(), true
}

// groupedFind is what a Result has of a lookup in a space with cache groups.
type groupedFind struct {
	places    []uint64
	found     []memberDepth
	is        bool // the lookup was of such a space
	estimated bool // some of the depths are bounds
}

type memberDepth struct {
	Member
	holder core.Holder // its number when the lookup began
	depth  [event.NumTiers]uint32
}

// regroup turns what full attention holds of the prompt into what can be reused of it.
func (s *Space) regroup(local []uint64, r *Result) {
	g := &r.grouped
	g.places, g.found, g.is, g.estimated = g.places[:0], g.found[:0], true, false
	for i, l := range local {
		if i > 0 {
			l = blockhash.NextSequenceHash(g.places[i-1], l)
		}
		g.places = append(g.places, l)
	}
	tokens, size := r.Tokens, int(s.key.BlockSize)
	if tokens < len(local)*size || tokens > (len(local)+1)*size { // of another prompt, or unknown
		tokens = 0
	}
	slots := *r.slots
	r.matches.EachHolder(func(h core.Holder, depth [event.NumTiers]uint32) {
		m, ok := r.memberOf(slots, h)
		if !ok {
			return
		}
		depth, exact := s.reusable(m.m, g.places, tokens, depth)
		g.estimated = g.estimated || !exact
		if depth[event.NumTiers-1] > 0 {
			g.found = append(g.found, memberDepth{m, h, depth})
		}
	})
}

// reusable returns what of depth the rank can reuse: all of it where its groups are not
// known well enough, which is a bound then.
func (s *Space) reusable(m *member, places []uint64, tokens int, depth [event.NumTiers]uint32) (is [event.NumTiers]uint32, exact bool) {
	known, ok := s.models.Load(m.id.Worker)
	g := m.groups.Load()
	if !ok || known.model == nil || g == nil {
		return depth, false
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.mu.table.Exact(known.model) {
		return depth, false
	}
	return g.mu.table.Reusable(known.model, places, tokens, depth), true
}

// Exact reports, of a space that is Hybrid, whether no depth of the answer is only an upper
// bound: the cache groups of all ranks in it are known well enough.
func (r *Result) Exact() bool { return r.grouped.is && !r.grouped.estimated }
