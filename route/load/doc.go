// Package load counts what the live requests of a fleet occupy on each rank:
// prompt tokens that are yet to be computed, and blocks in use by decoding.
//
// Invariants:
//   - No count is ever negative; with no live request every count is zero and
//     nothing is kept.
//   - With reuse assumed, a block that several live requests of one rank share
//     counts once, however they came and went.
//   - Time is what the caller says it is.
//
// Ownership: a Table belongs to one goroutine at a time; package route guards
// its table with the router's lock.
package load
