// Package publish is the engine's side of kvatlas: it numbers a worker's KV
// cache events, batches them and brings them to every replica.
//
// Invariants:
//   - Every event of a (worker, dp_rank) gets the id after the one before. An
//     event that is dropped keeps its id, so that readers see the gap.
//   - What is accepted and not yet acknowledged is bounded in bytes and in
//     messages. When it is full the caller waits, or the event is dropped and
//     counted, by setting.
//   - Order: at most Window messages are unacknowledged at a time, and after a
//     failure nothing new is sent until every one of them is acknowledged, sent
//     again oldest first. So a message appears in the stream after at most
//     Window-1 of its successors, and a reader that holds that many back, by
//     event id, sees the order in which the events happened. With Window 1 the
//     stream itself is in order.
//   - Of the oldest message a copy is sent when its acknowledgement is late: a server
//     that was killed never sends it. One that has too much to do sends it late: so any
//     attempt's acknowledgement counts, copies come after twice as long each time, and
//     after a failure one message is in flight, then one more for each that lands
//     (congestion.go). Meanwhile the batch that is open grows.
//   - Where the stream takes batches, publishers of one process that share a Group send
//     together what waits while the server has the batch before. A message is the Group's
//     until that is acknowledged or refused; then, if need be, its publisher's again, which
//     sends it alone, so that a batch never has a message that the server knows. What a
//     closed publisher left is not sent.
//   - A message is stored once: its id makes the server drop the copy of a
//     retry within the stream's duplicate window, and event ids tell the
//     reader beyond it.
//   - What the worker did is also kept here: an index of what each rank holds
//     and its last events, for replicas that missed some (package recovery).
//     Dropped events are in it, so that a replica can get even those.
//   - Config.Registration has the worker announced in the registry: after the
//     publisher is open, with heartbeats that keep a lease, until its last event
//     is out and Close unregisters it.
//
// Over core NATS a message is sent once and never again: nothing is in flight,
// and a message that does not get away shows as a gap.
//
// Ownership: callers own the slices they pass, which are copied. Publisher.mu
// guards the open batch and the queue; the sender goroutine owns the messages
// in flight and ends with Close. A Group's goroutine, one a stream and connection, ends when
// it has nothing to send: after a time of Config.AckWait at most for each batch.
package publish
