// Package store keeps snapshots: in a directory, or in the object store of
// NATS. A store belongs to one stream.
//
// Which snapshots count is what the manifest says, newest first. It changes by
// compare-and-set only, and carries the fencing number of whoever claimed it
// last: a writer that lost its turn, or was stopped for an hour, changes nothing any more,
// whatever clocks say. Names carry the
// sequence and the fencing number too, so snapshots are found without it.
//
// Invariants:
//   - A snapshot that Put has not finished is under no name. Once Put returns,
//     it outlives a crash of the machine (directory) or what the server
//     promises (NATS).
//   - A manifest is replaced as a whole, or not at all.
//   - Fencing numbers rise, whatever becomes of the manifest, as long as files
//     with higher ones are there.
//   - An error of writing or syncing ends that file: nothing is tried again on it.
//   - Memory does not depend on the size of a snapshot.
//
// Ownership: a Store owns no goroutines. Files that Open returns are the
// caller's to close.
package store
