package core

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// openPages returns memory before and behind which are pages that nobody may read.
func openPages(t *testing.T) []byte {
	const page, open = 4096, 5 * 4096
	memory, err := syscall.Mmap(-1, 0, page+open+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(memory) }) //nolint:errcheck // it ends with the test
	for _, closed := range [][]byte{memory[:page], memory[page+open:]} {
		if err := syscall.Mprotect(closed, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return memory[page : page+open]
}

// firstOf returns the first n items of memory, and lastOf the last ones.
func firstOf[T any](memory []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), n)
}

func lastOf[T any](memory []byte, n int) []T {
	var item T
	return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(memory)), len(memory)-n*int(unsafe.Sizeof(item)))), n)
}

// TestVectorsReadNothingElse: what assembly is given may begin behind memory that is not there, and end before such.
func TestVectorsReadNothingElse(t *testing.T) {
	eachVectors(t, func(t *testing.T) {
		t.Run("comparison", comparisonReadsNothingElse)
		t.Run("filter", filterReadsNothingElse)
		t.Run("directory", directoryReadsNothingElse)
		t.Run("search", searchReadsNothingElse)
	})
}

func comparisonReadsNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 51))
	some, others, lists, middle := openPages(t), openPages(t), openPages(t), openPages(t)
	for n := 1; n <= 3*pieceBlocks; n++ {
		for _, a := range [][]uint64{firstOf[uint64](some, n), lastOf[uint64](some, n)} {
			for _, b := range [][]uint64{firstOf[uint64](others, n), lastOf[uint64](others, n)} {
				for i := range a {
					a[i] = r.Uint64()
				}
				copy(b, a)
				if got := matchLen(a, b); got != n {
					t.Fatalf("%d of %d are equal", got, n)
				}
			}
		}
		local := lastOf[uint64](some, n)
		for _, from := range []int{0, 3} { // of a run that ends with them
			c := content{rest: lastOf[[]uint64](lists, (from+n-1)/pieceBlocks)}
			last := lastOf[uint64](others, (from+n-1)%pieceBlocks+1)
			for i := range c.rest {
				c.rest[i] = firstOf[uint64](middle[i*8*pieceBlocks:], pieceBlocks)
			}
			if k := len(c.rest); k > 0 {
				c.head, c.rest[k-1] = firstOf[uint64](middle[(k-1)*8*pieceBlocks:], pieceBlocks), last
			} else {
				c.head = last
			}
			for i := range local {
				c.from(uint32(from + i))[0] = local[i]
			}
			if got := c.matchLen(uint32(from), local); got != n {
				t.Fatalf("%d of %d blocks from %d on are equal", got, n, from)
			}
		}
	}
}

func filterReadsNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 52))
	key := Key{1, 52}.hasher()
	memory, lines := openPages(t), openPages(t)
	sizes := []int{filterMost - 1, filterMost}
	for n := 1; n <= 70; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		f := &filter{lines: lastOf[filterLine](lines, (n*4/3+lineSlots)/lineSlots)}
		clear(f.lines)
		for _, hashes := range [][]uint64{firstOf[uint64](memory, n), lastOf[uint64](memory, n)} {
			for i := range hashes {
				hashes[i] = r.Uint64()
			}
			f.ask(&key, hashes)
			if absent, added := f.leadingAbsent(&key, hashes), f.add(&key, hashes); absent != n || added != n || f.n != n {
				t.Fatalf("of %d hashes %d are lacking, %d are added", n, absent, added)
			}
			f.drop(&key, hashes)
			if f.n != 0 || slices.ContainsFunc(f.lines, func(l filterLine) bool { return l.find(0) != 0 }) {
				t.Fatalf("of %d hashes %d are left", n, f.n)
			}
		}
	}
}

func directoryReadsNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 53))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	d := &directory{arena: a, pages: &pages{stock: a.stock}, key: Key{1, 53}.hasher()}
	d.insert(r.Uint64(), a.alloc(1, 0, 0)<<segBits)
	d.top[0].leaf.low = 0
	hashMemory, aims, blockMemory := openPages(t), openPages(t), openPages(t)
	for n := 1; n <= probeHashes; n++ {
		hashes, at, blocks := lastOf[uint64](hashMemory, n), lastOf[aim](aims, n), lastOf[uint32](blockMemory, n)
		for i := range hashes {
			hashes[i], blocks[i] = r.Uint64(), a.alloc(1, 0, 0)<<segBits
			a.set(blocks[i], hashes[i])
		}
		d.aimAt(at, hashes)
		entered, late := insertAt(at, blocks)
		if removed, _ := removeAt(at, blocks); entered != n || late != 0 || removed != n {
			t.Fatalf("of %d hashes %d are entered, %d removed; late %b", n, entered, removed, late)
		}
	}
}

func searchReadsNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 54))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	memory := openPages(t)
	for n := range 40 {
		segs := lastOf[uint32](memory, n)
		for i := range segs {
			segs[i] = a.alloc(1, 0, 0)
			for j := range a.hashes(segs[i]) {
				a.hashes(segs[i])[j] = r.Uint64() | 1
			}
		}
		a.ask(segs)
		if got := a.search(segs, 2); got != n {
			t.Fatalf("what none of %d segments has is found in %d", n, got)
		}
		words := lastOf[uint64](memory, 8*n)
		for i := range words {
			words[i] = r.Uint64() | 1
		}
		askFirst(words)
		if got := indexWord(words, 2); got != -1 {
			t.Fatalf("what is none of %d words is found at %d", len(words), got)
		}
	}
}
