// Package zmqfeed turns one engine's ZMQ stream (one endpoint: one
// data-parallel rank) into its batches in order, each exactly once, or says
// which are missing.
//
// What the numbers mean (what is next, held, replayed, lost; that the engine is another
// process) is said by [follow.Rank] alone. A [Follower] drives it and tells a [Handler];
// a [Feed] is a Follower with the engine's sockets: it subscribes, brings the replays and
// snapshots that the rank asks for, while live messages wait in a bounded queue, and tells the rank when
// the wire broke, has been silent, or the machine slept.
//
// Invariants:
//   - Between two calls of Handler.Restart, the numbers that a Handler
//     is told by Batch and Gap rise from 0 without a hole or an overlap (from
//     the position that the feed was given, if it was given one).
//   - Whatever an engine does, connections, replays and restarts come at bounded
//     rates, and those that bring nothing less and less often.
//   - A snapshot takes the place of what was told once it is known to be readable as a whole.
//     While one is under way live messages wait, and for nine times as long after it none is
//     asked for (at most Config.ReplayPause).
//   - A replay is not asked for what waits of a connection that is gone: another
//     process may answer.
//   - Whatever was missed, dropped or refused is counted, by reason.
//   - Memory is bounded: Config.QueueMessages, Config.QueueBytes and one
//     message beyond. When the queue is full the feed stops reading; TCP then
//     holds the engine back, which drops at its own high-water mark, and that is
//     a hole like any other.
//
// Ownership: [Feed.Run] owns the connections, the decoder and one goroutine
// that reads; all of them end before it returns. A Handler is called on Run's
// goroutine only. Stats may be read by anyone.
package zmqfeed
