package route

import (
	"context"
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Guesses is an index that goes by the router's own choices. It is told each
// that is booked, after the lock is released. An *approx.Cache is one. It must not call the
// Router.
type Guesses interface {
	// Find calls each for every rank that is taken to hold the first block of a prompt, with how
	// many leading blocks it is taken to hold.
	Find(local []uint64, each func(id shard.RankID, blocks uint32))
	Placed(id shard.RankID, local []uint64)
	// EachRank calls f for every rank that is taken to hold blocks, with how many.
	EachRank(f func(id shard.RankID, blocks int))
	// RemoveWorker forgets what a worker is taken to hold.
	RemoveWorker(worker uint64)
}

// rankDepth is what a rank holds of the prompt.
type rankDepth struct {
	shard.RankID
	depth [event.NumTiers]uint32
}

// find looks the prompt up: in both ways where blocks of some workers may cover the token
// after each (Config.Eagle). Which workers' do is not known here, and a worker's are of
// one kind: it is found in one of them.
func (r *Router) find(ctx context.Context, s *scratch) {
	s.shares = s.shares[:0]
	s.listed = r.cfg.Shares != nil || r.cfg.Guesses != nil || len(s.eagle) > 0
	s.exact = r.cfg.Shares == nil && r.cfg.Index != nil // unless a lookup has bounds
	s.result.Tokens = s.tokens
	switch s.looked = true; {
	case r.cfg.Guesses != nil:
		r.cfg.Guesses.Find(s.local, s.guess)
	case r.cfg.Shares != nil:
		s.unknown = r.askShares(ctx, s, s.local)
		if len(s.eagle) > 0 {
			s.unknown = either(s.unknown, r.askShares(ctx, s, s.eagle))
		}
	case r.cfg.Index == nil:
		s.looked = false
	case s.listed:
		for _, local := range [...][]uint64{s.local, s.eagle} {
			r.cfg.Index.Find(local, &s.result)
			s.exact = s.exact && s.result.Exact()
			s.result.Each(func(id shard.RankID, depth [event.NumTiers]uint32) { s.shares = append(s.shares, rankDepth{id, depth}) })
		}
	default:
		r.cfg.Index.Find(s.local, &s.result)
		s.exact = s.result.Exact()
	}
}

func (r *Router) askShares(ctx context.Context, s *scratch, local []uint64) (unknown func(worker uint64) bool) {
	return r.cfg.Shares.Find(ctx, local, func(id shard.RankID, depth [event.NumTiers]uint32) {
		s.shares = append(s.shares, rankDepth{id, depth})
	})
}

// either is true of whom one of two is; nil is of nobody.
func either(a, b func(worker uint64) bool) func(worker uint64) bool {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(worker uint64) bool { return a(worker) || b(worker) }
}

// each calls f for every rank that was found: twice for one that is found in both ways.
func (s *scratch) each(f func(id shard.RankID, depth *[event.NumTiers]uint32)) {
	if !s.listed {
		s.result.EachMember(func(m shard.Member, depth [event.NumTiers]uint32) { f(m.ID(), &depth) })
		return
	}
	for i := range s.shares {
		f(s.shares[i].RankID, &s.shares[i].depth)
	}
}

// finds notes that the slot has something of the prompt, and that it has most of it so far.
func (r *Router) finds(slot uint32) {
	r.found[slot/64] |= 1 << (slot % 64)
	if d := r.depth[slot][event.Device]; d > r.most || d == r.most && slot < r.fullest {
		r.fullest, r.most = slot, d
	}
}

// forget zeroes what lookUp wrote.
func (r *Router) forget() {
	for i, word := range r.found {
		for ; word != 0; word &= word - 1 {
			r.depth[64*i+bits.TrailingZeros64(word)] = [event.NumTiers]uint32{}
		}
		r.found[i] = 0
	}
}

// words is how many are needed for a bit for each of so many slots.
func words(slots int) int { return (slots + 63) / 64 }

// newScratch returns one whose guess is a field, as a closure made for each request would be allocated
// for each.
func newScratch() *scratch {
	s := new(scratch)
	s.guess = func(id shard.RankID, blocks uint32) {
		k := rankDepth{RankID: id}
		for t := range k.depth {
			k.depth[t] = blocks
		}
		s.shares = append(s.shares, k)
	}
	return s
}
