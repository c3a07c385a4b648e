package groups

import (
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// recent is what came to a tier since nothing was on it: entries that may have left again, and may
// be others by now. A clear looks at these alone; where they are too many to remember, they pay for its look at all.
type recent struct {
	entries []uint32
	more    bool
}

// onTier is the bits of all groups on a tier.
func onTier(t event.Tier) uint64 { return ofTier << (uint(t) * event.MaxCacheGroups) }

// note has the next clear of the tier find the entry, of which something comes to it.
func (t *Table) note(at uint32, tier event.Tier) {
	r := &t.recent[tier]
	switch {
	case r.more || t.entries[at].held&onTier(tier) != 0:
	case len(r.entries) < 8+len(t.entries)/8:
		r.entries = append(r.entries, at)
	default:
		*r = recent{more: true}
	}
}

// clear drops all copies on a tier, or on all, and returns how many blocks of groups other
// than 0 that were.
func (t *Table) clear(tier event.Tier, all bool) (removed int) {
	if all {
		removed = t.Held()
		t.reset()
		return removed
	}
	if tier >= event.NumTiers {
		return 0
	}
	if t.recent[tier].more {
		for at := range t.entries {
			removed += t.clearOne(uint32(at), tier)
		}
	}
	for _, at := range t.recent[tier].entries {
		removed += t.clearOne(at, tier)
	}
	t.recent[tier] = recent{}
	t.tiers &^= 1 << tier
	return removed
}

// clearOne is clear for one entry, and a tier.
func (t *Table) clearOne(at uint32, tier event.Tier) (removed int) {
	t.steps++
	e := &t.entries[at]
	held := e.held & onTier(tier)
	if held == 0 {
		return 0
	}
	for left := held; left != 0 && len(t.more) > 0; left &= left - 1 {
		delete(t.more, copyOf{e.name, uint8(bits.TrailingZeros64(left))})
	}
	t.let(at, held)
	t.drop(at)
	return bits.OnesCount64(held &^ ofMain)
}
