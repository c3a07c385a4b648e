package core

import (
	"math"

	"github.com/kvatlas/kvatlas/event"
)

// moreCopies adds to a number of copies, which a dump or a snapshot says: it may be any, and never wraps.
func moreCopies(have, n uint32) uint32 { return have + min(n, math.MaxUint32-have) }

// StoreCopies implements Index.
func (x *Radix) StoreCopies(h Holder, tier event.Tier, hash uint64, n uint32) Outcome {
	if n == 0 {
		return Outcome{}
	}
	out := x.Store(h, &event.Event{Kind: event.Stored, Tier: tier, Engine: []uint64{hash}}, true)
	if n == 1 || out.Stored+out.Duplicate == 0 {
		return out
	}
	p, _ := x.lookup(h, hash)
	x.preserve(p.run)
	ex := x.makeException(p.run, h)
	ex.setCopies(p.spot, int(tier), p.pos, moreCopies(ex.copiesOf(p.spot, int(tier), p.pos), n-1))
	x.recomputeBytes(ex)
	return out
}
