// Package zmqfeed turns one engine's ZMQ stream (one endpoint: one
// data-parallel rank) into its batches in order, each exactly once, or says
// which are missing.
//
// A feed subscribes, then asks the engine's replay socket for everything after
// the last batch it applied, while live messages wait in a bounded queue; what
// comes twice is told by its sequence number. It asks for the last applied
// batch as well and compares its content: an engine that restarted and has
// already passed that number is told apart only so, as the protocol carries no
// incarnation. A hole in the live messages, and one in a replay (old publishers
// drop what a slow reader cannot take), is closed by asking again from where it
// begins. When the stream falls silent the feed asks, too, so that a lost last
// message is noticed.
//
// Invariants:
//   - Between two calls of Handler.Restart, the sequence numbers that a Handler
//     is told by Batch and Gap rise from 0 without a hole or an overlap (from
//     the position that the feed was given, if it was given one).
//   - Whatever an engine does, connections, replays and restarts come at bounded
//     rates, and those that bring nothing less and less often.
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
