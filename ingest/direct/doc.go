// Package direct reads engines' own ZMQ sockets into the index, without NATS:
// one feed for each rank, from the engine's publisher, its replay socket and the one of its snapshots.
//
// Invariants:
//   - Batches of a rank are applied in the engine's order, each once, and the
//     next is taken when the one before is applied: a slow index holds the feed
//     back, and the feed's bounded queue the engine.
//   - How a rank stands, and what loss and restarts do to it, is said by
//     [follow.Rank], which each feed drives; what is counted is kept beside it.
//   - Positions are in memory only: a replica that starts asks each engine's
//     replay for everything it still has, or for a snapshot.
//
// Ownership: a Direct owns its feeds and their goroutines; a feed's goroutine is
// the only writer of its rank. Unfollow and Close return when it has ended, and
// leave the rank's blocks to the caller.
package direct
