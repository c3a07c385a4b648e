// Package enginetest runs the real event publishers of engine releases for
// tests: histories made up but true to what an engine may say, scripts of them
// for the publishers, processes that encode, publish and replay with the
// engines' own code, and the comparison of what came of it with the oracle.
//
// Invariants:
//   - A test that cannot run here (no publisher harness, no Python, no package
//     index) is skipped with the reason.
//   - A History is a function of its release, rank and seed.
//
// Ownership: a Process belongs to the test that started it and ends with it.
package enginetest
