// Package fairqueue decides who goes first of those that wait: tenants share by their
// weights, and their own requests keep an order of theirs.
//
// Invariants:
//   - A Queue is a pure state machine without clock, goroutine or lock.
//   - Tenants of one priority that wait are served in proportion to their weights, to
//     within one request each, whatever they ask for (start-time fair queueing: Goyal,
//     Vin and Cheng, 1996).
//   - Tenants of higher priority go first, but a tenant's priority rises by one with
//     each Config.Age that it waits without being served, up to the highest that waits:
//     nobody starves.
//   - Within a tenant the key orders. It is a time, so none waits for others for ever.
//   - No more wait than Config.Limit. Beyond, the tenant with most of them by its weight
//     loses its last.
//
// Ownership: whoever calls it holds its lock.
package fairqueue
