package shard

import (
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Member is one rank's time in a space, from the first block stored for it until
// it is removed or replaced. Members are comparable; the zero value is none, of which
// nothing may be asked but whether it is Present.
type Member struct{ m *member }

// ID returns which rank it is.
func (m Member) ID() RankID { return m.m.id }

// Present reports whether the rank was neither removed nor replaced since; none is not.
func (m Member) Present() bool { return m.m != nil && !m.m.removed.Load() && !m.m.replaced.Load() }

// Number returns a small number that no other present rank of the space has,
// for use as an index into a table. After the rank is removed or replaced, or has got another number as it was
// cleared, another one may get it, so a table keeps the Member too and compares.
func (m Member) Number() int { return int(m.m.holder.Load()) }

// Held returns how many blocks the rank holds, over all tiers: a count that
// the owners publish after each batch.
func (m Member) Held() int { return int(m.m.heldAll.Load()) }

// Losses is what a rank has let go of since it became a Member.
type Losses struct {
	Blocks    uint64 // that its events took from it, over all tiers
	Published int64  // when the last batch that did was published, in Unix nanoseconds; math.MaxInt64 if unknown
}

// Losses returns what the index has been told that the rank let go of.
func (m Member) Losses() (l Losses) {
	for i := range m.m.parts {
		l.Blocks += m.m.parts[i].lost.Load()
		l.Published = max(l.Published, m.m.parts[i].lostAt.Load())
	}
	return l
}

// EachMember calls f once for every rank that is present, by rising number. It
// takes no lock.
func (s *Space) EachMember(f func(m Member)) {
	slots := *s.table.slots.Load()
	for i := range slots {
		if m := slots[i].Load(); m != nil && !m.removed.Load() {
			f(Member{m})
		}
	}
}

// EachMember is [Result.Each] with the Member in place of its id.
func (r *Result) EachMember(f func(m Member, depth [event.NumTiers]uint32)) {
	if r.space == nil {
		return
	}
	if r.grouped.is || r.pooled.is {
		for i := range r.grouped.found {
			if found := &r.grouped.found[i]; !found.m.removed.Load() {
				f(found.Member, found.depth)
			}
		}
		return
	}
	slots := *r.slots
	if !r.matches.Tiered() { // the common case, for less than EachHolder takes
		r.matches.Each(event.Device, func(h core.Holder, d uint32) {
			if m, ok := r.memberOf(slots, h); ok {
				f(m, [event.NumTiers]uint32{d, d, d, d})
			}
		})
		return
	}
	r.matches.EachHolder(func(h core.Holder, depth [event.NumTiers]uint32) {
		if m, ok := r.memberOf(slots, h); ok {
			f(m, depth)
		}
	})
}
