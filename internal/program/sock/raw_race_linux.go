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
func raw(trap, fd uintptr, x *call) (n int, errno syscall.Errno) {
	var err error
	switch trap {
	case syscall.SYS_WRITE:
		n, err = syscall.Write(int(fd), x.data)
	case syscall.SYS_WRITEV:
		if _, err = syscall.Write(int(fd), nil); err == nil { // writes nothing: Writev does not tell package syscall's readers
			n, err = unix.Writev(int(fd), [][]byte{x.data, x.more})
		}
	case syscall.SYS_READV:
		if n, err = unix.Readv(int(fd), [][]byte{x.data, x.more}); err == nil {
			_, err = syscall.Read(int(fd), nil) // takes nothing: Readv is not told of writes by package syscall
		}
	default:
		n, err = syscall.Read(int(fd), x.data)
	}
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
