//go:build !linux

package hugemem

// Alloc returns a block of size bytes, a multiple of Size, from the Go heap.
func Alloc(size int) Block { return Block{Words: make([]uint64, size/8)} }

// Free gives the block back: to the collector.
func (Block) Free() {}
