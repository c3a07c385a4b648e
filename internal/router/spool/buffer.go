package spool

import (
	"math/bits"
	"sync"
)

// Buffers in memory are used again, so that the memory of one body is that of the next
// and not the garbage collector's. Their sizes are in quarters of powers of two: what is
// not used of one is a fifth of it at most. It is accounted for.
const (
	leastBuffer = 4 << 10
	mostBuffer  = 4 << 20 // larger ones are made as they are needed
	leastBits   = 12
)

var buffers [4*(22-leastBits) + 1]sync.Pool // of *[]byte, by size

// bufferClass returns which buffers have room for so many bytes, and their size.
func bufferClass(size int64) (class int, room int64) {
	if size <= leastBuffer {
		return 0, leastBuffer
	}
	below := bits.Len64(uint64(size-1)) - 1 // the power of two below
	quarter := int64(1) << (below - 2)
	n := (size - 1) >> (below - 2) & 3 // the quarters of it that are full
	return 4*(below-leastBits) + int(n) + 1, 1<<below + (n+1)*quarter
}

// bufferFor returns how large the buffer is that getBuffer gives.
func bufferFor(size int64) int64 {
	if size > mostBuffer {
		return size
	}
	_, room := bufferClass(size)
	return room
}

func getBuffer(size int64) *[]byte {
	if size <= mostBuffer {
		class, room := bufferClass(size)
		if b, ok := buffers[class].Get().(*[]byte); ok {
			return b
		}
		size = room
	}
	b := make([]byte, 0, size)
	return &b
}

func putBuffer(b *[]byte) {
	size := int64(cap(*b))
	if size > mostBuffer {
		return
	}
	class, _ := bufferClass(size)
	buffers[class].Put(b)
}
