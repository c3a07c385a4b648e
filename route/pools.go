package route

import (
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
)

// What a pool is said to have may be gone: some stores tell what is put in, and not what is
// taken out. So what pools are said to have beyond a rank's own counts for the part that engines
// find of it, of the last reports, and what they lack makes nobody doubt the rank.

// believePools leaves of what pools are said to have the part that is found, as the leading one. It
// returns the tokens that they are said to have beyond the rank's own.
func (r *Router) believePools(depth *[event.NumTiers]uint32, prompt int) (pool int) {
	own, all := depth[event.Disk], depth[event.External]
	if part := r.pools.part(); part < 1 {
		depth[event.External] = own + uint32(part*float64(all-own))
	}
	return min(int(all)*r.cfg.BlockSize, prompt) - min(int(own)*r.cfg.BlockSize, prompt)
}

// believeBeside learns from what an engine says of a prompt of which a pool was said to have a
// part: of the pool by what was found beyond the rank's own, and of the rank by the rest.
func (r *Router) believeBeside(f *followed, out *Account) (doubt bool) {
	rank := *out
	rank.Actual = min(out.Actual, f.own)
	if rank.Actual == f.own && out.Miss == account.Unknown {
		rank.Miss = account.NoMiss // what is missing is the pool's
	}
	if rank.Miss == account.NoMiss && !out.Estimated {
		r.pools.learn(f.pool, out.Actual-f.own)
	}
	return r.believe(f.at, f.own, &rank, r.cfg.Now())
}
