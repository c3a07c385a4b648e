package core

import (
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/race"
)

// matchLen returns the length of the common prefix of a and b. It compares at memory
// speed: with vectors of 64 bytes where the machine has them.
func matchLen(a, b []uint64) int {
	n := min(len(a), len(b))
	if !vectors || n == 0 {
		return matchStrings(a[:n], b[:n])
	}
	race.Read(a[:n])
	race.Read(b[:n])
	return matchVector(unsafe.SliceData(a), unsafe.SliceData(b), n)
}

// matchStrings is matchLen on other machines: the runtime's string comparison uses such
// vectors as they have, a loop over the words does not.
func matchStrings(a, b []uint64) int {
	i, n := 0, len(a)
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
