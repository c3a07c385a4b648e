// Package hugemem gives out big zeroed blocks of memory that the garbage
// collector does not know of, on huge pages where the system has them: tables
// that are read at random lose more time to address translation than to
// anything else.
//
// Invariants: a Block is zeroed when it is made and aligned to Size. Whoever
// made it owns it and frees it at most once; nothing may use it after.
package hugemem

// Size is what blocks are a multiple of, in bytes: a huge page on most systems.
const Size = 2 << 20

// Block is a piece of memory.
type Block struct {
	Words  []uint64
	mapped bool
}
