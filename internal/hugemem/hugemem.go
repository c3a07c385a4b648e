package hugemem

import "github.com/kvatlas/kvatlas/internal/race"

// Size is what blocks are a multiple of, in bytes: a huge page on most systems.
const Size = 2 << 20

// Block is a piece of memory.
type Block struct {
	Words  []uint64
	mapped bool
}

// Alloc returns a block of size bytes, a multiple of Size. It comes from the Go
// heap if the system has no mapping to give, and for the race detector, which
// watches no other memory.
func Alloc(size int) Block {
	if !race.Enabled {
		if words := mapWords(size); words != nil {
			return Block{words, true}
		}
	}
	return Block{Words: make([]uint64, size/8)}
}

// Free gives the block back.
func (b Block) Free() {
	if b.mapped {
		unmapWords(b.Words)
	}
}
