package shard

import (
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// PoolDepth is what a pool holds of a prompt, in leading blocks.
type PoolDepth struct {
	Name  string
	Depth uint32
}

// pooledFind is what a Result has of a lookup in a space with pools.
type pooledFind struct {
	is    bool
	at    []int32  // by holder: where it stands in grouped.found, and 1
	deep  []uint32 // by holder: of pools
	named []PoolDepth
}

// depth returns how deep the lookup has found the pool.
func (x *pooledFind) depth(p *namedPool, version uint64) uint32 {
	m := p.member.Load()
	if m == nil || p.hidden.Load() || m.since > version {
		return 0
	}
	if h := int(m.holder.Load()); h < len(x.deep) {
		return x.deep[h]
	}
	return 0
}

// extend adds what pools have to what the ranks that name them hold. It looks at all ranks
// only if some pool has something of the prompt.
func (s *Space) extend(r *Result) {
	x, slots := &r.pooled, *r.slots
	if !r.grouped.is {
		r.grouped.found = r.grouped.found[:0]
		r.matches.EachHolder(func(h core.Holder, depth [event.NumTiers]uint32) {
			if m, ok := r.memberOf(slots, h); ok {
				r.grouped.found = append(r.grouped.found, memberDepth{m, h, depth})
			}
		})
	}
	x.at, x.deep = slices.Grow(x.at[:0], len(slots))[:len(slots)], slices.Grow(x.deep[:0], len(slots))[:len(slots)]
	clear(x.at)
	clear(x.deep)
	own := r.grouped.found[:0]
	for _, f := range r.grouped.found {
		if f.m.id.Pool() {
			x.deep[f.holder] = f.depth[event.External]
			continue
		}
		own = append(own, f)
		x.at[f.holder] = int32(len(own))
	}
	x.named = x.named[:0]
	some := false
	for _, p := range *s.table.named.Load() {
		depth := x.depth(p, r.version)
		some = some || depth > 0
		x.named = append(x.named, PoolDepth{p.name, depth})
	}
	for h := 0; some && h < len(slots); h++ {
		m, ok := r.memberOf(slots, core.Holder(h))
		if !ok {
			continue
		}
		w := m.m.pools.Load()
		if w == nil {
			continue
		}
		most := uint32(0)
		for i, p := range w.named {
			most = max(most, wholeChunks(x.depth(p, r.version), s.key.BlockSize, w.list[i].Chunk))
		}
		switch at := x.at[h]; {
		case most == 0:
		case at == 0:
			own = append(own, memberDepth{m, core.Holder(h), [event.NumTiers]uint32{event.External: most}})
		default:
			d := &own[at-1].depth[event.External]
			*d = max(*d, most)
		}
	}
	r.grouped.found = own
}

// wholeChunks returns how many of the blocks are in chunks of which none is missing.
func wholeChunks(blocks, size, chunk uint32) uint32 {
	if chunk <= size {
		return blocks
	}
	tokens := uint64(blocks) * uint64(size)
	return uint32((tokens - tokens%uint64(chunk)) / uint64(size))
}

// Pools returns what each pool holds of the prompt that some worker names, by name, whatever
// its chunks. The caller does not change the list, which the next Find does.
func (r *Result) Pools() []PoolDepth {
	if !r.pooled.is {
		return nil
	}
	return r.pooled.named
}

// Pooled reports whether the rank can reuse what a pool has.
func (m Member) Pooled() bool { return m.m.pools.Load() != nil }

// PoolName returns what the pool is called that the member stands for, and false if that is none
// whose blocks lookups find: nobody names it, or nobody knows what is in it. It takes no lock.
func (s *Space) PoolName(m Member) (name string, shown bool) {
	for _, p := range *s.table.named.Load() {
		if p.id == m.m.id {
			return p.name, !p.hidden.Load()
		}
	}
	return "", false
}

// PoolStat is what a pool holds.
type PoolStat struct {
	Name    string
	Blocks  int // that lookups see
	Workers int // that name it
}

// Pools returns the pools that workers name, sorted by name.
func (s *Space) Pools() []PoolStat {
	if !s.table.pooled.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []PoolStat
	for _, p := range *s.table.named.Load() {
		stat := PoolStat{Name: p.name, Workers: p.users}
		if m := p.member.Load(); m != nil && !p.hidden.Load() {
			stat.Blocks = Member{m}.Held()
		}
		list = append(list, stat)
	}
	return list
}
