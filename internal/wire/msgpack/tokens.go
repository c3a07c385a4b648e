package msgpack

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// AppendUint32s reads an array of integers of 0 … 2^32-1 and appends them to
// dst. A nil is an empty array.
func (r *Reader) AppendUint32s(dst []uint32) []uint32 {
	if r.Nil() {
		return dst
	}
	n := r.Array()
	if n == 0 {
		return dst
	}
	start := len(dst)
	dst = slices.Grow(dst, n)[:start+n]
	out := dst[start:]
	b, off, i := r.b, r.off, 0
	// Engines write the smallest width that holds a token, so the widths mix.
	for ; i < n && off+5 <= len(b); i++ {
		switch c := b[off]; {
		case c == 0xcd:
			out[i] = uint32(binary.BigEndian.Uint16(b[off+1:]))
			off += 3
		case c == 0xce:
			out[i] = binary.BigEndian.Uint32(b[off+1:])
			off += 5
		case c < 0x80:
			out[i] = uint32(c)
			off++
		default:
			r.off = off
			out[i] = r.Uint32()
			off = r.off
		}
	}
	r.off = off
	for ; i < n && r.err == nil; i++ {
		out[i] = r.Uint32()
	}
	if r.err != nil {
		return dst[:start]
	}
	return dst
}

// AppendHashes reads an array of hashes and appends them to dst: integers of
// either sign as a two's complement, binary data by its last eight bytes,
// big-endian. A nil is an empty array.
func (r *Reader) AppendHashes(dst []uint64) []uint64 {
	if r.Nil() {
		return dst
	}
	n := r.Array()
	start := len(dst)
	dst = slices.Grow(dst, n)
	for i := 0; i < n && r.err == nil; i++ {
		dst = append(dst, r.Hash())
	}
	if r.err != nil {
		return dst[:start]
	}
	return dst
}

// Hash reads one hash as AppendHashes does.
func (r *Reader) Hash() uint64 {
	// Nearly every hash is an integer of the full width.
	if r.Len() >= 9 && (r.b[r.off] == 0xcf || r.b[r.off] == 0xd3) {
		v := binary.BigEndian.Uint64(r.b[r.off+1:])
		r.off += 9
		return v
	}
	if r.Kind() != Bin {
		return r.Bits64()
	}
	b := r.Bin()
	if r.err != nil {
		return 0
	}
	if len(b) < 8 {
		r.Fail(fmt.Errorf("%w: a hash of %d bytes, want 8 at least", ErrType, len(b)))
		return 0
	}
	return binary.BigEndian.Uint64(b[len(b)-8:])
}
