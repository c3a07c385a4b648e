//go:build unix && !linux

package downstream

import "syscall"

// gone reports whether the client has ended the connection, or at least its side of it,
// unless it has sent something before that was not read yet.
func (k *conn) gone() bool {
	if k.raw == nil {
		return false
	}
	gone := false
	_ = k.raw.Control(func(fd uintptr) { // else it is being closed
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err == syscall.ECONNRESET //nolint:errorlint // the kernel's own
	})
	return gone
}
