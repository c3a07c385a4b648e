// Package bench measures the index, operation by operation, beside the floor
// of each: what the same machine needs, in the same run, for the memory
// accesses that nothing can avoid. Its code is in the benchmarks; see
// BENCHMARKS.md for how to run them.
//
// Invariants:
//   - Every benchmark runs on every implementation of core.Index that its size
//     allows, on the same deterministic data.
//   - Every benchmark reports its floor and its ratio to it.
//
// Ownership: each benchmark owns the indexes that it makes.
package bench
