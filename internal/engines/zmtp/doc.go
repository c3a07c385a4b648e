// Package zmtp speaks as much of ZMTP 3.0, ZeroMQ's wire protocol, as inference
// engines need: the NULL mechanism over TCP and Unix sockets, as SUB and DEALER
// towards an engine and as PUB and ROUTER in an engine's place.
//
// Invariants:
//   - A peer's declared sizes allocate nothing: memory grows with the bytes
//     that arrived, up to Options.MaxMessage. A message beyond it is read past,
//     and the connection goes on.
//   - Reading a message into a Message that was used before allocates nothing.
//   - No goroutine is started here.
//
// Ownership: one goroutine reads from a Conn; any may write to it or close it,
// which ends the read.
//
// A client of our own, because the pure-Go library there is (go-zeromq/zmq4
// v0.17.0, read in source) allocates whatever a peer declares, has no receive
// limit and no client-side answer to heartbeats, races between its reconnecting
// and Close, and reads each frame with system calls of its own.
package zmtp
