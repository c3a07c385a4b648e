//go:build !amd64

package core

import (
	"slices"
	"unsafe"
)

const vectors = noVectors

func matchVector(_, _ *uint64, _ int) int { return 0 }

func matchPieces(_ *uint64, _ int, _ *[]uint64, _ *uint64, _ int) int { return 0 }

func (d *directory) aimAt(at []aim, hashes []uint64) {
	d.aimEach(at, hashes)
	askChunks(unsafe.SliceData(at), len(at))
}

func insertAt(at []aim, blocks []uint32) (n int, late uint32) { return insertEach(at, blocks) }

func removeAt(at []aim, blocks []uint32) (n int, late uint32) { return removeEach(at, blocks) }

func addVector(*filter, *hasher, *uint64, int) int { return 0 }

func dropVector(*filter, *hasher, *uint64, int) int { return 0 }

func absentVector(*filter, *hasher, *uint64, int) int { return 0 }

func (a *arena) search(segs []uint32, hash uint64) int { return a.searchEach(segs, hash) }

func indexWord(words []uint64, word uint64) int { return slices.Index(words, word) }
