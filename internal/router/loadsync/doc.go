// Package loadsync carries the messages of packages route/replica and quota over NATS
// core, so that the routers of a namespace agree on the load, and on what tenants used.
//
// Invariants:
//   - Nothing is stored by the server: what is lost becomes a gap, which a
//     snapshot closes.
//   - What waits to be taken is bounded; the client drops what is beyond it.
//   - Subjects are outside those that the streams of events capture.
//
// Ownership: a Link owns its two subscriptions and the goroutine that runs its
// Replicas; a Tenants owns its one, and the goroutine that tells. The connection is the
// caller's.
package loadsync
