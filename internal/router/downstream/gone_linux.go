package downstream

import "golang.org/x/sys/unix"

// gone reports whether the client has ended the connection, or at least its side of it.
// What it has sent before it need not be read for that.
func (k *conn) gone() bool {
	if k.raw == nil {
		return false
	}
	gone := false
	_ = k.raw.Control(func(fd uintptr) { // else it is being closed
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}
