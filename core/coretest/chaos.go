package coretest

import (
	"math"
	"math/rand/v2"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// holderNumbers are on both sides of the word boundaries of a bitset.
var holderNumbers = [...]core.Holder{0, 1, 63, 64, 2, 65, 127, 300}

// chaos makes operations without any sense from alphabets so small that
// everything collides: hashes, contents, parents, holders and tiers.
func chaos(holders, engines, locals int) func(r *rand.Rand) func() Op {
	return func(r *rand.Rand) func() Op {
		engine := alphabet(r, engines)
		local := alphabet(r, locals)
		// Each history leans its own way, so that some grow and some stay
		// almost empty, with one tier or with all of them.
		maxLen := 1 + r.IntN(8)
		tiers := 1 + r.IntN(event.NumTiers)
		removals := 1 + r.IntN(6)
		roots := 2 + r.IntN(6)
		count := r.IntN(3) // never, always, sometimes
		shared := r.IntN(2) == 0
		last := map[core.Holder]uint64{}
		pick := func(from []uint64, n int) []uint64 {
			s := make([]uint64, n)
			for i := range s {
				s[i] = from[r.IntN(len(from))]
			}
			return s
		}
		return func() Op {
			op := Op{Holder: holderNumbers[r.IntN(holders)], Count: count == 1 || count == 2 && r.IntN(2) == 0}
			ev := &op.Event
			ev.Tier = event.Tier(r.IntN(tiers))
			n := 1 + r.IntN(maxLen)
			switch k := r.IntN(12 + removals); {
			case k < 11:
				ev.Kind = event.Stored
				ev.Engine, ev.Local = pick(engine, n), pick(local, n)
				if shared { // the usual case: the hash follows from the content
					for i := range ev.Engine {
						if r.IntN(16) > 0 {
							ev.Engine[i] = engine[(ev.Local[i]*7+uint64(i)*3+uint64(len(engine)))%uint64(len(engine))]
						}
					}
				}
				if parent, ok := last[op.Holder]; ok && r.IntN(roots) > 0 {
					ev.HasParent, ev.Parent = true, parent
				}
				switch r.IntN(12) {
				case 0: // any parent, known or not
					ev.HasParent, ev.Parent = true, engine[r.IntN(len(engine))]
				case 1: // its own parent
					ev.HasParent, ev.Parent = true, ev.Engine[r.IntN(n)]
				case 2:
					ev.HasParent, ev.Parent = true, r.Uint64()
				case 3: // hash-only
					ev.Local = nil
				}
				last[op.Holder] = ev.Engine[r.IntN(n)]
			case k == 11 && r.IntN(3) == 0:
				ev.Kind = event.Cleared
				ev.AllTiers = r.IntN(2) == 0
			case k == 11 && r.IntN(2) == 0: // Infer
				ev.HasParent, ev.Parent = true, engine[r.IntN(len(engine))]
				if r.IntN(2) == 0 {
					ev.DPRank = uint32(r.IntN(256))
				}
				ev.AllTiers = r.IntN(2) == 0 // StoreFrom
			case k == 11:
				ev.Engine = pick(engine, n)                   // Forget
				if ev.AllTiers = r.IntN(3) > 0; ev.AllTiers { // StoreCopies
					if ev.DPRank = uint32(r.IntN(4)); r.IntN(8) == 0 {
						ev.DPRank = math.MaxUint32
					}
				}
			default:
				ev.Kind = event.Removed
				ev.Engine = pick(engine, n)
			}
			return op
		}
	}
}

// alphabet returns n distinct hashes, the extreme values among them.
func alphabet(r *rand.Rand, n int) []uint64 {
	a := make([]uint64, n)
	for i := range a {
		a[i] = uint64(i)
		if r.IntN(4) == 0 {
			a[i] |= r.Uint64() << 32
		}
	}
	a[0], a[n-1] = 0, math.MaxUint64
	return a
}

// wide makes thousands of children of a few blocks and takes them away again.
func wide(r *rand.Rand) func() Op {
	const trunk = 40
	local := make([]uint64, trunk)
	for i := range local {
		local[i] = r.Uint64()
	}
	next := map[core.Holder]uint64{}
	return func() Op {
		h := core.Holder(r.IntN(4))
		op := Op{Holder: h, Event: event.Event{Kind: event.Stored}}
		ev := &op.Event
		name := func(i uint64) uint64 { return i<<1 | uint64(h%2) } // two schemes of hashes
		n := next[h]
		switch k := r.IntN(40); {
		case n == 0 || k == 0:
			ev.Local = local
			for i := range uint64(trunk) {
				ev.Engine = append(ev.Engine, name(i))
			}
			next[h] = max(n, trunk)
		case k < 30:
			ev.HasParent, ev.Parent = true, name(uint64(r.IntN(3)*(trunk/2-1)))
			// Other holders bring the same children in the same order.
			for i := range uint64(1 + r.IntN(3)) {
				ev.Engine, ev.Local = append(ev.Engine, name(n+i)), append(ev.Local, (n+i)*0x9E3779B97F4A7C15)
			}
			next[h] = n + uint64(len(ev.Engine))
		case k == 39 && r.IntN(20) == 0:
			ev.Kind, ev.AllTiers = event.Cleared, true
		default:
			ev.Kind = event.Removed
			for range 1 + r.IntN(8) {
				ev.Engine = append(ev.Engine, name(trunk/4+r.Uint64N(n)))
			}
		}
		return op
	}
}
