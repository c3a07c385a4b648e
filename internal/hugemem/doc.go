// Package hugemem gives out big zeroed blocks of memory that the garbage
// collector does not know of, on huge pages where the system has them: tables
// that are read at random lose more time to address translation than to
// anything else.
//
// A [Stock] has some ready before they are asked for.
//
// Make does so with memory that the collector does know of, where nobody can say when it is not used any more, and
// Heap for all that a program is about to allocate.
//
// Invariants: a Block is zeroed when it is made, and aligned to Size where it is
// not from the Go heap. Whoever made it owns it and frees it at most once; nothing
// may use it after.
package hugemem
