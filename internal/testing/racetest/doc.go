// Package racetest tests what the race detector sees: it lets two functions run
// without any order between them, in a process of their own, and looks whether a
// race is reported.
//
// Invariant: without the race detector, which needs a C compiler, the test skips
// itself and says so.
//
// And it says which tests are for a run without the race detector, alone or with most of their
// histories: those in whose own function Without or Few is called.
//
// Ownership: the process ends before the call does.
package racetest
