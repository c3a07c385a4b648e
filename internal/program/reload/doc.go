// Package reload holds what was read from files, and reads it again when one of them
// changes: tokens, certificates, lists of workers.
//
// Invariants: content is taken as a whole or not at all; a damaged file leaves the last
// good content in force, says so in the log once, and in Err until it is mended.
//
// Ownership: a Value has no goroutine. Whoever uses it looks, once a second at most.
package reload
