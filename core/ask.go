//go:build amd64 || arm64

package core

import "unsafe"

// What is asked for comes while something else is done. In Go there is no such instruction, and a load of which nothing
// is used is waited for all the same.

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

// ask asks for the hashes of segments.
func (a *arena) ask(segs []uint32) {
	askAll(unsafe.SliceData(segs), len(segs), unsafe.SliceData(a.slabs))
}

//go:noescape
func askAll(segs *uint32, n int, slabs *slab)

// ask asks for the home lines of the first hashes.
func (f *filter) ask(key *hasher, hashes []uint64) {
	n := min(len(hashes), filterBatch)
	switch {
	case n == 0 || len(f.lines) == 0:
	case vectors != noVectors:
		askVector(f, key, &hashes[0], n)
	default:
		var places [filterBatch]filterPlace
		f.aim(places[:], key, hashes)
	}
}

// askLines asks for the home lines of places.
//
//go:noescape
func askLines(places *filterPlace, n int, lines *filterLine)

// askFirst asks for the first words.
func askFirst(words []uint64) {
	if len(words) > 0 {
		askWord(unsafe.SliceData(words))
	}
}

//go:noescape
func askWord(p *uint64)
