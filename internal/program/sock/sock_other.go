//go:build !linux

package sock

import "net"

// Wrap returns c.
func Wrap(c net.Conn) net.Conn { return c }
