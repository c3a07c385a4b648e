//go:build unix

package upstream

import "syscall"

// alive reports whether an idle connection is open and silent. It asks the kernel
// without waiting: there is no goroutine that would have noticed its end.
func (k *conn) alive() bool {
	if k.raw == nil {
		return true
	}
	open := false
	err := k.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		open = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK //nolint:errorlint // the kernel's own
		return true
	})
	return err == nil && open
}
