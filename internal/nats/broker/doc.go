// Package broker is how a process gets NATS: it starts a server inside the
// process, joins one that another process of this machine runs, or connects
// to the user's cluster.
//
// JetStream, embedded by default: a durable, ordered log without a second thing to
// operate.
//
// Invariants:
//   - An embedded server keeps its data in the stated directory (0700), has
//     every message in its file before it is acknowledged, listens on
//     127.0.0.1 only and lets in nobody without the generated credentials
//     (0600, beside the data).
//   - After a run that did not end in order it serves no message whose sum it
//     has not checked.
//   - At most one process runs the server of a data directory; a file lock
//     says which, so that the lock of a killed process is free at once.
//   - A connection reconnects for ever. While it is down, publishing fails at
//     once instead of filling a hidden buffer.
//
// Ownership: a Broker owns its server, its lock and its connection.
package broker
