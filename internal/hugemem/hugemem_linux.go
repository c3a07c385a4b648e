//go:build linux

package hugemem

import (
	"bytes"
	"os"
	"syscall"
	"unsafe"
)

// mapWords maps size bytes; nil if the system has none to give.
func mapWords(size int) []uint64 {
	// More room, to cut an aligned block out of it.
	raw, err := syscall.Mmap(-1, 0, size+Size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Size - 1))
	block := raw[skip : skip+size]
	unmap(raw[:skip])
	unmap(raw[skip+size:])
	// A refusal (no huge pages here) costs speed, nothing else.
	_ = syscall.Madvise(block, syscall.MADV_HUGEPAGE)
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(block))), size/8)
}

func unmapWords(words []uint64) {
	unmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8))
}

// unmap unmaps a part of a mapping; syscall.Munmap knows only whole ones.
func unmap(b []byte) {
	if len(b) > 0 {
		_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0)
	}
}

// advise asks for huge pages for b.
func advise(b []byte) {
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // a refusal costs speed, nothing else
}

// offered reports whether the system gives huge pages to who asks.
func offered() bool {
	is, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !bytes.Contains(is, []byte("[never]"))
}
