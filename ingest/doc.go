// Package ingest reads what workers publish and applies it to the index.
//
// For every stream of a namespace a reader takes messages in stream order and
// hands each to the partition that its worker's subject names; partitions decode and
// order beside each other, so decoding is parallel and the order within a
// worker is kept without a merge.
//
// Invariants:
//   - What a rank's messages, heartbeats, gaps, departures and recoveries mean is
//     said by [follow.Rank] alone, which has no clock and no goroutine; this package
//     gives it what comes, and carries out what it says, in order.
//   - Nothing is lost silently: what is not applied is counted by reason.
//   - A publisher is never asked more often than at a rate, less and less while it is
//     silent, and a recovery keeps its place among those under way, which publishers
//     share, for a bounded time.
//   - A message that cannot be understood is counted and skipped; it never
//     stops a reader.
//   - A stream's position is the highest sequence up to which every message is
//     applied or skipped. Messages are acknowledged up to it, never beyond. A space
//     may have several streams, each with some of its workers: the partitions are the
//     space's, and each stream has a window, a position and an end of its own.
//   - The server's consumer is a shadow of the reader, for its lag to be seen:
//     reading always starts at the position that the reader knows.
//   - A position is good only if the stream has the message that was read
//     there, which its time tells; it is compared when a session begins, and the
//     stream's end while one lasts. With one that is void the reader begins at the
//     stream's start, and every publisher is asked once for all it holds. What is
//     void again and again is waited for, longer each time.
//   - A server that answers late is waited for: a session goes on while the server has its
//     consumer, as to begin again costs requests and throws away what is on its way; and
//     one that ended because an answer was late is followed by one that waits twice as
//     long, until a message comes.
//   - Sessions that end again and again without a message, and a stream of which
//     nothing comes although it has more, are errors of Ready, unless it is the server
//     that is away.
//   - A reader whose stream was trimmed beyond its position takes up a newer
//     snapshot (Config.FindSnapshot): rank by rank, each in one step for lookups, and
//     only where the index knows less of the rank than the snapshot does.
//
// The walk of one message, from bytes to the index. Every way in ends at the same
// machine; what an ordinary message enters is thirteen files here and in follow:
//
//	a stream           core NATS            an engine's own socket
//	reader.go          live.go              zmqfeed/session.go   read, live: a queue
//	  dispatch           live                 follower.go        Step
//	window.go    add     |                    |
//	      \______________/                    |
//	partition.go handle: decoded, offer       |
//	work.go      splitByRank                  |
//	effects.go   step                         |
//	source.go    source: its stream           |
//	      |                                   |
//	follow: message.go (state.go, presence.go, rivals.go, told.go, others.go) ← engine.go
//	      |        applied, held back or dropped, by the rank's state
//	      |  effect.go                        |
//	effects.go   submit                     zmqfeed/follower.go  apply: decoded now
//	      |                                 direct/rank.go       Batch
//	      |                                   |
//	      +------------- Applier.Apply -------+
//	work.go      applied, release: the index is done with it
//	window.go    complete: the position moves on
//
// recovery.go and ask.go ask publishers, zmqfeed/replay.go engines, and bring what they
// answer to follow.
//
// What is published without a stream goes through the same partitions. A worker that
// is heard of for the first time there is asked for all that it holds.
//
// Events of one publisher apply in order, and between publishers there is none: that is
// all that engines promise, and all that answers need.
//
// Ownership: the discovery goroutine owns the set of readers, a reader's
// goroutine its consumer, a partition's goroutine the ranks of its workers. A
// decoded message belongs to its partition until it is handed to the index, and to
// the index until that calls back. A recovery's goroutine owns the replacement
// that it fills, and posts what it got to the partition. Close ends them all.
package ingest
