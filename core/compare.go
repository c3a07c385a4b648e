package core

import (
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/race"
)

// matchLen returns the length of the common prefix of a and b. It compares at
// memory speed: the runtime's string comparison is vectorised, a scalar loop
// over the words is not.
func matchLen(a, b []uint64) int {
	n := min(len(a), len(b))
	i := 0
	for step := 256; step >= 8; step >>= 2 {
		for i+step <= n && equalWords(a[i:i+step], b[i:i+step]) {
			i += step
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

func equalWords(a, b []uint64) bool {
	race.Read(a)
	race.Read(b)
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(a))), len(a)*8) ==
		unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(b))), len(b)*8)
}
