package core

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// pageChunks is the size of a leaf: 16 KiB.
const pageChunks = 256

type page [pageChunks]chunk

// pages hands out the pages of a directory: single ones from the Go heap while
// there are few, then from blocks on huge pages. Only the writer uses it.
type pages struct {
	free   []*page
	blocks []hugemem.Block
	small  int // pages from the Go heap
	inUse  int
	puts   int // since the last sweep

	stock *hugemem.Stock // of blocks
}

const (
	pageBytes  = pageChunks * 64
	blockPages = hugemem.Size / pageBytes
	smallPages = 8 // this many from the heap before the first block
)

func (p *pages) get() *page {
	p.inUse++
	if n := len(p.free); n > 0 {
		g := p.free[n-1]
		p.free = p.free[:n-1]
		return g
	}
	if p.small < smallPages {
		p.small++
		return new(page)
	}
	b := p.stock.Get()
	for i := blockPages - 1; i >= 0; i-- {
		p.free = append(p.free, (*page)(unsafe.Pointer(&b.Words[i*pageBytes/8])))
	}
	p.blocks = append(p.blocks, b)
	p.inUse--
	return p.get()
}

func (p *pages) put(g *page) {
	*g = page{} // here and not in get, as those of a fresh block are clear
	p.free = append(p.free, g)
	if p.inUse--; p.inUse == 0 {
		p.reset()
		return
	}
	if p.puts++; p.puts >= blockPages && len(p.free) >= p.inUse/2+2*blockPages {
		p.sweep()
	}
}

// sweep gives blocks back whose pages are all free.
func (p *pages) sweep() {
	p.puts = 0
	slices.SortFunc(p.blocks, func(a, b hugemem.Block) int { return cmp.Compare(address(a.Words), address(b.Words)) })
	// of returns which block the page is of: -1 if it is one from the Go heap.
	of := func(g *page) int {
		at := uintptr(unsafe.Pointer(g))
		i, first := slices.BinarySearchFunc(p.blocks, at, func(b hugemem.Block, at uintptr) int { return cmp.Compare(address(b.Words), at) })
		if !first {
			i--
		}
		if i >= 0 && at-address(p.blocks[i].Words) >= hugemem.Size {
			return -1
		}
		return i
	}
	free := make([]int, len(p.blocks)) // pages of each
	for _, g := range p.free {
		if i := of(g); i >= 0 {
			free[i]++
		}
	}
	p.free = slices.DeleteFunc(p.free, func(g *page) bool {
		i := of(g)
		return i >= 0 && free[i] == blockPages
	})
	keep := p.blocks[:0]
	for i, b := range p.blocks {
		if free[i] == blockPages {
			p.stock.Put(b)
			continue
		}
		keep = append(keep, b)
	}
	clear(p.blocks[len(keep):])
	p.blocks = keep
}

func address(words []uint64) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(words))) }

// reset gives all memory back.
func (p *pages) reset() {
	for _, b := range p.blocks {
		p.stock.Put(b)
	}
	*p = pages{stock: p.stock}
}

func (p *pages) bytes() int64 {
	return int64(p.small)*pageBytes + int64(len(p.blocks))*hugemem.Size + int64(cap(p.free))*8 + int64(cap(p.blocks))*32
}
