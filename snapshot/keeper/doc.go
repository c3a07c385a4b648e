// Package keeper keeps the snapshots of a namespace's streams: it decides when
// one is due, lets one replica at a time write it, trims the streams, and loads
// the newest at a start.
//
// A snapshot is written, read back and verified, and only then counts: the
// manifest is changed by compare-and-set under the fencing number of the
// writer's claim. Then the stream is trimmed, up to what the oldest kept
// snapshot has, and never to the newest. Where a stream has no room for what comes next,
// two are kept, and a snapshot is due though nothing is new: else nothing could ever be.
//
// Invariants:
//   - A writer that lost its lease or its claim changes neither the manifest nor
//     a stream: the lease keeps two from working at once, the claim from doing
//     harm if they do.
//   - Nothing is trimmed that the oldest kept snapshot does not have, and nothing
//     at all while the stream does not go on from one of them. The message at the
//     oldest one's position stays, so that it can be compared.
//   - A start takes a snapshot that is whole, is the one that the manifest or
//     its name says, and is of the stream; or an older one, or none. What became
//     of the manifest does not matter: the files are looked through.
//   - What fails is counted by reason, logged, and tried again later; the index
//     goes on.
//
// Ownership: Run's goroutine owns what is known of each stream; a lease's
// goroutine its renewal, until it is released.
package keeper
