package core

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// vectors reports whether the machine has what compare_amd64.s, filter_amd64.s and two functions
// of probe_amd64.s take: Intel's since Skylake-SP, AMD's since Zen 4.
var vectors = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL &&
	cpu.X86.HasBMI1 && cpu.X86.HasBMI2

//go:noescape
func matchVector(a, b *uint64, n int) int

// matchPieces returns how many of n words at local equal those at p and, after the first room of
// these, those of the slices at rest, of which all but the last have pieceBlocks.
//
//go:noescape
func matchPieces(p *uint64, room int, rest *[]uint64, local *uint64, n int) int

// ask asks for the cache lines of r's body and for the first of its content, which is to be
// compared as soon as the body is there.
func (r *run) ask() { askRun(r) }

//go:noescape
func askRun(r *run)

// ask asks for the children, if they are few, or for what leads to them.
func (k *childSet) ask() {
	if k != nil {
		askChildren(k)
	}
}

//go:noescape
func askChildren(k *childSet)

// aimAt is aimEach.
func (d *directory) aimAt(at []aim, hashes []uint64) {
	aimAll(unsafe.SliceData(at), unsafe.SliceData(hashes), len(at), unsafe.SliceData(d.top), uint64(63-d.depth), &d.key)
}

//go:noescape
func aimAll(at *aim, hashes *uint64, n int, top *ref, shift uint64, key *hasher)

// insertAt is insertEach.
func insertAt(at []aim, blocks []uint32) (n int, late uint32) {
	if !vectors {
		return insertEach(at, blocks)
	}
	return insertVector(unsafe.SliceData(at), unsafe.SliceData(blocks), len(at), leafHigh)
}

//go:noescape
func insertVector(at *aim, blocks *uint32, n int, high uint32) (taken int, late uint32)

// removeAt is removeEach.
func removeAt(at []aim, blocks []uint32) (n int, late uint32) {
	if !vectors {
		return removeEach(at, blocks)
	}
	return removeVector(unsafe.SliceData(at), unsafe.SliceData(blocks), len(at))
}

//go:noescape
func removeVector(at *aim, blocks *uint32, n int) (taken int, late uint32)

// ask asks for the hashes of segments.
func (a *arena) ask(segs []uint32) {
	askAll(unsafe.SliceData(segs), len(segs), unsafe.SliceData(a.slabs))
}

//go:noescape
func askAll(segs *uint32, n int, slabs *slab)

// ask asks for the home lines of the first hashes. In Go there is no such instruction, and a load of which nothing
// is used is waited for all the same.
func (f *filter) ask(key *hasher, hashes []uint64) {
	if n := min(len(hashes), filterBatch); vectors && n > 0 && len(f.lines) > 0 {
		askHomes(f, key, unsafe.SliceData(hashes), n)
	}
}

// askFirst asks for the first words.
func askFirst(words []uint64) {
	if len(words) > 0 {
		askWord(unsafe.SliceData(words))
	}
}

//go:noescape
func askWord(p *uint64)

//go:noescape
func askHomes(f *filter, key *hasher, hashes *uint64, n int)

// These do what the filter's add, drop and leadingAbsent do for n hashes, at least one. They return
// how many they did: the next one is to be done in general.

//go:noescape
func addVector(f *filter, key *hasher, hashes *uint64, n int) int

//go:noescape
func dropVector(f *filter, key *hasher, hashes *uint64, n int) int

//go:noescape
func absentVector(f *filter, key *hasher, hashes *uint64, n int) int

// search is searchEach.
func (a *arena) search(segs []uint32, hash uint64) int {
	if !vectors {
		return a.searchEach(segs, hash)
	}
	return searchAll(unsafe.SliceData(segs), len(segs), unsafe.SliceData(a.slabs), hash)
}

//go:noescape
func searchAll(segs *uint32, n int, slabs *slab, hash uint64) int

// indexWord is slices.Index, of a multiple of eight words.
func indexWord(words []uint64, word uint64) int {
	if !vectors {
		return slices.Index(words, word)
	}
	return indexVector(unsafe.SliceData(words), len(words), word)
}

//go:noescape
func indexVector(words *uint64, n int, word uint64) int
