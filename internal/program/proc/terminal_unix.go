//go:build unix

package proc

import (
	"errors"

	"golang.org/x/sys/unix"
)

// whenClosed calls f once the terminal that fd is, if it is one, has been closed. The
// signal of that reaches those only that the terminal counts as its own: not what make
// runs where make was started by the terminal itself.
func whenClosed(fd int, f func()) {
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
		return // no terminal, or not ours
	}
	go func() { // ends with the terminal or the process
		polled := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a descriptor
		for {
			n, err := unix.Poll(polled, -1)
			switch {
			case n > 0 && polled[0].Revents&unix.POLLHUP != 0:
				f()
				return
			case n > 0 || !errors.Is(err, unix.EINTR):
				return
			}
		}
	}()
}
