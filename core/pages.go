package core

import (
	"sync/atomic"
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

	mapped *atomic.Int64 // bytes that are not on the Go heap
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
		*g = page{}
		return g
	}
	if p.small < smallPages {
		p.small++
		return new(page)
	}
	b := hugemem.Alloc(hugemem.Size)
	p.mapped.Add(hugemem.Size)
	for i := blockPages - 1; i >= 0; i-- {
		p.free = append(p.free, (*page)(unsafe.Pointer(&b.Words[i*pageBytes/8])))
	}
	p.blocks = append(p.blocks, b)
	p.inUse--
	return p.get()
}

func (p *pages) put(g *page) {
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
	blockOf := func(g *page) uintptr { return uintptr(unsafe.Pointer(g)) &^ (hugemem.Size - 1) }
	count := make(map[uintptr]int, len(p.blocks)+1)
	for _, g := range p.free {
		count[blockOf(g)]++
	}
	gone := make(map[uintptr]bool)
	keep := p.blocks[:0]
	for _, b := range p.blocks {
		at := blockOf((*page)(unsafe.Pointer(&b.Words[0])))
		if count[at] == blockPages && at == uintptr(unsafe.Pointer(&b.Words[0])) {
			gone[at] = true
			b.Free()
			p.mapped.Add(-hugemem.Size)
			continue
		}
		keep = append(keep, b)
	}
	p.blocks = keep
	left := p.free[:0]
	for _, g := range p.free {
		if !gone[blockOf(g)] {
			left = append(left, g)
		}
	}
	p.free = left
}

// reset gives all memory back.
func (p *pages) reset() {
	for _, b := range p.blocks {
		b.Free()
		p.mapped.Add(-hugemem.Size)
	}
	*p = pages{mapped: p.mapped}
}

func (p *pages) bytes() int64 {
	return int64(p.small)*pageBytes + int64(len(p.blocks))*hugemem.Size + int64(cap(p.free))*8 + int64(cap(p.blocks))*32
}
