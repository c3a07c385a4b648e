// Package pace bounds how often something is tried, whatever comes of it: what was
// in vain is tried again later and later, and nothing more often than at a rate.
// Every loop that asks somebody else goes by it.
//
// Invariants:
//   - A wait is at least half of the least, and at most the most, that the caller
//     gives; it doubles while nothing helps, and progress ends it.
//   - The same seed and the same history give the same waits.
//   - It reads no clock: the caller tells the time.
//
// Ownership: a Pace and a Quota belong to one goroutine, or to who holds its lock.
package pace
