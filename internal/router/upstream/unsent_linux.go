package upstream

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent reports whether the other side has not taken all that was written.
func unsent(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	left := 0
	err = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return err == nil && left > 0
}
