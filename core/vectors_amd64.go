package core

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// vectors says which of the assembly's loops the machine can run.
var vectors = func() vectorSet {
	switch x := &cpu.X86; {
	case !x.HasAVX2 || !x.HasBMI1 || !x.HasBMI2:
		return noVectors
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		return wide
	default:
		return narrow
	}
}()

func matchVector(a, b *uint64, n int) int {
	if vectors == wide {
		return matchWide(a, b, n)
	}
	return matchNarrow(a, b, n)
}

//go:noescape
func matchWide(a, b *uint64, n int) int

//go:noescape
func matchNarrow(a, b *uint64, n int) int

// matchPieces returns how many of n words at local equal those at p and, after the first room of
// these, those of the slices at rest, of which all but the last have pieceBlocks.
func matchPieces(p *uint64, room int, rest *[]uint64, local *uint64, n int) int {
	if vectors == wide {
		return piecesWide(p, room, rest, local, n)
	}
	return piecesNarrow(p, room, rest, local, n)
}

//go:noescape
func piecesWide(p *uint64, room int, rest *[]uint64, local *uint64, n int) int

//go:noescape
func piecesNarrow(p *uint64, room int, rest *[]uint64, local *uint64, n int) int

// aimAt is aimEach.
func (d *directory) aimAt(at []aim, hashes []uint64) {
	aimAll(unsafe.SliceData(at), unsafe.SliceData(hashes), len(at), unsafe.SliceData(d.top), uint64(63-d.depth), &d.key)
}

//go:noescape
func aimAll(at *aim, hashes *uint64, n int, top *ref, shift uint64, key *hasher)

// insertAt is insertEach.
func insertAt(at []aim, blocks []uint32) (n int, late uint32) {
	if vectors == noVectors {
		return insertEach(at, blocks)
	}
	return insertVector(unsafe.SliceData(at), unsafe.SliceData(blocks), len(at), leafHigh)
}

//go:noescape
func insertVector(at *aim, blocks *uint32, n int, high uint32) (taken int, late uint32)

// removeAt is removeEach.
func removeAt(at []aim, blocks []uint32) (n int, late uint32) {
	if vectors == noVectors {
		return removeEach(at, blocks)
	}
	return removeVector(unsafe.SliceData(at), unsafe.SliceData(blocks), len(at))
}

//go:noescape
func removeVector(at *aim, blocks *uint32, n int) (taken int, late uint32)

func askVector(f *filter, key *hasher, hashes *uint64, n int) {
	if vectors == wide {
		askWide(f, key, hashes, n)
		return
	}
	askNarrow(f, key, hashes, n)
}

//go:noescape
func askWide(f *filter, key *hasher, hashes *uint64, n int)

//go:noescape
func askNarrow(f *filter, key *hasher, hashes *uint64, n int)

// These do what the filter's add, drop and leadingAbsent do for n hashes, at least one. They return
// how many they did: the next one is to be done in general.

func addVector(f *filter, key *hasher, hashes *uint64, n int) int {
	if vectors == wide {
		return addWide(f, key, hashes, n)
	}
	return addNarrow(f, key, hashes, n)
}

//go:noescape
func addWide(f *filter, key *hasher, hashes *uint64, n int) int

//go:noescape
func addNarrow(f *filter, key *hasher, hashes *uint64, n int) int

func dropVector(f *filter, key *hasher, hashes *uint64, n int) int {
	if vectors == wide {
		return dropWide(f, key, hashes, n)
	}
	return dropNarrow(f, key, hashes, n)
}

//go:noescape
func dropWide(f *filter, key *hasher, hashes *uint64, n int) int

//go:noescape
func dropNarrow(f *filter, key *hasher, hashes *uint64, n int) int

func absentVector(f *filter, key *hasher, hashes *uint64, n int) int {
	if vectors == wide {
		return absentWide(f, key, hashes, n)
	}
	return absentNarrow(f, key, hashes, n)
}

//go:noescape
func absentWide(f *filter, key *hasher, hashes *uint64, n int) int

//go:noescape
func absentNarrow(f *filter, key *hasher, hashes *uint64, n int) int

// search is searchEach.
func (a *arena) search(segs []uint32, hash uint64) int {
	if vectors == noVectors {
		return a.searchEach(segs, hash)
	}
	return searchAll(unsafe.SliceData(segs), len(segs), unsafe.SliceData(a.slabs), hash)
}

//go:noescape
func searchAll(segs *uint32, n int, slabs *slab, hash uint64) int

// indexWord is slices.Index, of a multiple of eight words.
func indexWord(words []uint64, word uint64) int {
	if vectors == noVectors {
		return slices.Index(words, word)
	}
	return indexVector(unsafe.SliceData(words), len(words), word)
}

//go:noescape
func indexVector(words *uint64, n int, word uint64) int
