package tokenize

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// What a cache of pieces holds: short pieces of few tokens, which nearly all are, in half a
// cache line each, two to a line; and others in two lines.
const (
	shortKey   = 16
	shortIDs   = 3
	shortWords = 4 // head, key, ids
	setWords   = 2 * shortWords

	longKey   = 64
	longIDs   = 14
	longWords = 16 // head, key, ids
	longBytes = longWords * 8
	keyWords  = longKey / 8

	headWriter = 1 << 63 // of a head: somebody writes the slot
)

// pieceCache remembers the tokens of pieces. Each piece has two places; where both are taken, a new
// one takes that which its hash says. Its size is fixed.
//
// Slots are read without a lock: the head holds a count that each writer moves on, and who
// finds it changed, or a writer there, has missed. All words are atomic; on the machines
// that matter to load one costs nothing.
type pieceCache struct {
	short     []atomic.Uint64
	long      []atomic.Uint64
	shortMask uint64 // of sets
	longMask  uint64 // of slots
}

// newPieceCache makes a cache of up to size bytes, half of them for long pieces; nil if that is too little.
func newPieceCache(size int) *pieceCache {
	if size < 4*longBytes {
		return nil
	}
	n := 1 << (bits.Len(uint(size/(4*longBytes))) - 1)
	return &pieceCache{
		short: hugemem.Make[atomic.Uint64](n * 4 * setWords), shortMask: uint64(n*4 - 1),
		long: hugemem.Make[atomic.Uint64](n * 2 * longWords), longMask: uint64(n*2 - 1),
	}
}

func (c *pieceCache) size() int { return hugemem.Taken(8*len(c.short)) + hugemem.Taken(8*len(c.long)) }

// pieceKey is what a piece is known by in tables: its first 16 bytes, with zeros where there are
// fewer, and a hash. Beyond p's end it may read what else its memory holds, and leaves it out.
func pieceKey(p []byte) (h, k0, k1 uint64) {
	n := len(p)
	if n > shortKey {
		return hashLong(p), binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	}
	if q := p[:cap(p)]; len(q) >= shortKey {
		k0, k1 = binary.LittleEndian.Uint64(q)&firstBytes[n], binary.LittleEndian.Uint64(q[8:])&firstBytes[shortKey+1+n]
	} else {
		var all [shortKey]byte
		copy(all[:], p)
		k0, k1 = binary.LittleEndian.Uint64(all[:]), binary.LittleEndian.Uint64(all[8:])
	}
	return hashKey(k0, k1, n), k0, k1
}

// firstBytes are masks of the first n of 16 bytes: of their first word, and from 17 on of their second.
var firstBytes = func() (m [2 * (shortKey + 1)]uint64) {
	for n := range shortKey + 1 {
		m[n], m[shortKey+1+n] = 1<<(8*min(n, 8))-1, 1<<(8*max(n-8, 0))-1
	}
	return m
}()

// set is the pair of slots where a short piece may be.
func (c *pieceCache) set(h uint64) *[setWords]atomic.Uint64 {
	at := (h & c.shortMask) * setWords
	return (*[setWords]atomic.Uint64)(c.short[at : at+setWords])
}

// Heads: writer 1 bit, count 31 bits, ids 8 bits, length 8 bits, hash 16 bits (of long pieces).
func headOf(count uint64, ids, length int, h uint64) uint64 {
	return count&(1<<31-1)<<32 | uint64(ids)<<24 | uint64(length)<<16 | h>>48
}

const headLength = 0xff0000

// idBits are those of an id among a short piece's.
const idBits = 21

// What getShort says of pieces whose ids it does not have.
const (
	unknown = -1
	inLong  = -2 // more ids than fit: among the long ones, or not any more

	headInLong = 0xff // the same as a head's number of ids
)

// getShort returns the ids of a piece of up to 16 bytes, as they are packed, and how many.
func (c *pieceCache) getShort(h, k0, k1 uint64, length int) (ids uint64, n int) {
	s := c.set(h)
	want := uint64(length) << 16
	for at := 0; at < setWords; at += shortWords {
		head := s[at].Load()
		if head&(headWriter|headLength) != want || s[at+1].Load() != k0 || s[at+2].Load() != k1 {
			continue
		}
		if ids = s[at+3].Load(); s[at].Load() == head {
			if n = int(head >> 24 & 0xff); n == headInLong {
				n = inLong
			}
			return ids, n
		}
	}
	return 0, unknown
}

// putShort remembers the ids of such a piece, or that they are among the long ones.
func (c *pieceCache) putShort(h, k0, k1 uint64, length int, ids []uint32) {
	all := c.set(h)
	s := all[:shortWords]
	if s[0].Load()&headLength != 0 && (all[shortWords].Load()&headLength == 0 || h>>63 != 0) {
		s = all[shortWords:] // the first place is taken, and chance does not say to take it over
	}
	head := s[0].Load()
	if head&headWriter != 0 || !s[0].CompareAndSwap(head, head|headWriter) {
		return
	}
	packed, n := uint64(0), len(ids)
	if n > shortIDs {
		ids, n = nil, headInLong
	}
	for i, id := range ids {
		packed |= uint64(id) << (idBits * i)
	}
	s[1].Store(k0)
	s[2].Store(k1)
	s[3].Store(packed)
	s[0].Store(headOf(head>>32+1, n, length, 0))
}

func (c *pieceCache) slot(i uint64) *[longWords]atomic.Uint64 {
	at := i & c.longMask * longWords
	return (*[longWords]atomic.Uint64)(c.long[at : at+longWords])
}

// keyWord is a word of a long piece: of the last one what is left, in whichever way needs no loop.
func keyWord(p []byte, i int) uint64 {
	if p = p[i*8:]; len(p) >= 8 {
		return binary.LittleEndian.Uint64(p)
	}
	n := len(p)
	if n >= 4 {
		return uint64(binary.LittleEndian.Uint32(p)) | uint64(binary.LittleEndian.Uint32(p[n-4:]))<<32
	}
	return uint64(p[0]) | uint64(p[n>>1])<<8 | uint64(p[n-1])<<16
}

// getLong appends the tokens of p, whose hash is h, if they are known.
func (c *pieceCache) getLong(h uint64, p []byte, dst []uint32) ([]uint32, bool) {
	want := headOf(0, 0, len(p), h)
	for way := range uint64(2) {
		s := c.slot(h ^ way)
		head := s[0].Load()
		if head&(headWriter|headLength|0xffff) != want {
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

// putLong remembers the tokens of p, unless they are too many or somebody else writes there.
func (c *pieceCache) putLong(h uint64, p []byte, ids []uint32) {
	if len(ids) > longIDs {
		return
	}
	s := c.slot(h)
	if s[0].Load()&headLength != 0 {
		if other := c.slot(h ^ 1); other[0].Load()&headLength == 0 || h>>63 != 0 {
			s = other
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
