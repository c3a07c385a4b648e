package core

// content is a run's local hashes, in pieces: all but the last have exactly
// pieceBlocks. Appending, and exchanging a tail, copies one piece, not the run.
// Pieces are shared between a body and the one that replaces it. The first
// piece stands in the struct itself: for a reader that is one cache miss less.
type content struct {
	head []uint64
	rest [][]uint64
}

const (
	pieceBits   = 8
	pieceBlocks = 1 << pieceBits
)

// newContent returns a copy of local as content, with room for total.
func newContent(local []uint64, total int) content {
	c := content{}.with(0, total, true)
	c.write(0, local)
	return c
}

// piece returns the k-th piece.
func (c *content) piece(k int) []uint64 {
	if k == 0 {
		return c.head
	}
	return c.rest[k-1]
}

// from returns the piece that has block i, from that block on.
func (c *content) from(i uint32) []uint64 {
	return c.piece(int(i >> pieceBits))[i&(pieceBlocks-1):]
}

func (c *content) at(i uint32) uint64 { return c.from(i)[0] }

// match returns how many of local equal the blocks from … n-1.
func (c *content) match(from, n uint32, local []uint64) int {
	if left := int(n - from); left < len(local) {
		local = local[:left]
	}
	m := 0
	for m < len(local) {
		some := local[m:min(m+matchAtOnce, len(local))]
		k := c.matchLen(from+uint32(m), some)
		m += k
		if k < len(some) {
			break
		}
	}
	return m
}

// room returns how many blocks there is memory for.
func (c *content) room() int {
	if k := len(c.rest); k > 0 {
		return k<<pieceBits + len(c.rest[k-1])
	}
	return len(c.head)
}

// with returns content with c's first n blocks and room for total. If fresh,
// no memory from n on is shared with c: readers of c may still see it.
func (c content) with(n, total int, fresh bool) content {
	var out content
	full := n >> pieceBits // pieces that are kept as they are
	if pieces := (total + pieceBlocks - 1) >> pieceBits; pieces > 1 {
		out.rest = make([][]uint64, 0, pieces-1)
	}
	if full > 0 {
		out.head = c.head
		out.rest = append(out.rest, c.rest[:full-1]...)
	}
	for at := full << pieceBits; at < total; at += pieceBlocks {
		want := min(total-at, pieceBlocks)
		var p []uint64
		if at < n && !fresh && len(c.piece(full)) >= want {
			p = c.piece(full)
		} else {
			p = make([]uint64, min(classSlots(want), pieceBlocks))
			if at < n {
				copy(p, c.piece(full)[:n-at])
			}
		}
		if at == 0 {
			out.head = p
		} else {
			out.rest = append(out.rest, p)
		}
	}
	return out
}

// write puts local at position i and on, where there is room.
func (c *content) write(i uint32, local []uint64) {
	for len(local) > 0 {
		k := copy(c.from(i), local)
		local = local[k:]
		i += uint32(k)
	}
}

// writeFrom puts the blocks lo … hi-1 of other content at position i and on.
func (c *content) writeFrom(i uint32, other *content, lo, hi uint32) {
	for lo < hi {
		p := other.from(lo)
		p = p[:min(len(p), int(hi-lo))]
		c.write(i, p)
		i, lo = i+uint32(len(p)), lo+uint32(len(p))
	}
}

// part returns a copy of the blocks lo … hi-1.
func (c *content) part(lo, hi uint32) content {
	out := content{}.with(0, int(hi-lo), true)
	out.writeFrom(0, c, lo, hi)
	return out
}

// appendTo appends the blocks lo … hi-1 to dst.
func (c *content) appendTo(dst []uint64, lo, hi uint32) []uint64 {
	for lo < hi {
		p := c.from(lo)
		p = p[:min(len(p), int(hi-lo))]
		dst = append(dst, p...)
		lo += uint32(len(p))
	}
	return dst
}

func (c *content) bytes() int64 {
	if k := len(c.rest); k > 0 {
		return int64(k)*pieceBlocks*8 + sizeClass(int64(len(c.rest[k-1]))*8) + sizeClass(int64(cap(c.rest))*24)
	}
	return sizeClass(int64(len(c.head)) * 8)
}
