// Package corpus reads recorded schedules of lookups, stores and removals, so
// that every index is measured on the same work, and groups their events into
// the batches that publishers send.
//
// Invariants:
//   - Reading never panics and never allocates more than the input's own size
//     allows; every declared count is read against the bytes that remain.
//   - Grouping keeps the order of each worker's events.
//
// Ownership: a Corpus owns all hash slices that its events, requests and
// batches refer to; they are shared and never written again.
package corpus
