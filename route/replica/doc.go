// Package replica lets the routers of one index space tell each other what
// they have placed, so that each knows the whole load.
//
// Every router numbers its messages of changes. A peer that misses one, or
// meets a router for the first time, asks for a snapshot of that router's live
// requests and goes on from the number that the snapshot covers. Heartbeats
// carry the last number, so the loss of a last message is noticed too, and a
// silent router's requests are forgotten. A router that meets no other sends
// heartbeats only. Progress of generation is told only where output blocks are
// tracked; otherwise a peer's load.Load.OutputLeft stays at what was expected.
//
// What a router is about to place, where others may choose at the same moment, goes beside the
// numbered messages (bids, and fetches under way): soon of no use, it is neither asked for again nor in snapshots.
//
// Routers share bookings, not sums: sums drift when a message is lost; bookings can be
// told again.
//
// Invariants:
//   - A router changes only its own bookings; everybody else's copy of them
//     changes by its messages alone, in their order, each at most once.
//   - When messages get through again, every router's load becomes that of all
//     live requests, whatever was lost, doubled or delayed before.
//   - Every queue is bounded. What does not fit becomes a gap, which a snapshot
//     closes.
//
// Ownership: Replicas.mu guards the peers and the order of messages; it is
// taken before the router's lock. Replicas.queue has a lock of its own, taken
// after the router's, as Record is called under that. The transport is called
// with mu held and must not deliver from within.
package replica
