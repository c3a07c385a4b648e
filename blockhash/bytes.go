package blockhash

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/race"
)

// hostIsLittleEndian says whether a u32 lies in memory in the order in which
// it is hashed, so that hashing need not copy it: the copy below is about ten
// times slower.
func hostIsLittleEndian() bool {
	one := uint32(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}

// hashTokens returns XXH3-64 of the tokens as little-endian u32.
func hashTokens(tokens []uint32, seed uint64) uint64 {
	if !hostIsLittleEndian() {
		return hashTokensCopied(tokens, seed)
	}
	// Any alignment of u32 is one of bytes, and the length is the same memory's.
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
	h := xxh3.HashSeed(b, seed)
	race.Read(tokens) // the hash of much is assembly
	return h
}

// hashTokensCopied is hashTokens for hosts of either byte order.
func hashTokensCopied(tokens []uint32, seed uint64) uint64 {
	var buf [4 * (MaxBlockSize + 1)]byte
	b := buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return xxh3.HashSeed(b, seed)
}

// hashTokensMM hashes the tokens and then the multimodal hashes, sorted.
func hashTokensMM(tokens []uint32, seed uint64, mm []uint64) uint64 {
	var buf [4*(MaxBlockSize+1) + 8*16]byte
	b := buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	if !slices.IsSorted(mm) { // the caller's slice stays as it is
		mm = slices.Clone(mm)
		slices.Sort(mm)
	}
	for _, h := range mm {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return xxh3.HashSeed(b, seed)
}

// hashPair returns XXH3-64 of two little-endian u64.
func hashPair(a, b, seed uint64) uint64 {
	var buf [16]byte
	binary.LittleEndian.PutUint64(buf[:], a)
	binary.LittleEndian.PutUint64(buf[8:], b)
	return xxh3.HashSeed(buf[:], seed)
}
