package groups

import (
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Oracle is the literal reference for a Table: it keeps what each event said and tries each
// boundary of a prompt. It knows no EAGLE, of which the release's own steps are the judge.
type Oracle struct {
	chains map[uint64][]uint64 // local hashes up to a block, as group 0 named it last
	copies map[oracleCopy]uint32
}

type oracleCopy struct {
	name  uint64
	group uint8
	tier  event.Tier
}

// NewOracle returns an empty Oracle.
func NewOracle() *Oracle {
	return &Oracle{chains: make(map[uint64][]uint64), copies: make(map[oracleCopy]uint32)}
}

// Apply applies an event of the rank, of any group. A parent of group 0 must have been
// stored before.
func (o *Oracle) Apply(ev *event.Event, countCopies bool) {
	switch ev.Kind {
	case event.Stored:
		chain := o.chains[ev.Parent]
		if !ev.HasParent {
			chain = nil
		}
		for i, name := range ev.Engine {
			if len(ev.Local) > 0 {
				chain = append(slices.Clone(chain), ev.Local[i])
				o.chains[name] = chain
			}
			if k := (oracleCopy{name, ev.Group, ev.Tier}); countCopies || o.copies[k] == 0 {
				o.copies[k]++
			}
		}
	case event.Removed:
		for _, name := range ev.Engine {
			k := oracleCopy{name, ev.Group, ev.Tier}
			if n := o.copies[k]; n > 1 && countCopies {
				o.copies[k]--
			} else {
				delete(o.copies, k)
			}
		}
	case event.Cleared:
		for k := range o.copies {
			if ev.AllTiers || k.tier == ev.Tier {
				delete(o.copies, k)
			}
		}
	}
}

// Digest is Table.Digest.
func (o *Oracle) Digest(space, worker uint64, dpRank uint32) (sum uint64) {
	for k, n := range o.copies {
		if k.group > 0 {
			sum += core.DigestTerm(space, worker, dpRank, k.tier, uint32(k.group), k.name, 0, n)
		}
	}
	return sum
}

// Chain returns the local hashes up to a block that group 0 has named.
func (o *Oracle) Chain(name uint64) []uint64 { return o.chains[name] }

// holds tells whether the group holds what the prompt's blocks come to, on the tier or one
// before it.
func (o *Oracle) holds(group uint8, local []uint64, upTo event.Tier) bool {
	for k, n := range o.copies {
		if n > 0 && k.group == group && k.tier <= upTo && slices.Equal(o.chains[k.name], local) {
			return true
		}
	}
	return false
}

// Depth returns how many leading blocks of the prompt group 0 holds, cumulative over tiers.
func (o *Oracle) Depth(local []uint64) (depth [event.NumTiers]uint32) {
	for t := range event.Tier(event.NumTiers) {
		for int(depth[t]) < len(local) && o.holds(0, local[:depth[t]+1], t) {
			depth[t]++
		}
	}
	return depth
}

// Reusable returns the largest boundaries, in blocks, that all groups accept of a prompt of
// so many tokens, cumulative over tiers. The groups' blocks are multiples of size tokens.
func (o *Oracle) Reusable(list []event.CacheGroup, size int, local []uint64, tokens int) (depth [event.NumTiers]uint32) {
	align := size
	for _, g := range list {
		align = lcm(align, int(g.BlockSize))
	}
	for t := range event.Tier(event.NumTiers) {
		for p := (tokens - 1) / align * align; p > 0 && depth[t] == 0; p -= align {
			if !slices.ContainsFunc(list, func(g event.CacheGroup) bool {
				kind, _ := ParseKind([]byte(g.Kind))
				return !accepts(Group{Kind: kind, Block: int(g.BlockSize), Span: int(g.Span)}, p, func(end int) bool {
					return end/size <= len(local) && o.holds(g.Number, local[:end/size], t)
				})
			}) {
				depth[t] = uint32(p / size)
			}
		}
	}
	return depth
}

// accepts says literally whether a group can go on from the boundary.
func accepts(g Group, p int, held func(end int) bool) bool {
	from := 0
	switch g.Kind {
	case Window:
		from = p - (max(g.Span-1, 1)+g.Block-1)/g.Block*g.Block
	case Chunked:
		from = p / g.Span * g.Span / g.Block * g.Block
	case State:
		return p == 0 || p%g.Block == 0 && held(p)
	}
	for end := max(from, 0) + g.Block; end <= p; end += g.Block {
		if !held(end) {
			return false
		}
	}
	return true
}
