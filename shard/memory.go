package shard

import (
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
)

// ledger adds up what the indexes of a Set use of its memory budget. Each owner
// enters what it has after each task, and before each step what it may have after it
// (share): the sum is never below what is used, but for what removals and cache
// groups take within a task.
type ledger struct {
	budget int64
	used   atomic.Int64
}

// account is one index's part of the ledger. Its owner writes it.
type account struct {
	ledger  *ledger
	entered int64            // of the ledger's sum
	groups  int64            // bytes of the tables whose home the shard is
	claimed bool             // more than the index has is entered
	bytes   [10]atomic.Int64 // by kind, see core.Memory
	tables  atomic.Int64     // groups, for others
}

// newIndex makes the shard's index.
func (a *account) newIndex(cfg Config) core.Index {
	if cfg.NewIndex != nil {
		return cfg.NewIndex()
	}
	return core.NewRadix(core.Options{
		Key:    cfg.Key,
		Budget: cfg.MemoryBudget,
		Share:  a.share,
	})
}

// share is core.Options.Share: it enters in the sum what the index may have after its next
// step, if all have room for that. It enters whole grains, so that few steps write to what
// all owners read.
func (a *account) share(have, need, most int64) (all int64, granted bool) {
	const grain = 64 << 10
	have += a.groups
	claim := (have + need + grain - 1) &^ (grain - 1)
	for {
		used := a.ledger.used.Load()
		others := used - a.entered
		switch {
		case others+claim > most:
			return others + have, false
		case claim == a.entered:
			return others + have, true
		case a.ledger.used.CompareAndSwap(used, others+claim):
			a.entered, a.claimed = claim, true
			return others + have, true
		}
	}
}

// isFull reports whether the index refuses blocks, or soon will: it is close to
// the budget that all share, or to its own limit.
func (o *owner) isFull() bool {
	l := o.account.ledger
	return o.full.Load() || l.budget > 0 && l.used.Load() > l.budget-l.budget/16
}

// recomputeMemory notes what the index uses now, and whether it is close to its limit.
func (o *owner) recomputeMemory() {
	o.account.recompute(o.index)
	if b, ok := o.index.(interface{ NearLimit() bool }); ok {
		o.full.Store(b.NearLimit())
	}
}

// recompute notes what the index uses now.
func (a *account) recompute(index core.Index) {
	x, ok := index.(interface{ Memory() core.Memory })
	if !ok {
		return
	}
	m := x.Memory()
	for i, n := range m.Bytes() {
		say(&a.bytes[i], n)
	}
	say(&a.tables, a.groups)
	now := m.Total() + a.groups
	if now != a.entered {
		a.ledger.used.Add(now - a.entered)
	}
	a.entered, a.claimed = now, false
}

// say lets others read a count, of which the caller is the only writer, and returns how much more it is. Small batches leave
// most counts as they are: those are not written again, as each atomic store waits for all stores before it.
func say(count *atomic.Int64, n int64) (more int64) {
	if more = n - count.Load(); more != 0 {
		count.Store(n)
	}
	return more
}

// MemoryKind is how many bytes the index uses for one purpose.
type MemoryKind struct {
	Kind  string
	Bytes int64
}

// Memory returns what the indexes of all spaces use, by kind, as their owners
// last said. The order of kinds is fixed.
func (s *Set) Memory() []MemoryKind {
	var kinds []MemoryKind
	for _, name := range (core.Memory{}).Kinds() {
		kinds = append(kinds, MemoryKind{Kind: name})
	}
	tables := MemoryKind{Kind: "cache_groups"}
	for _, sp := range s.spaces.Range {
		for _, o := range sp.shards {
			for i := range kinds {
				kinds[i].Bytes += o.account.bytes[i].Load()
			}
			tables.Bytes += o.account.tables.Load()
		}
	}
	return append(kinds, tables)
}

// MemoryBudget returns what the indexes use and how much they may; 0 means
// that there is no limit.
func (s *Set) MemoryBudget() (used, budget int64) { return s.ledger.used.Load(), s.ledger.budget }

// Full reports whether some space's index is so close to the budget, or beyond
// it, that blocks are or soon will be refused.
func (s *Set) Full() bool {
	for _, sp := range s.spaces.Range {
		for _, o := range sp.shards {
			if o.isFull() {
				return true
			}
		}
	}
	return false
}

// MappedBytes returns how many bytes the indexes of all spaces have mapped
// outside the Go heap and touched. It asks each index that has a method
// MappedBytes() int64, which must be safe to call beside the writer; the
// others count as none.
func (s *Set) MappedBytes() int64 {
	var sum int64
	for _, sp := range s.spaces.Range {
		for _, o := range sp.shards {
			if m, ok := o.index.(interface{ MappedBytes() int64 }); ok {
				sum += m.MappedBytes()
			}
		}
	}
	return sum
}
