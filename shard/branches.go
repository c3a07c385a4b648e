package shard

import (
	"cmp"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// treeReader is an index that shows what it holds as a tree.
type treeReader interface {
	Branches(path []core.Step, limit, most int) (core.Branching, bool)
	Follows(path []core.Step, local []uint64, most int) (int, bool)
	HoldersOf(path []core.Step, most int, f func(core.Holder, [event.NumTiers]uint32)) (int, bool)
}

// tree returns the index of the shard that the path is in.
func (s *Space) tree(path []core.Step) (treeReader, bool) {
	t, ok := s.shards[s.shardOf(path[0].First)].index.(treeReader)
	return t, ok
}

// Branches returns what follows the branch at the end of the path in what is held, of which
// the empty path is the root: at most limit of it, those of most holders first. It takes no
// lock, looks at no more than most branches of each shard, and reports false if nothing is
// there any more. What ranks have had that were cleared or removed counts until it is taken apart.
func (s *Space) Branches(path []core.Step, limit, most int) (found core.Branching, ok bool) {
	if len(path) > 0 {
		if t, is := s.tree(path); is {
			return t.Branches(path, limit, most)
		}
		return found, false
	}
	found.Whole = true
	for _, o := range s.shards {
		t, is := o.index.(treeReader)
		if !is {
			return found, false
		}
		part, _ := t.Branches(nil, limit, most)
		found.Looked += part.Looked
		found.Whole = found.Whole && part.Whole
		found.List = append(found.List, part.List...)
	}
	slices.SortStableFunc(found.List, func(a, b core.Branch) int {
		return cmp.Or(cmp.Compare(b.Holders, a.Holders), cmp.Compare(b.Blocks, a.Blocks))
	})
	found.List = found.List[:min(max(limit, 0), len(found.List))]
	return found, true
}

// Follows returns how many leading blocks of the chain are those of the path, to the end of
// its last branch, and whether all are.
func (s *Space) Follows(path []core.Step, local []uint64, most int) (int, bool) {
	if len(path) == 0 {
		return 0, true
	}
	if t, is := s.tree(path); is {
		return t.Follows(path, local, most)
	}
	return 0, false
}

// HoldersOf calls f for every rank and pool (see PoolName) that has the first block of the path's last branch, with
// how many leading blocks of the branch it has, for each level of tiers. It returns how many
// there are, and reports false if nothing is there any more. It takes no lock.
func (s *Space) HoldersOf(path []core.Step, most int, f func(m Member, blocks [event.NumTiers]uint32)) (blocks int, ok bool) {
	if len(path) == 0 {
		return 0, true
	}
	t, is := s.tree(path)
	if !is {
		return 0, false
	}
	r := Result{space: s, version: s.table.version.Load()}
	slots := *s.table.slots.Load() // before the look: see table
	return t.HoldersOf(path, most, func(h core.Holder, d [event.NumTiers]uint32) {
		if m, present := r.memberOf(slots, h); present {
			f(m, d)
		}
	})
}
