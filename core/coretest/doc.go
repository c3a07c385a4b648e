// Package coretest judges implementations of [core.Index] by [core.Oracle]:
// it makes histories of operations from seeds, applies each to both and
// compares everything that can be asked.
//
// Invariants:
//   - A history is a function of its generator and seed, so a failure that
//     prints its seed can be repeated.
//   - A failure is reported as the shortest history found that still fails.
//
// Ownership: nothing is kept between calls. The environment sets the effort:
// KVATLAS_TEST_SCALE multiplies the number of seeds (1 takes seconds),
// KVATLAS_TEST_SEED runs that one seed only.
package coretest
