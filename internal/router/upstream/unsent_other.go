//go:build !linux

package upstream

import "syscall"

// unsent cannot be known.
func unsent(syscall.Conn) bool { return false }
