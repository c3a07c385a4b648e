package shard

import "github.com/kvatlas/kvatlas/core"

// Config holds the settings of a Set. The zero value is ready.
type Config struct {
	Shards int // owner goroutines per space; 0 means 1
	Queue  int // batches a shard's queue holds before Apply blocks; 0 means 64
	// NewIndex makes a shard's index; nil means the production index.
	NewIndex func() core.Index
}

// RankID names one holder of a space: a worker's data-parallel rank.
type RankID struct {
	Worker uint64
	DPRank uint32
}

// The API that the rest of kvatlas uses:
//
//	func New(cfg Config) *Set
//	func (s *Set) Open(sp event.Space) (*Space, error)  // makes it if absent
//	func (s *Set) Lookup(sp event.Space) *Space         // nil if absent
//	func (s *Set) Spaces() []event.Space                // sorted
//	func (s *Set) Close()                               // drains and stops the owners
//
//	// Apply hands b to the owners and returns; done is called once all of it
//	// is applied, from an owner goroutine, and must not block. b and its
//	// slices must not change until then.
//	func (s *Space) Apply(ctx context.Context, b *event.Batch, done func(core.Outcome)) error
//	func (s *Space) ApplyWait(ctx context.Context, b *event.Batch) (core.Outcome, error)
//	// RemoveWorker drops the worker's blocks on all its ranks (or on one) and
//	// frees its holder numbers.
//	func (s *Space) RemoveWorker(ctx context.Context, worker uint64) error
//	func (s *Space) RemoveRank(ctx context.Context, id RankID) error
//	func (s *Space) Find(local []uint64, r *Result)
//	func (s *Space) Ranks() []RankStat  // sorted: worker, rank, held blocks per tier
//	func (s *Space) Digest(ctx context.Context) (uint64, error)
//
//	// Result is reused by the caller; it allocates nothing once warm.
//	func (r *Result) Each(f func(id RankID, depth [event.NumTiers]uint32))
//	func (r *Result) Sum(t event.Tier) (ranks int, blocks uint64)
