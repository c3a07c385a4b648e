// Package racetest tests what the race detector sees: it lets two functions run
// without any order between them, in a process of their own, and looks whether a
// race is reported.
//
// Invariant: without the race detector, which needs a C compiler, the test skips
// itself and says so.
//
// Ownership: the process ends before the call does.
package racetest
