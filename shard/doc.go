// Package shard runs the index of every space as goroutine-owned shards.
//
// A space's chains are partitioned over its shards by the hash of their first
// block; each shard is one [core.Index] with one owner goroutine, its only
// writer. Readers walk the shard that their first block names, beside it.
//
// Invariants:
//   - Events of one publisher apply in the order of their Apply calls, though
//     they fan out over shards.
//   - A lookup touches one shard, takes no lock and writes no shared memory.
//   - What a rank stores by hash and only others of its hash scheme know is learned
//     from them at that moment, whichever shard it is in, and is the rank's own then.
//   - The answers, the set of blocks and the digest do not depend on the
//     number of shards or on how events are batched.
//   - A rank's state is replaced in one step: a lookup sees the old one or the
//     new one, whole (Replacement).
//   - Every queue is bounded; a full one blocks the caller of Apply.
//
// Ownership: Set owns the spaces, a Space its holder table and shards, a
// shard's goroutine its core.Index.
package shard
