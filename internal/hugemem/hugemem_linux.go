//go:build linux

package hugemem

import (
	"syscall"
	"unsafe"
)

// Alloc returns a block of size bytes, a multiple of Size. If the system has
// no mapping to give, it comes from the Go heap.
func Alloc(size int) Block {
	// More room, to cut an aligned block out of it.
	raw, err := syscall.Mmap(-1, 0, size+Size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return Block{Words: make([]uint64, size/8)}
	}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Size - 1))
	block := raw[skip : skip+size]
	unmap(raw[:skip])
	unmap(raw[skip+size:])
	// A refusal (no huge pages here) costs speed, nothing else.
	_ = syscall.Madvise(block, syscall.MADV_HUGEPAGE)
	return Block{unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(block))), size/8), true}
}

// Free gives the block back.
func (b Block) Free() {
	if b.mapped {
		unmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(b.Words))), len(b.Words)*8))
	}
}

// unmap unmaps a part of a mapping; syscall.Munmap knows only whole ones.
func unmap(b []byte) {
	if len(b) > 0 {
		_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0)
	}
}
