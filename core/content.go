package core

// content is a run's local hashes, in pieces: all but the last have exactly
// pieceBlocks. Appending, and exchanging a tail, copies one piece, not the run.
// Pieces are shared between a body and the one that replaces it.
type content [][]uint64

const (
	pieceBits   = 8
	pieceBlocks = 1 << pieceBits
)

// newContent returns a copy of local as content.
func newContent(local []uint64) content {
	c := content(nil).with(0, len(local), true)
	c.write(0, local)
	return c
}

func (c content) at(i uint32) uint64 { return c[i>>pieceBits][i&(pieceBlocks-1)] }

// match returns how many of local equal the blocks from … n-1.
func (c content) match(from, n uint32, local []uint64) int {
	if left := int(n - from); left < len(local) {
		local = local[:left]
	}
	m := 0
	for m < len(local) {
		i := from + uint32(m)
		p := c[i>>pieceBits][i&(pieceBlocks-1):]
		k := matchLen(p, local[m:])
		m += k
		if k < len(p) {
			break
		}
	}
	return m
}

// room returns how many blocks there is memory for.
func (c content) room() int {
	if len(c) == 0 {
		return 0
	}
	return (len(c)-1)<<pieceBits + len(c[len(c)-1])
}

// with returns content with c's first n blocks and room for total. If fresh,
// no memory from n on is shared with c: readers of c may still see it.
func (c content) with(n, total int, fresh bool) content {
	full := n >> pieceBits
	out := make(content, full, (total+pieceBlocks-1)>>pieceBits)
	copy(out, c)
	for at := full << pieceBits; at < total; at += pieceBlocks {
		want := min(total-at, pieceBlocks)
		if at < n {
			if p := c[full]; !fresh && len(p) >= want {
				out = append(out, p)
				continue
			}
		}
		p := make([]uint64, min(classSlots(want), pieceBlocks))
		if at < n {
			copy(p, c[full][:n-at])
		}
		out = append(out, p)
	}
	return out
}

// write puts local at position i and on, where there is room.
func (c content) write(i uint32, local []uint64) {
	for len(local) > 0 {
		k := copy(c[i>>pieceBits][i&(pieceBlocks-1):], local)
		local = local[k:]
		i += uint32(k)
	}
}

// appendTo appends the blocks lo … hi-1 to dst.
func (c content) appendTo(dst []uint64, lo, hi uint32) []uint64 {
	for lo < hi {
		p := c[lo>>pieceBits][lo&(pieceBlocks-1):]
		p = p[:min(len(p), int(hi-lo))]
		dst = append(dst, p...)
		lo += uint32(len(p))
	}
	return dst
}

func (c content) bytes() int64 {
	if len(c) == 0 {
		return 0
	}
	return int64(len(c)-1)*pieceBlocks*8 + sizeClass(int64(len(c[len(c)-1]))*8) + sizeClass(int64(cap(c))*24)
}
