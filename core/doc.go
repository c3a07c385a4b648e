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
// # What it is made of
//
// A chain is stored once, in runs: stretches of blocks with the children that leave
// them at any offset. DESIGN.md has the picture.
//
//   - Content is the local hashes, in pieces of 256, once for all holders.
//   - Coverage says how many leading blocks of the run each holder has: its held
//     length. Two holders stand in the body itself, up to 16 in a list; more make a
//     wide table: two bitsets, and a held length for those who do not have the
//     commonest one, so that a lookup takes the others 64 at a time. To look through the coverage
//     of more than 64, and to copy it, is paid for by stored and removed blocks:
//     where the runs of a shared prompt would change shape for each event of one
//     rank, they stay as they are until then.
//   - Engine hashes are in segments of 16 that only the writer reads. The directory
//     finds a block by its engine hash with 12 entries a cache line; it stores no hash
//     but a tag, and checks against the segment.
//   - Descendants keep the hashes of evicted ancestors known while something below is
//     held. They count child runs, and know the highest offset among them.
//   - An exception exists only for what is not ordinary: holes, lower tiers, copies
//     beyond the first, hashes of the holder's own. A hole ends the held length there.
//   - Tiers: a run in which someone has blocks on a lower tier has coverage for each
//     cumulative level; the others answer all levels with the first. A lookup reads
//     the levels one after the other beside the writer, then cuts each to the one
//     above it: what ended there was absent on all of its tiers.
//
// Memory is accounted by kind with the allocator's size classes. Beyond the budget,
// which all indexes of the process share, blocks of holders with more than an equal
// share of their index are refused, a sixteenth (at least 4 MiB) further on those of
// all. A refused block ends what its engine hash meant before, because its engine has
// given the hash away: so it does not matter that, with several shards, the others
// have forgotten it before the storing shard refuses. Removals are always applied, and
// a hole takes memory; that is bounded by what is held.
//
// Rejected inside of it: an entry for each block (dependent accesses and tens of bytes
// each); flat maps (they stop the writer when they grow and do not shrink); a table
// for each worker (a known chain would cost memory for each block again); sequence
// locks (readers retry under a burst); interval lists of holes in the coverage (a
// match ends at the first hole anyway); a sparse directory or filters before it
// (removals come in any order, and unknown ones must be told apart).
//
// # Ownership
//
// The caller (package shard) owns an Index and is its only writer.
// Holder numbers are the caller's, too: dense, small, one per (worker,
// dp_rank), the same in all shards of a space.
package core
