package core

import (
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/race"
)

// matchLen returns the length of the common prefix of a and b. It compares at memory
// speed: with vectors where the machine has them.
func matchLen(a, b []uint64) int {
	n := min(len(a), len(b))
	if vectors == noVectors || n == 0 {
		return matchStrings(a[:n], b[:n])
	}
	race.Read(a[:n])
	race.Read(b[:n])
	return matchVector(unsafe.SliceData(a), unsafe.SliceData(b), n)
}

// matchAtOnce is how many blocks are compared without a break, in which the scheduler may have
// the goroutine wait: some µs.
const matchAtOnce = 16 * pieceBlocks

// matchLen returns how many of local equal the blocks from i on, of which there are as many. It
// goes from piece to piece without returning.
func (c *content) matchLen(i uint32, local []uint64) int {
	if vectors == noVectors || len(local) == 0 {
		return c.matchEach(i, local)
	}
	if race.Enabled {
		race.Read(local)
		for k := 0; k < len(local); {
			p := c.from(i + uint32(k))
			p = p[:min(len(p), len(local)-k)]
			race.Read(p)
			k += len(p)
		}
	}
	in := i & (pieceBlocks - 1)
	rest := c.rest[min(int(i>>pieceBits), len(c.rest)):]
	return matchPieces(&c.piece(int(i >> pieceBits))[in], pieceBlocks-int(in), unsafe.SliceData(rest), unsafe.SliceData(local), len(local))
}

// matchEach is matchLen on other machines.
func (c *content) matchEach(i uint32, local []uint64) int {
	m := 0
	for m < len(local) {
		p := c.from(i + uint32(m))
		k := matchLen(p, local[m:])
		m += k
		if k < len(p) {
			break
		}
	}
	return m
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
