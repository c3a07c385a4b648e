//go:build !race

package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw makes a system call, unseen by the scheduler.
func raw(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), err
}

// poll says what is so of a socket, without waiting.
func poll(x *unix.PollFd) (int, syscall.Errno) {
	var now unix.Timespec
	n, _, err := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(x)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return int(n), err
}
