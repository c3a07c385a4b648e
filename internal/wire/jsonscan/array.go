package jsonscan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Arrays of numbers are most of what requests consist of. Their elements are taken from
// 64 bytes, or eight of them, at a time, as long as they are plain: digits, a comma and at most one space;
// by vectors where the machine has them, else by words, and so what is left over or not
// plain to the vectors. Whatever else there is, and what is wrong, is read one element
// after the other.

// Uint32s appends the elements of an array of integers of 32 bits to dst. On
// an error about an element, that is the one after those returned. More than
// limit elements in dst are an error.
func (r *Reader) Uint32s(dst []uint32, limit int) []uint32 {
	if !r.Open('[') {
		return dst
	}
	for first := true; r.More(']', &first); {
		if dst = r.plain32(r.vector32(dst, limit), limit); len(dst) >= limit {
			r.tooMany(limit)
			return dst
		}
		r.Peek()
		if v := r.Uint32(); r.err == nil {
			dst = append(dst, v)
		}
	}
	return dst
}

// Uint64s is Uint32s for 64 bits. Elements may also be decimal texts, for
// callers whose numbers have 53 bits, and with signed they may be negative, as
// Int64 has them.
func (r *Reader) Uint64s(dst []uint64, limit int, signed bool) []uint64 {
	if !r.Open('[') {
		return dst
	}
	for first := true; r.More(']', &first); {
		if r.off >= ahead {
			dst = r.plain64(r.vector64(dst, limit, signed), limit, signed)
		}
		if len(dst) >= limit {
			r.tooMany(limit)
			return dst
		}
		if v := r.Whole(signed); r.err == nil {
			dst = append(dst, v)
		}
	}
	return dst
}

func (r *Reader) tooMany(limit int) {
	r.Fail(fmt.Errorf("%w: more than %d", ErrTooMany, limit))
}

// Whole reads an integer, also one as a decimal text; with signed it may be negative,
// as Int64 has it.
func (r *Reader) Whole(signed bool) uint64 {
	if r.Peek() != '"' {
		if signed {
			return r.Int64()
		}
		return r.Uint64()
	}
	text := r.Str()
	if r.err != nil {
		return 0
	}
	if len(text) == 0 || text[0] != '-' && text[0]-'0' > 9 {
		r.Fail(ErrNotInteger)
		return 0
	}
	in := Reader{b: text}
	var v uint64
	if signed {
		v = in.Int64()
	} else {
		v = in.Uint64()
	}
	switch {
	case errors.Is(in.err, ErrRange):
		r.Fail(ErrRange)
	case errors.Is(in.err, ErrNegative):
		r.Fail(ErrNegative)
	case in.err != nil, in.off < len(text): // some other text
		r.Fail(ErrNotInteger)
	}
	return v
}

// plain32 takes plain elements of up to eight digits; the position stays at an element.
//
// Where elements end is found for 64 bytes at once, and before any is read: else each
// would wait for the one before it, from whose end its own place follows.
func (r *Reader) plain32(dst []uint32, limit int) []uint32 {
	b, pos, k := r.b, r.off, len(dst)
	room := dst[:max(k, min(cap(dst), limit))] // what does not fit is appended one by one
	for pos+wide <= len(b) {
		c, at := b[pos:pos+wide:pos+wide], 0 // at: of the next element
		for m := stops(c); m != 0 && k < len(room); m &= m - 1 {
			end := bits.TrailingZeros64(m)
			n := end - at
			w := load(b, pos+at)
			if uint(n-1) >= 8 || c[end&63] != ',' || byte(w) == 0 && n > 1 {
				break
			}
			room[k] = uint32(eight(w << (-8 * n & 63))) // zeros before the first digit
			k++
			if at = end + 1; c[at] == ' ' {
				at++
				m &= m - 1
			}
		}
		if at == 0 {
			break
		}
		pos += at
	}
	r.off = pos
	return room[:k]
}

// plain64 is plain32 for numbers of up to twenty digits; with signed they may be negative.
func (r *Reader) plain64(dst []uint64, limit int, signed bool) []uint64 {
	b, pos, k := r.b, r.off, len(dst)
	room := dst[:max(k, min(cap(dst), limit))]
	for pos+wide <= len(b) {
		c, at := b[pos:pos+wide:pos+wide], 0
		for m := stops(c); m != 0 && k < len(room); m &= m - 1 {
			first, minus := at, uint64(0)
			if signed && c[at] == '-' {
				if m &= m - 1; m == 0 {
					break
				}
				first, minus = at+1, 1
			}
			end := bits.TrailingZeros64(m)
			n := end - first
			if uint(n-1) >= 20 || c[end&63] != ',' || c[first] == '0' && n > 1 {
				break
			}
			v, ok := eight(load(c, first)<<(-8*n&63)), true // n mod 8 digits, or eight
			if n > 8 {
				v, ok = longer(v, c, n, end)
			}
			if !ok || minus == 1 && v > 1<<63 {
				break
			}
			room[k] = v ^ -minus + minus
			k++
			if at = end + 1; c[at] == ' ' {
				at++
				m &= m - 1
			}
		}
		if at == 0 {
			break
		}
		pos += at
	}
	r.off = pos
	return room[:k]
}

const (
	ones  = 0x0101010101010101
	ahead = 8      // bytes that vectors may load before an element
	wide  = 64 + 8 // bytes that are looked at, and those that are loaded with the last of them
)

// stops returns which of the first 64 bytes are no digits, the first byte in the lowest bit.
func stops(c []byte) (m uint64) {
	_ = c[63]
	for i := 0; i < 64; i += 8 {
		w := load(c, i)
		w = (w + 0x76*ones | w) & (0x80 * ones) // a carry comes only from a byte that is none, nor a comma
		m |= w * 0x0002040810204081 >> 56 << i  // the highest bits of the bytes, together
	}
	return m
}

// load returns eight bytes, of which digits are 0 … 9.
func load(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) ^ '0'*ones }

// longer returns the number of n digits, of which v are those before the last eight or
// sixteen, if it has 64 bits.
func longer(v uint64, c []byte, n, end int) (uint64, bool) {
	if n <= 16 {
		return v*1e8 + eight(load(c, end-8)), true
	}
	const most, tail = math.MaxUint64, 10_000_000_000_000_000
	low := eight(load(c, end-16))*1e8 + eight(load(c, end-8))
	return v*tail + low, v < most/tail || v == most/tail && low <= most%tail
}

// eight returns the number of eight digits: neighbours are joined to pairs, these to
// fours, these to the eight.
func eight(w uint64) uint64 {
	w = w * (10<<8 + 1) >> 8 & 0x00FF00FF00FF00FF
	w = w * (100<<16 + 1) >> 16 & 0x0000FFFF0000FFFF
	return w * (10_000<<32 + 1) >> 32
}
