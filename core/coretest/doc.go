// Package coretest judges implementations of [core.Index] by [core.Oracle]:
// it makes histories of operations from seeds, applies each to both and
// compares everything that can be asked.
//
// Invariants:
//   - A history is a function of its generator and seed, so a failure that
//     prints its seed can be repeated.
//   - A failure is reported as the shortest history found that still fails.
//
// Ownership: nothing is kept between calls. The environment says what to run:
// KVATLAS_TEST_SEED that one seed only, KVATLAS_TEST_SCALE how many times as
// many as usual,
// KVATLAS_TEST_REWRITE=1 that scripts are written anew.
package coretest
