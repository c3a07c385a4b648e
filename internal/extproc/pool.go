package extproc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Sizes of pooled buffers are powers of two from 2 KiB to 1 MiB: gRPC gives no buffer back that is
// not above 1 KiB. Its own pool has none between 32 KiB and 1 MiB, so that each part of a body would
// take that, and writes zeros into all that it gives out.
const (
	leastBits = 11
	mostBits  = 20
)

// pool is a mem.BufferPool whose buffers hold what they held before.
type pool struct {
	sizes [mostBits - leastBits + 1]sync.Pool // of *[]byte
}

// Pool is where messages are in memory.
var Pool mem.BufferPool = new(pool)

// sizeOf returns which size holds n bytes.
func sizeOf(n int) int { return max(bits.Len(uint(max(n, 1)-1))-leastBits, 0) }

// Get implements mem.BufferPool.
func (p *pool) Get(n int) *[]byte {
	i := sizeOf(n)
	if i >= len(p.sizes) {
		b := make([]byte, n)
		return &b
	}
	b, _ := p.sizes[i].Get().(*[]byte)
	if b == nil {
		fresh := make([]byte, 1<<(leastBits+i))
		b = &fresh
	}
	*b = (*b)[:n]
	return b
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	if i := sizeOf(cap(*b)); i < len(p.sizes) && cap(*b) == 1<<(leastBits+i) { // else it is none of Get's
		p.sizes[i].Put(b)
	}
}
