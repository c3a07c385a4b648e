// Package progtest builds the project's programs for tests that run the real ones.
//
// Invariant: what Dir returns is of the sources of now. Where KVATLAS_TEST_PROGRAMS
// names a folder (make test does) all packages share it, and the go command links
// only what is not up to date there; else each user has a folder of its own.
//
// Ownership: a Programs belongs to the package whose tests use it, and its TestMain
// calls Close. The shared folder is of who named it, and stays.
package progtest
