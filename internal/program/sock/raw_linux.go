//go:build !race

package sock

import (
	"syscall"
	"unsafe"
)

// raw makes a system call, unseen by the scheduler.
func raw(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), err
}
