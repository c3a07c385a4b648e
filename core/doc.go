// Package core is the exact prefix index of one shard of one space: for a
// chain of block hashes it tells, for every holder, how many leading blocks
// the holder has.
//
// Invariants:
//   - Pure: no clock, network, disk, goroutine, log or chance. The same calls
//     give the same bytes; under another [Key] the same answers, pieces of cuts,
//     dumps and digests.
//   - One writer at a time; any number of concurrent readers, which take no
//     lock and write no shared memory.
//   - Answers are exact in the sense of [Index.Find].
//
// Ownership: the caller (package shard) owns an Index and is its only writer.
// Holder numbers are the caller's, too: dense, small, one per (worker,
// dp_rank), the same in all shards of a space.
package core
