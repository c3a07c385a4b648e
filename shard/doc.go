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
//   - A pool that workers share is a holder of its own, and no rank: what happens to them
//     does not change it (pools.go). When a worker's registration becomes known does not change it
//     either, within bounds (pools_early.go).
//   - Every queue is bounded; a full one blocks the caller of Apply.
//   - What is cleared, removed or replaced is nobody's at once, and is taken apart in steps between tasks, so that
//     nobody's events wait for that (clear.go). Nor do they wait for a cut, a dump, or what is too old to leave a pool.
//
// What was decided: one owner goroutine a shard with readers beside it, so that no lock
// is ever waited for, by a lookup that a burst would stop or by the writer, and order needs
// no argument. A chain belongs to the shard of its first block: a lookup touches one shard,
// whatever their number; with shards by every block's hash it would visit all. Full
// queues block: load shows as lag, which is measured, and not as memory.
//
// Were one hot prefix more than an owner can write, its shared runs would be a trunk with
// an owner of its own, and the branches be partitioned by their first own block; a lookup
// would walk the trunk, then one branch. Or owners would resolve engine hashes outside and
// apply inside. Neither is built.
//
// Ownership: Set owns the spaces, a Space its holder table and shards, a
// shard's goroutine its core.Index.
package shard
