//go:build !amd64

package core

import (
	"runtime"
	"unsafe"
)

// prefetch loads the home chunks of n aims, independently of one another.
func prefetch(at *aim, n int) {
	var s uint8
	for _, a := range unsafe.Slice(at, n) {
		s |= a.home.tags[0]
	}
	runtime.KeepAlive(s)
}
