package coretest

import (
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// tiers makes operations that move whole stretches of a few long chains between
// the tiers of many holders: what pulls the levels of one rank apart, in runs
// whose coverage is inline, a list, and wide. Chains leave one another just
// before their tails, so tails are swapped; holes come and go.
func tiers(r *rand.Rand) func() Op {
	step, salt := 1+r.IntN(7), r.Uint64()
	holders := make([]core.Holder, 3+r.IntN(60))
	if r.IntN(4) == 0 { // crowds
		holders = make([]core.Holder, 65+r.IntN(100))
	}
	for i := range holders {
		holders[i] = core.Holder(i * step)
	}
	levels := 2 + r.IntN(event.NumTiers-1)
	length := 16 << r.IntN(4)
	blocks := func(chain []uint64, n int) []uint64 {
		chain = slices.Clone(chain)
		for range n {
			chain = append(chain, r.Uint64())
		}
		return chain
	}
	chains := [][]uint64{blocks(nil, length)}
	return func() Op {
		h := holders[r.IntN(len(holders))]
		op := Op{Holder: h}
		ev := &op.Event
		ev.Tier = event.Tier(r.IntN(levels))
		at := r.IntN(len(chains))
		chain := chains[at]
		hashes := blockhash.SequenceHashes(nil, chain)
		if h%5 == 4 { // a hash scheme of its own
			for i := range hashes {
				hashes[i] ^= salt
			}
		}
		lo := r.IntN(len(chain))
		hi := min(len(chain), lo+1+r.IntN(length))
		switch k := r.IntN(20); {
		case k < 7: // a chain from its root, mostly all of it
			ev.Kind, ev.Engine, ev.Local = event.Stored, hashes, chain
			if r.IntN(3) == 0 {
				ev.Engine, ev.Local = hashes[:hi], chain[:hi]
			}
		case k < 9: // another answer to the same prompt
			n := len(chain) - 1 - r.IntN(min(len(chain)-1, 8))
			chain = blocks(chain[:n], 1+r.IntN(12))
			if len(chains) < 6 {
				chains = append(chains, chain)
			} else {
				chains[at] = chain
			}
			ev.Kind, ev.Engine, ev.Local = event.Stored, blockhash.SequenceHashes(nil, chain), chain
		case k < 12: // offloaded, or loaded: what is known, on another tier
			ev.Kind, ev.Engine = event.Stored, hashes[lo:hi]
		case k < 17: // evicted: a tail, tail first, or a hole
			if ev.Kind = event.Removed; r.IntN(3) > 0 {
				hi = len(hashes)
			}
			ev.Engine = hashes[lo:hi]
			slices.Reverse(ev.Engine)
		case k < 19:
			ev.Kind, ev.Engine = event.Removed, hashes // so that there is room again
		default:
			ev.Kind, ev.AllTiers = event.Cleared, r.IntN(2) == 0
		}
		return op
	}
}
