package core

import (
	"cmp"
	"math/bits"
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
	heap   []*page     // free ones from the Go heap
	blocks []pageBlock // by address
	from   int         // of blocks those before have none free
	small  int         // pages from the Go heap
	inUse  int
	puts   int // since the last sweep

	stock *hugemem.Stock // of blocks
}

// pageBlock is a block and which of its pages are free.
type pageBlock struct {
	hugemem.Block
	free [blockPages / 64]uint64
}

const (
	pageBytes  = pageChunks * 64
	blockPages = hugemem.Size / pageBytes
	smallPages = 64 // this many from the heap before the first block
)

var allFree = [blockPages / 64]uint64{^uint64(0), ^uint64(0)}

func (p *pages) get() *page {
	p.inUse++
	if n := len(p.heap); n > 0 {
		g := p.heap[n-1]
		p.heap = p.heap[:n-1]
		return g
	}
	for ; p.from < len(p.blocks); p.from++ {
		b := &p.blocks[p.from]
		for w, free := range b.free {
			if free != 0 {
				b.free[w] &= free - 1
				return b.page(w*64 + bits.TrailingZeros64(free))
			}
		}
	}
	if p.small < smallPages {
		p.small++
		return new(page)
	}
	b := pageBlock{p.stock.Get(), allFree}
	p.from, _ = p.find(uintptr(unsafe.Pointer(b.page(0))))
	p.blocks = slices.Insert(p.blocks, p.from, b)
	p.inUse--
	return p.get()
}

// free returns how many pages are.
func (p *pages) free() int { return p.small + len(p.blocks)*blockPages - p.inUse }

func (p *pages) put(g *page) {
	*g = page{} // here and not in get, as those of a fresh block are clear
	if p.inUse--; p.inUse == 0 {
		p.reset()
		return
	}
	if i := p.at(g); i < 0 {
		p.heap = append(p.heap, g)
	} else {
		n := (uintptr(unsafe.Pointer(g)) - address(p.blocks[i].Words)) / pageBytes
		p.blocks[i].free[n/64] |= 1 << (n % 64)
		p.from = min(p.from, i)
	}
	if p.puts++; p.puts >= blockPages && p.free() >= p.inUse/2+2*blockPages {
		p.sweep()
	}
}

// at returns which block the page is of: -1 if it is one from the Go heap.
func (p *pages) at(g *page) int {
	at := uintptr(unsafe.Pointer(g))
	i, first := p.find(at)
	if !first {
		i--
	}
	if i >= 0 && at-address(p.blocks[i].Words) >= hugemem.Size {
		return -1
	}
	return i
}

// find returns where in the list a block of the address is, or would be.
func (p *pages) find(at uintptr) (i int, is bool) {
	return slices.BinarySearchFunc(p.blocks, at, func(b pageBlock, at uintptr) int { return cmp.Compare(address(b.Words), at) })
}

// sweep gives blocks back whose pages are all free.
func (p *pages) sweep() {
	p.puts = 0 // p.from stays: the blocks before have none free
	p.blocks = slices.DeleteFunc(p.blocks, func(b pageBlock) bool {
		if b.free != allFree {
			return false
		}
		p.stock.Put(b.Block)
		return true
	})
}

func (b *pageBlock) page(i int) *page { return (*page)(unsafe.Pointer(&b.Words[i*pageBytes/8])) }

func address(words []uint64) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(words))) }

// reset gives all memory back.
func (p *pages) reset() {
	for _, b := range p.blocks {
		p.stock.Put(b.Block)
	}
	*p = pages{stock: p.stock}
}

func (p *pages) bytes() int64 {
	return int64(p.small)*pageBytes + int64(len(p.blocks))*hugemem.Size + int64(cap(p.heap))*8 + int64(cap(p.blocks))*pageBlockBytes
}

const pageBlockBytes = 48
