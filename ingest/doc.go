// Package ingest reads what workers publish and applies it to the index.
//
// For every stream of a namespace a reader takes messages in stream order and
// hands each to the partition that its worker's subject names; partitions decode and
// order beside each other, so decoding is parallel and the order within a
// worker is kept without a merge.
//
// Invariants:
//   - Events of one (worker, dp_rank) reach the index in the order of their
//     ids, each at most once. A message that came before its predecessor is
//     held back, boundedly, until that arrives or is known to be lost.
//   - What is missing because a message cannot be used is not waited for, and
//     nothing is waited for longer than Config.GapWait.
//   - Nothing is lost silently: what is not applied is counted by reason, and
//     a missing event begins the recovery of its rank: the publisher is asked
//     for the events, or for all that the rank holds. Meanwhile the rank's
//     events are held back, boundedly; beyond, they are dropped and asked for.
//   - Whatever a publisher answers, it is asked again later and later while that
//     does not help, and never more often than at a rate; a recovery keeps its
//     place among those under way for a bounded time.
//   - A rank that could not be recovered is marked incomplete and tried again
//     at its heartbeats; one whose blocks the memory budget refused is marked
//     truncated, and nothing is asked for until there is room.
//   - Of a rank that left the index holds nothing, whatever is still read of it
//     from before: by the position of the stream, not by clocks. Its next event,
//     or its registration, has the publisher asked for all it holds; nothing waits
//     for what it told before.
//   - A message that cannot be understood is counted and skipped; it never
//     stops a reader.
//   - A stream's position is the highest sequence up to which every message is
//     applied or skipped. Messages are acknowledged up to it, never beyond.
//   - The server's consumer is a shadow of the reader, for its lag to be seen:
//     reading always starts at the position that the reader knows.
//   - A position is good only if the stream has the message that was read
//     there, which its time tells; it is compared when a session begins, and the
//     stream's end while one lasts. With one that is void the reader begins at the
//     stream's start, and every publisher is asked once for all it holds. What is
//     void again and again is waited for, longer each time.
//   - Sessions that end again and again without a message are an error of Ready,
//     unless it is the server that is away.
//   - A reader whose stream was trimmed beyond its position takes up a newer
//     snapshot (Config.Reload): rank by rank, each in one step for lookups, and
//     only where the index knows less of the rank than the snapshot does.
//
// What is published without a stream goes through the same partitions. A worker that
// is heard of for the first time there is asked for all that it holds.
//
// Ownership: the discovery goroutine owns the set of readers, a reader's
// goroutine its consumer, a partition's goroutine the ranks of its workers. A
// decoded message belongs to its partition until it is handed to the index, and to
// the index until that calls back. A recovery's goroutine owns the replacement
// that it fills, and posts what it got to the partition. Close ends them all.
package ingest
