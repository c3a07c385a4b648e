// Package probe gathers the facts by which package doctor judges a fleet: it asks every
// engine over HTTP, sends each rank a prompt that nobody has sent before, once and once
// more, and listens to what becomes of it: to what workers publish in NATS, or to the
// socket of an engine that replicas read themselves. Prefill and decode workers get one
// together.
//
// Invariants:
//   - Nothing of a fleet is changed but its caches: a prompt of some blocks and one token
//     of answer a rank, three times at most.
//   - Everything that is waited for has a deadline, and at most Config.AtOnce workers are
//     asked at a time.
//   - What fails becomes a fact.
//
// Ownership: Gather owns every goroutine, subscription and connection that it makes, and
// ends them before it returns.
package probe
