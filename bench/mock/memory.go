package mock

import (
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// Memory is where several engines have their tables, on huge pages: where hundreds of them take
// turns, to find the pages of the next one takes longer than all else. It belongs to one goroutine.
type Memory struct {
	words []uint64
	given int // words that were asked for, so far: as many again at once, as most have like needs
}

const mostWords = 32 << 20 / 8

// table returns n zeroed elements without pointers; of nobody's memory they are by themselves.
func table[T any](m *Memory, n int) []T {
	if m == nil {
		return make([]T, n)
	}
	var of T
	const line = 64 / 8
	words := (n*int(unsafe.Sizeof(of))/8 + line) / line * line
	if len(m.words) < words {
		m.words = hugemem.Make[uint64](max(words, min(m.given, mostWords)))
	}
	m.given += words
	t := m.words[:words]
	m.words = m.words[words:]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t))), n)
}
