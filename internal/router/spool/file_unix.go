//go:build unix

package spool

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// createDeleted returns a file that has no name any more.
func createDeleted(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "kvatlas-body-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// unread takes the pages of a mapped file out of the process's memory.
func unread(data []byte) { _ = unix.Madvise(data, unix.MADV_DONTNEED) } // else they stay: no more than that

// mapFile returns the first n bytes of the file as memory that goes with unmap.
func mapFile(f *os.File, n int64) (data []byte, unmap func(), err error) {
	if n == 0 {
		return nil, nil, nil
	}
	data, err = syscall.Mmap(int(f.Fd()), 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping a body: %w", err)
	}
	return data, func() { _ = syscall.Munmap(data) }, nil
}
