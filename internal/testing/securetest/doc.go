// Package securetest issues certificates for tests.
//
// Invariant: files are replaced by renaming, so that a reader sees one state
// or the other.
//
// Ownership: the files are in the test's own directory.
package securetest
