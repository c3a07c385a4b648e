// Package waittest waits in tests for what is sure to happen, and never for a
// time in which it should have.
//
// Invariant: it fails a test only after Patience, however slow the machine is.
//
// Ownership: it keeps nothing but the text of a Log, which is its user's.
package waittest
