// Package race tells the race detector of accesses to memory that it cannot see
// itself. It sees what compiled Go code reads and writes on the Go heap, in
// globals and on stacks; it does not see into assembly (string comparison,
// hashing, compression), the built-in clear of a slice, or mapped memory. Code
// that does such a thing to memory which other goroutines know of says so here,
// beside it; so the code that is tested is the code that runs.
//
// Invariants:
//   - Without the race detector it does nothing, and costs nothing.
//   - The two files with a build tag are on.go and off.go; nothing else of the
//     module is another for the race detector, but for how often an embedded NATS server syncs
//     (internal/nats/broker).
//
// Ownership: it keeps nothing.
package race
