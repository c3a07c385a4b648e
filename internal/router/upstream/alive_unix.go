//go:build unix

package upstream

import "syscall"

// alive reports whether an idle connection is open and silent. It asks the kernel
// without waiting: there is no goroutine that would have noticed its end.
func (k *conn) alive() bool {
	if k.raw == nil {
		return true
	}
	if k.look == nil {
		k.look = k.peek
	}
	k.silent = false
	return k.raw.Read(k.look) == nil && k.silent
}

func (k *conn) peek(fd uintptr) bool {
	_, err := syscall.Read(int(fd), k.one[:])
	k.silent = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK //nolint:errorlint // the kernel's own
	return true
}
