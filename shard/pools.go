package shard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// A pool is a holder of its own: RankID{WorkerID(name), event.PoolRank}. Its blocks are those
// that workers which name it have said are on a tier of it, each once, and they stay when a
// worker leaves, is cleared or replaced. An event of a worker's that is about such a tier is
// the pool's, also a removal, and a clear if it names that tier alone.
//
// Engines name what they offload by the hashes of before, so the pool learns where a block
// stands from the worker that says it is there, or from others of its hash scheme. In lookups
// what a pool has extends the last level of each worker that names it.

// workerPools is what a worker has said of the pools that it reads from. It does not change.
type workerPools struct {
	list  []event.Pool
	named []*namedPool        // by table.name, of each in the list
	of    [event.NumTiers]int // which pool has the tier, and 1; 0: none
}

func newWorkerPools(list []event.Pool) *workerPools {
	w := &workerPools{list: slices.Clone(list)}
	for i := range list {
		for _, t := range list[i].TierList() {
			w.of[t] = i + 1
		}
	}
	return w
}

func poolID(name string) RankID { return RankID{event.WorkerID(name), event.PoolRank} }

// pool returns which pool the event is about: 0 for none, which is as if the worker had none.
func (w *workerPools) pool(ev *event.Event) int {
	if !lower(ev) {
		return 0
	}
	return w.of[ev.Tier]
}

// lower reports whether the event is about one tier below the device.
func lower(ev *event.Event) bool {
	return ev.Tier > event.Device && ev.Tier < event.NumTiers && !(ev.Kind == event.Cleared && ev.AllTiers)
}

// SetPools tells which pools a worker's registration names; none means that it reads from
// none. Its ranks are known from then on, as they can reuse what they never held. What the
// index took to be the worker's on these tiers becomes the pool's, and what it said of them before
// its registration was known is said of the pool (see early). ctx bounds the wait for room in the queue.
func (s *Space) SetPools(ctx context.Context, worker uint64, ranks []uint32, list []event.Pool) error {
	if err := event.CheckPools(list); err != nil {
		return fmt.Errorf("pools of worker %d: %w", worker, err)
	}
	s.mu.Lock()
	old := s.table.pools[worker]
	delete(s.table.leaving, worker)
	if len(list) == 0 {
		if old != nil {
			s.table.name(worker, nil)
		}
		s.table.unpooled[worker] = struct{}{}
		s.early.forget(worker)
		s.mu.Unlock()
		return nil
	}
	same := old != nil && slices.EqualFunc(old.list, list, event.Pool.Equal)
	room := s.table.count.Load() < int64(s.maxRanks)
	for _, rank := range ranks {
		same = same && (!room || s.table.find(RankID{worker, rank}) != nil)
	}
	s.mu.Unlock()
	if same {
		return nil
	}
	return s.submitWait(ctx, func(t *task) {
		w := newWorkerPools(list)
		var before []*member
		for _, m := range s.table.byWorker[worker] {
			if !m.id.Pool() {
				before = append(before, m)
			}
		}
		s.table.name(worker, w)
		delete(s.table.unpooled, worker)
		for _, rank := range ranks {
			if id := (RankID{worker, rank}); rank != event.PoolRank && s.table.find(id) == nil && s.table.count.Load() < int64(s.maxRanks) {
				s.table.add(id, len(s.shards))
			}
		}
		k := s.takers(w)
		k.early = s.early.settle(worker, w)
		k.settleIn()
		t.inspect = func(o *owner) {
			o.settle(k)
			for _, m := range before {
				o.giveTo(k, m)
			}
			o.settleThere(k)
		}
	})
}

// Unregistered says that the worker's registration is gone. Until it is removed, what is still applied of it is
// said of the pools that it named; where nobody removes it, for a minute.
func (s *Space) Unregistered(worker uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.table.unpooled, worker)
	if _, known := s.table.leaving[worker]; !known && s.table.pools[worker] != nil {
		s.table.leaving[worker] = time.Time{}
	}
}

// leave ends what the worker names if its registration is gone. Who is back is waited for to say it.
func (t *table) leave(worker uint64) {
	if _, gone := t.leaving[worker]; gone {
		delete(t.leaving, worker)
		t.name(worker, nil)
	}
	if t.pools[worker] == nil {
		delete(t.unpooled, worker)
	}
}

// namedPool is a pool that workers name, while some do. Space.mu guards users and sources.
type namedPool struct {
	id      RankID
	name    string
	users   int                    // workers
	sources int                    // of them that name a stream of its own
	member  atomic.Pointer[member] // nil: there was no room
	hidden  atomic.Bool            // it is not known what its own stream has
	removals
}

// name has the worker name these pools, nil for none, and its members know them.
func (t *table) name(worker uint64, w *workerPools) {
	old := t.pools[worker]
	if delete(t.pools, worker); w != nil {
		t.pools[worker] = w
		t.pooled.Store(true)
		for i := range w.list {
			id := poolID(w.list[i].Name)
			p := t.byPool[id]
			if p == nil {
				p = &namedPool{id: id, name: w.list[i].Name}
				p.member.Store(t.find(id))
				t.byPool[id] = p
				t.changeNamed(p, true)
			}
			p.users++
			if w.list[i].Source != nil {
				p.says(1)
			}
			w.named = append(w.named, p)
		}
	}
	if old != nil {
		for i, p := range old.named {
			if old.list[i].Source != nil {
				p.says(-1)
			}
			if p.users--; p.users == 0 {
				delete(t.byPool, p.id)
				t.changeNamed(p, false)
			}
		}
	}
	for _, m := range t.byWorker[worker] {
		if !m.id.Pool() { // a pool whose name makes this number
			m.pools.Store(w)
		}
	}
	for id, p := range t.replacing {
		if id.Worker == worker && !id.Pool() {
			p.member.pools.Store(w)
		}
	}
}

// changeNamed puts a pool into the list that lookups read, or takes it out.
func (t *table) changeNamed(p *namedPool, in bool) {
	list := slices.Clone(*t.named.Load())
	at, _ := slices.BinarySearchFunc(list, p.name, func(p *namedPool, name string) int { return strings.Compare(p.name, name) })
	if in {
		list = slices.Insert(list, at, p)
	} else {
		list = slices.Delete(list, at, at+1)
	}
	t.named.Store(&list)
}

// isPool notes who stands for a pool; nil is nobody.
func (t *table) isPool(id RankID, m *member) {
	t.pooled.Store(true)
	if p := t.byPool[id]; p != nil {
		p.member.Store(m)
	}
}

// takers are the pools that a worker names, with their members: nil for those for which there
// is no room.
type takers struct {
	*workerPools
	members []*member
	tiers   []event.Tier // where they store now
	early   []settled    // what the worker has said of them already, by pool; nil: nothing
}

// takers returns the members of the pools, of which any shard may have blocks from now on.
// Space.mu is held.
func (s *Space) takers(w *workerPools) *takers {
	k := &takers{workerPools: w, members: make([]*member, len(w.named)), tiers: make([]event.Tier, len(w.named))}
	for i, p := range w.named {
		if p.sources > 0 {
			continue // it says itself what is in it
		}
		m := p.member.Load()
		if m == nil && s.table.count.Load() < int64(s.maxRanks) {
			m = s.table.add(p.id, len(s.shards))
		}
		if m != nil {
			m.reachAll()
		}
		k.members[i], k.tiers[i] = m, s.table.ages[p.id].tier()
	}
	return k
}

// attribute gives those events of the task's batch to pools that are about one. What it
// changes are copies. Space.mu is held.
func (s *Space) attribute(t *task) {
	some := false
	for i := range t.batch.Events {
		some = some || lower(&t.batch.Events[i])
	}
	if !some {
		return
	}
	w := s.table.pools[t.batch.Worker]
	if w == nil {
		if _, known := s.table.unpooled[t.batch.Worker]; !known {
			s.early.hear(t.batch)
		}
		return
	}
	if !slices.ContainsFunc(t.batch.Events, func(ev event.Event) bool { return w.pool(&ev) > 0 }) {
		return
	}
	events := make([]event.Event, 0, len(t.batch.Events)+event.NumTiers)
	for i := range t.batch.Events {
		ev := t.batch.Events[i]
		p := w.pool(&ev)
		if p == 0 {
			events, t.pooled = append(events, ev), append(t.pooled, pooled{})
			continue
		}
		if w.named[p-1].sources > 0 {
			continue // it says itself what is in it
		}
		age := s.table.ages[w.named[p-1].id]
		anywhere := age != nil // what there is of it may be on any tier of the pool's own
		if m := w.named[p-1].member.Load(); m != nil && m.loaded {
			anywhere = true // with what it had in another run
		}
		ev.Tier, ev.Incomplete = age.tier(), false // of the pool's own
		switch {
		case ev.Group > 0: // full attention's count alone: of such models a pool's depth is a bound
			t.outs[0].UnknownBlock += len(ev.Engine)
			continue
		case ev.Kind == event.Stored && w.list[p-1].OwnNames:
			// Of a chain what stands before the first that has left.
			there := w.named[p-1].back(ev.Engine, t.batch.Published)
			n := 0
			for n < len(there) && there[n] == ev.Engine[n] {
				n++
			}
			ev.Engine, ev.Local = ev.Engine[:n], ev.Local[:min(n, len(ev.Local))]
		case ev.Kind == event.Stored:
			ev.HasParent, ev.Parent, ev.Local = false, 0, nil
			ev.Engine = w.named[p-1].back(ev.Engine, t.batch.Published)
		case ev.Kind == event.Cleared:
			ev.AllTiers = true
			w.named[p-1].removals.clear(t.batch.Published)
		case ev.Kind == event.Removed:
			w.named[p-1].removals.add(ev.Engine, t.batch.Published)
			if !anywhere {
				break
			}
			for ev.Tier = event.NumTiers - 1; ev.Tier > 0; ev.Tier-- {
				events, t.pooled = append(events, ev), append(t.pooled, pooled{pool: w.named[p-1]})
			}
		}
		s.early.hearPool(w.named[p-1].id, ev.Kind, ev.Engine, t.batch.Published)
		events, t.pooled = append(events, ev), append(t.pooled, pooled{pool: w.named[p-1]})
	}
	b := *t.batch
	b.Events = events
	t.batch = &b
}

// pooled is an event that is a pool's, or with no pool one that is none's.
type pooled struct {
	pool      *namedPool
	announcer *member // the rank that said it; nil: it is not known
}

func (t *task) ofPool(i int) bool { return t.pooled != nil && t.pooled[i].pool != nil }

// countCopies reports whether copies of event i are counted: in a pool, whoever says it, an
// object is there once.
func (t *task) countCopies(i int) bool { return t.batch.CountCopies && !t.ofPool(i) }

// announcer returns the vote for the rank that said what event i is about, if it knows the hash here.
func (o *owner) announcer(t *task, i int, hash uint64) (vote parentVote, knows bool) {
	if !t.ofPool(i) {
		return parentUnknown, false
	}
	m := t.pooled[i].announcer
	if m == nil || !o.index.Knows(o.holder(m), hash) {
		return parentUnknown, false
	}
	return parentOf(o.holder(m), true), true
}

// leave notes that all of a pool's blocks leave it by event i, if it is about one.
func (o *owner) leave(t *task, i int) {
	if !t.ofPool(i) {
		return
	}
	t.pooled[i].pool.removals.add(o.has(t.members[i]), t.batch.Published)
}

// has returns the blocks that are here of a pool, on any of its tiers.
func (o *owner) has(m *member) (hashes []uint64) {
	o.index.Dump(o.holder(m), func(ev *event.Event, copies []uint32) bool {
		for j, e := range ev.Engine {
			if copies[j] > 0 {
				hashes = append(hashes, e)
			}
		}
		return true
	})
	return hashes
}

// takeOut takes blocks out of a pool, on whatever tier of its own they are.
func (o *owner) takeOut(m *member, hashes []uint64) {
	ev := event.Event{Kind: event.Removed, Engine: hashes}
	for ; ev.Tier < event.NumTiers; ev.Tier++ {
		o.index.Remove(o.holder(m), &ev, false)
	}
}

// gives returns which of the blocks that the worker has on a tier of the pool are in that: of those that it has
// said something of itself those that are there by that, and of the others, which a dump had, those that have not left.
func (k *takers) gives(p int, list []uint64) []uint64 {
	if k.early == nil {
		return k.named[p].dumped(list)
	}
	var said, dumped []uint64
	for _, e := range list {
		if f, is := k.early[p].of[e]; !is {
			dumped = append(dumped, e)
		} else if f.there {
			said = append(said, e)
		}
	}
	return append(said, k.named[p].dumped(dumped)...)
}

// giveTo gives the pools, if there are some, what the index has of the member on their tiers.
func (o *owner) giveTo(k *takers, m *member) {
	if k == nil {
		return
	}
	some := false
	for t := range event.Tier(event.NumTiers) {
		some = some || k.of[t] > 0 && o.index.Held(o.holder(m), t) > 0
	}
	if !some { // what it has elsewhere, which may be much, is not looked through
		return
	}
	var hashes [event.NumTiers][]uint64
	o.index.Dump(o.holder(m), func(ev *event.Event, copies []uint32) bool {
		for j, e := range ev.Engine {
			if k.of[ev.Tier] > 0 && copies[j] > 0 {
				hashes[ev.Tier] = append(hashes[ev.Tier], e)
			}
		}
		return true
	})
	for t, list := range hashes {
		if len(list) == 0 {
			continue
		}
		list = k.gives(k.of[t]-1, list)
		if p := k.members[k.of[t]-1]; p != nil && len(list) > 0 {
			ev := event.Event{Kind: event.Stored, Tier: k.tiers[k.of[t]-1], Engine: list}
			core.StoreHashOnly(o.index, o.holder(p), &ev, false, func(int) (core.Holder, bool) { return o.holder(m), true })
			o.assignHolder(p)
			o.publish(p)
		}
		o.index.Clear(o.holder(m), event.Tier(t), false)
	}
	o.publish(m)
}
