//go:build !amd64 && !arm64

package core

import (
	"runtime"
	"unsafe"
)

func (r *run) ask() {}

func (k *childSet) ask() {}

func (a *arena) ask([]uint32) {}

func (f *filter) ask(*hasher, []uint64) {}

// askLines loads something of the lines: they are independent of one another.
func askLines(places *filterPlace, n int, lines *filterLine) {
	asked := uint8(0)
	for _, p := range unsafe.Slice(places, n) {
		asked |= (*filterLine)(unsafe.Add(unsafe.Pointer(lines), p.home()*lineBytes))[lineReach]
	}
	runtime.KeepAlive(asked)
}

func askChunks(at *aim, n int) {
	asked := uint8(0)
	for _, a := range unsafe.Slice(at, n) {
		asked |= a.chunk().tags[0]
	}
	runtime.KeepAlive(asked)
}

func askFirst([]uint64) {}
