//go:build race

package sock

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// raw makes a system call as package syscall does, which tells the race detector what
// memory it touches, and that what is done before a write is done before it is read: the
// detector takes what a server does before it answers for a race with its client else,
// where both are in one program.
func raw(trap, fd uintptr, p []byte) (n int, errno syscall.Errno) {
	call := syscall.Read
	if trap == syscall.SYS_WRITE {
		call = syscall.Write
	}
	n, err := call(int(fd), p)
	errors.As(err, &errno)
	return n, errno
}

// poll says what is so of a socket, without waiting.
func poll(x *unix.PollFd) (n int, errno syscall.Errno) {
	fds := []unix.PollFd{*x}
	n, err := unix.Poll(fds, 0)
	errors.As(err, &errno)
	return n, errno
}
