// Package snapshot writes the index of a space to a file and reads it back.
//
// A snapshot is of one moment: shard.Cut gives out what the index was at one
// point of the order of batches, while later batches are applied. The ranks'
// event ids are noted at the same point (ingest.Cut), so every rank's blocks
// and its last id belong together. Reading the stream on from the noted
// position is exact, although that may lie before the point: what a rank had
// applied is told by its event ids and passed over, and ranks do not depend on
// each other.
//
// The shards give the cut out run by run, in slices between batches; before a run is
// changed that was not given out yet, its owner gives it out (core/cut.go). So batches
// wait for one slice at most, lookups for nothing, and the pieces together are one state.
// The partitions of ingest stand still for as long as queueing one task takes.
//
// Rejected: copying the index in one go (it would stop for as long as that takes); a
// dump for each rank (a block is written once for each holder, and read so); runs as
// they are found, healed by replaying the stream (a store whose parent was removed in
// between would be lost, and copies would be counted twice).
//
// The file's bytes are in docs/stored-format.md. A run is stored once for all
// holders, as in the index; engine hashes that follow from the block hashes are
// not stored. A section is what one shard gave out; runs come after those they
// leave.
//
// Invariants:
//   - A file that differs in any bit from what was written, or ends early, is
//     refused with a reason, before anything of it is loaded.
//   - Decoding trusts no declared length further than the bytes reach.
//   - Memory is bounded by Options, whatever the size of the index: a writer
//     that cannot keep up gives up; the index does not wait for it.
//   - A version that is not known is refused by number.
//
// Ownership: a Writer's chunks belong to the shard that fills them, then to its
// section's goroutine, then to whoever writes the file.
package snapshot
