package tokenize

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// A slot of the piece cache is two cache lines: a head, a piece of up to 64 bytes, and
// up to 14 ids.
const (
	cacheKey   = 64
	cacheIDs   = 14
	slotWords  = 16
	slotBytes  = slotWords * 8
	keyWords   = cacheKey / 8
	headWriter = 1 << 63 // of the head: somebody writes the slot
)

// pieceCache remembers the tokens of pieces. Each piece has two places; a new one takes the
// place of the one in its second. Its size is fixed.
//
// Slots are read without a lock: the head holds a count that each writer moves on, and who
// finds it changed, or a writer there, has missed. All words are atomic; on the machines
// that matter to load one costs nothing.
type pieceCache struct {
	words []atomic.Uint64
	mask  uint64
}

func newPieceCache(size int) *pieceCache {
	n := size / slotBytes
	if n < 2 {
		return nil
	}
	n = 1 << (bits.Len(uint(n)) - 1)
	return &pieceCache{words: make([]atomic.Uint64, n*slotWords), mask: uint64(n - 1)}
}

// head: writer 1 bit, count 31 bits, ids 8 bits, length 8 bits, hash 16 bits.
func headOf(count uint64, ids, length int, h uint64) uint64 {
	return count&(1<<31-1)<<32 | uint64(ids)<<24 | uint64(length)<<16 | h>>48
}

func keyWord(p []byte, i int) uint64 {
	if i*8+8 <= len(p) {
		return binary.LittleEndian.Uint64(p[i*8:])
	}
	// The last word: of what is left, in whichever way needs no loop.
	p = p[i*8:]
	n := len(p)
	if n >= 4 {
		return uint64(binary.LittleEndian.Uint32(p)) | uint64(binary.LittleEndian.Uint32(p[n-4:]))<<32
	}
	return uint64(p[0]) | uint64(p[n>>1])<<8 | uint64(p[n-1])<<16
}

func (c *pieceCache) slot(i uint64) *[slotWords]atomic.Uint64 {
	at := i & c.mask * slotWords
	return (*[slotWords]atomic.Uint64)(c.words[at : at+slotWords])
}

// get appends the tokens of p, whose hash is h, if they are known.
func (c *pieceCache) get(h uint64, p []byte, dst []uint32) ([]uint32, bool) {
	want := headOf(0, 0, len(p), h)
	for way := range uint64(2) {
		s := c.slot(h ^ way)
		head := s[0].Load()
		if head&(headWriter|0xffffff) != want {
			continue
		}
		same := true
		for i := 0; i*8 < len(p); i++ {
			if s[1+i].Load() != keyWord(p, i) {
				same = false
				break
			}
		}
		if !same {
			continue
		}
		n := int(head >> 24 & 0xff)
		out := dst
		for i := 0; i < n; i += 2 {
			v := s[1+keyWords+i/2].Load()
			out = append(out, uint32(v))
			if i+1 < n {
				out = append(out, uint32(v>>32))
			}
		}
		if s[0].Load() == head {
			return out, true
		}
	}
	return dst, false
}

// put remembers the tokens of p, unless they are too many or somebody else writes there.
func (c *pieceCache) put(h uint64, p []byte, ids []uint32) {
	if len(ids) > cacheIDs {
		return
	}
	s := c.slot(h)
	if head := s[0].Load(); head&0xff0000 != 0 {
		s = c.slot(h ^ 1) // the first place is taken
		if other := s[0].Load(); other&0xff0000 != 0 && other>>32&1 != 0 {
			s = c.slot(h) // they take turns
		}
	}
	head := s[0].Load()
	if head&headWriter != 0 || !s[0].CompareAndSwap(head, head|headWriter) {
		return
	}
	for i := 0; i*8 < len(p); i++ {
		s[1+i].Store(keyWord(p, i))
	}
	for i := 0; i < len(ids); i += 2 {
		v := uint64(ids[i])
		if i+1 < len(ids) {
			v |= uint64(ids[i+1]) << 32
		}
		s[1+keyWords+i/2].Store(v)
	}
	s[0].Store(headOf(head>>32+1, len(ids), len(p), h))
}
