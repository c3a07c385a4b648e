// Package kvatlas is the library: an index of which worker holds the KV cache of
// which prompt prefix, and the choices that go by it, in the caller's process.
//
// [Open] an [Atlas], take the [route.Router] of a model from it, and ask that. The
// index is fed by the events that workers publish through NATS, by the caller's
// own calls of [Atlas.Apply], or, in approximate mode, by the choices themselves.
//
// Invariants:
//   - Nothing here has a type of a NATS client, of an HTTP server, or of any
//     other library: what is exported is this module's and the standard one's.
//   - The index is that of kvindexer and kvrouter: package replica is what all three
//     are made of.
//   - Close ends everything that Open began.
//
// Ownership: an Atlas owns its replica and its routers; the routers' methods may be
// called from anywhere at the same time.
package kvatlas
