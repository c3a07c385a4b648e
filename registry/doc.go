// Package registry knows which workers there are: they announce themselves in
// a NATS key-value bucket and keep a lease there by heartbeats; HTTP clients
// and a static list add others; operators drain them.
//
// Invariants:
//   - Every key has one writer: a worker its announcement, HTTP clients a
//     rank's registration, operators the drained mark, a replica its own beat.
//   - A lease counts as lost only after a full lease period in which this
//     replica heard its own beats through the bucket. So a broker that is
//     away, a paused process or a clock that jumps never empties the index.
//   - Who left is known to replicas that start later: the tombstone of an ended
//     registration is in its key, with the position of the space's stream. The
//     key's revisions order registrations and departures.
//   - A worker that left and is back says so (Returned): what was applied of
//     its streams is void, whatever its incarnation.
//   - A value that is no registration is counted, shown and ignored: what was
//     known before stays.
//   - Subscribers have bounded queues. Beyond them they get Resync and look at
//     a snapshot; nothing waits for them.
//
// Ownership: the ledger is a state machine without clock or I/O; Registry.mu
// guards it. The registry's goroutine owns the watch, an Announcement's
// goroutine its key.
package registry
