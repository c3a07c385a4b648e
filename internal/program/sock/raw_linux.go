//go:build !race

package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw makes a system call, unseen by the scheduler.
func raw(trap, fd uintptr, x *call) (n int, err syscall.Errno) {
	var done uintptr
	if trap == syscall.SYS_READV || trap == syscall.SYS_WRITEV {
		x.into[0].Base, x.into[1].Base = unsafe.SliceData(x.data), unsafe.SliceData(x.more)
		x.into[0].SetLen(len(x.data))
		x.into[1].SetLen(len(x.more))
		done, _, err = syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&x.into)), uintptr(len(x.into)))
	} else {
		done, _, err = syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(x.data))), uintptr(len(x.data)))
	}
	return int(done), err
}

// poll says what is so of a socket, without waiting.
func poll(x *unix.PollFd) (int, syscall.Errno) {
	var now unix.Timespec
	n, _, err := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(x)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return int(n), err
}
