package query

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// fakeIndex is an Index of fixed content that counts its use.
type fakeIndex struct {
	spaces []*fakeSpace
	mu     sync.Mutex
	finds  int
}

// fakeSpace holds one chain per rank, each block with its tier.
type fakeSpace struct {
	index  *fakeIndex
	id     event.Space
	ranks  []fakeRank
	panic  bool // Find fails
	hybrid bool
}

type fakeRank struct {
	shard.RankID
	chain []uint64
	tiers []event.Tier // of each block; those beyond its end are Device
}

func (ix *fakeIndex) add(id event.Space, ranks ...fakeRank) *fakeSpace {
	sp := &fakeSpace{index: ix, id: id, ranks: ranks}
	ix.spaces = append(ix.spaces, sp)
	return sp
}

func (*fakeSpace) Eagle() bool     { return false }
func (sp *fakeSpace) Hybrid() bool { return sp.hybrid }

func (*fakeSpace) Pools() []shard.PoolStat { return nil }

func (ix *fakeIndex) Spaces() []event.Space {
	var ids []event.Space
	for _, sp := range ix.spaces {
		ids = append(ids, sp.id)
	}
	slices.SortFunc(ids, func(a, b event.Space) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), cmp.Compare(a.Group, b.Group))
	})
	return ids
}

func (ix *fakeIndex) Space(id event.Space) Space {
	for _, sp := range ix.spaces {
		if sp.id == id {
			return sp
		}
	}
	return nil
}

func (sp *fakeSpace) Find(local []uint64, f *Found) {
	sp.index.mu.Lock()
	sp.index.finds++
	sp.index.mu.Unlock()
	if sp.panic {
		panic("broken index")
	}
	for _, r := range slices.Backward(sp.ranks) { // not the order of answers
		var depth [event.NumTiers]uint32
		for t := range depth {
			for i, l := range local {
				if i >= len(r.chain) || r.chain[i] != l || int(r.tier(i)) > t {
					break
				}
				depth[t]++
			}
		}
		if depth[event.NumTiers-1] > 0 {
			f.Add(r.RankID, depth, uint64(len(r.chain)))
		}
	}
}

// Unfold tries the chains of all ranks.
func (sp *fakeSpace) Unfold(dst, seq []uint64) []uint64 {
	var best []uint64
	for _, r := range sp.ranks {
		own := blockhash.SequenceHashes(nil, r.chain)
		n := 0
		for n < len(own) && n < len(seq) && own[n] == seq[n] {
			n++
		}
		if n > len(best) {
			best = r.chain[:n]
		}
	}
	return append(dst, best...)
}

func (r *fakeRank) tier(i int) event.Tier {
	if i < len(r.tiers) {
		return r.tiers[i]
	}
	return event.Device
}

func (sp *fakeSpace) Ranks() []shard.RankStat {
	var held []shard.RankStat
	for _, r := range sp.ranks {
		h := shard.RankStat{RankID: r.RankID}
		for i := range r.chain {
			h.Held[r.tier(i)]++
		}
		held = append(held, h)
	}
	slices.SortFunc(held, func(a, b shard.RankStat) int { return a.RankID.Compare(b.RankID) })
	return held
}

// BeginDump has the whole chain on the device.
func (sp *fakeSpace) BeginDump(_ context.Context, id shard.RankID) (begun func(), wait func(context.Context) ([]shard.Dumped, error), err error) {
	return func() {}, func(context.Context) (all []shard.Dumped, err error) {
		for _, r := range sp.ranks {
			if r.RankID != id {
				continue
			}
			d := shard.Dumped{Event: event.Event{Kind: event.Stored, DPRank: id.DPRank, Engine: r.chain, Local: r.chain}}
			for range r.chain {
				d.Copies = append(d.Copies, 1)
			}
			all = append(all, d)
		}
		return all, nil
	}, nil
}
