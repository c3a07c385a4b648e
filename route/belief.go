package route

import (
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// belief is how far what the index has of a rank agrees with what its engine finds, where
// nothing explains a difference: nothing went, came late, or was stored meanwhile. Events are
// lost, then, or the hashes are others. What the index has too much counts for the part that is
// found, and what it lacks nobody can count; in both cases somebody is to read the rank anew. It is
// of what the index calls the rank (shard.Member), and so begins anew with that, but for what it
// knows of the engine, and of how often it was asked. The zero belief believes all. The lock of its
// Router guards it.
type belief struct {
	doubted    bool
	correction // of what the index has, how much is found
	reports    int
	off, all   float64   // tokens expected or found but not both, and either; the last count most
	last       time.Time // when it learnt last
	counts     bool      // the engine has found something once: one that never says so may not count
	ask        pace.Pace
}

// anew is the belief in what was read anew.
func (b *belief) anew() belief { return belief{counts: b.counts, ask: b.ask} }

const (
	// doubtFrom and trustFrom are the parts that are off from which on, and below which, a rank is
	// doubted no more.
	doubtFrom, trustFrom = 0.2, 0.1
	// doubtAgain is after how long a rank that is doubted still is read anew once more, at first,
	// and doubtSeldom at most.
	doubtAgain, doubtSeldom = 10 * time.Second, time.Hour
	// doubtOld is after how long without a report what the index has counts whole again until the
	// next one, as a rank that counts for nothing may get no requests that could tell.
	doubtOld = time.Minute
)

// credit is which part of what the index has counts.
func (b *belief) credit(now time.Time) float64 {
	if now.Sub(b.last) > doubtOld {
		return 1
	}
	return b.part()
}

// learn takes what an engine found where the index has so many tokens.
func (b *belief) learn(has, found, block int) {
	const keep = 1 - 1.0/correctOver
	off := max(has-found, found-has)
	if off <= block {
		off, found = 0, max(has, found)
	}
	if has == 0 && off == 0 {
		return
	}
	b.reports = min(b.reports+1, correctAfter)
	b.off, b.all = keep*b.off+float64(off), keep*b.all+float64(max(has, found))
	if has > 0 {
		b.correction.learn(has, found)
	}
	switch wrong := b.off / b.all; {
	case b.reports < correctAfter:
	case wrong > doubtFrom:
		b.doubted = true
	case wrong < trustFrom:
		b.doubted = false
	}
}

// believe learns from what an engine says of a prompt of which the index has so many tokens there.
// It reports whether the rank is to be read anew.
func (r *Router) believe(id shard.RankID, has int, out *Account, now time.Time) (doubt bool) {
	m := r.member(id)
	if m == nil || m.stale || out.Estimated || !r.settings.Doubt {
		return false
	}
	b := &m.belief
	b.counts = b.counts || out.Actual > 0
	switch out.Miss {
	case account.NoMiss, account.Unknown:
	default:
		return false
	}
	if out.Miss == account.Unknown {
		r.stats.Contradicted++
	}
	if !b.counts {
		return false
	}
	b.last = now
	b.learn(has, out.Actual, r.cfg.BlockSize)
	if !b.doubted || r.cfg.Doubted == nil || !b.ask.Ready(now) {
		return false
	}
	b.ask.Later(now, now, doubtAgain, doubtSeldom, id.Worker)
	r.stats.Doubted++
	return true
}
