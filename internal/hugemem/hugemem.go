package hugemem

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/race"
)

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

// Make returns n zeroed elements from the Go heap, on huge pages if they fill one and the system has them, and
// there already: none waits for memory when it is first used. T is without pointers.
func Make[T any](n int) []T {
	var of T
	each := int(unsafe.Sizeof(of))
	if n*each < Size || race.Enabled {
		return make([]T, n)
	}
	words := make([]uint64, Taken(n*each)/8) // more room, to cut an aligned block out of it
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(words)))&(Size-1)) / 8
	words = words[skip : skip+len(words)-Size/8]
	advise(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8))
	for i := 0; i < len(words); i += 512 {
		words[i] = 0
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// Taken is how many bytes of the heap Make takes for so many.
func Taken(bytes int) int {
	if bytes < Size || race.Enabled {
		return bytes
	}
	return (bytes+Size-1)&^(Size-1) + Size
}

// Heap asks that the next size bytes of the Go heap be on huge pages, for programs that soon fill about so many and read them at random: the rest
// is taken back, and costs what Go notes of it, a word for 8 KiB. It reports false where the system has none, or would not give so many bytes. Once a process: of a heap that
// was in use before, the bytes are cleared.
func Heap(size int) bool {
	if race.Enabled || !offered() {
		return false
	}
	const arena = 64 << 20   // what the heap grows by
	own := 2*arena + size>>8 // the ends of it, and what it notes of it
	words := mapWords((min(size, math.MaxInt-own-2*Size) + own) &^ (Size - 1))
	if words == nil {
		return false // the heap would end the program
	}
	unmapWords(words)
	advise(make([]byte, size)) // none of it is touched, and the advice stays with its addresses
	runtime.GC()
	return true
}
