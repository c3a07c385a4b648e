// Package startup says how far a program's start is: what of the snapshots, or
// of a peer's dump, is loaded, and what of the streams is read since.
//
// Invariants: the numbers of a phase only grow, but for those that are left; a
// number that is not known is absent, never a guess.
//
// Ownership: a Report is a value. Tell belongs to the goroutine that calls it.
package startup
