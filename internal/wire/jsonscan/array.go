package jsonscan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Arrays of numbers are most of what requests consist of. Their elements are
// read eight digits at a time, as long as they are plain: digits, a comma and
// at most one space. Whatever else there is, and what is wrong, is read one
// element after the other.

// Uint32s appends the elements of an array of integers of 32 bits to dst. On
// an error about an element, that is the one after those returned. More than
// limit elements in dst are an error.
func (r *Reader) Uint32s(dst []uint32, limit int) []uint32 {
	if !r.Open('[') {
		return dst
	}
	for first := true; r.More(']', &first); {
		if dst = r.plain32(dst, limit); len(dst) >= limit {
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
		if dst = r.plain64(dst, limit); len(dst) >= limit {
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

// plain32 takes plain elements; the position stays at an element.
func (r *Reader) plain32(dst []uint32, limit int) []uint32 {
	b, pos := r.b, r.off
	for len(dst) < limit && pos+10 <= len(b) {
		w := binary.LittleEndian.Uint64(b[pos:])
		n := span(w)
		if n == 0 || n == 8 || n > 1 && byte(w) == '0' || byte(w>>(8*n)) != ',' || !digits(w, n) {
			break
		}
		dst = append(dst, uint32(number(w, n)))
		if pos += n + 1; b[pos] == ' ' {
			pos++
		}
	}
	r.off = pos
	return dst
}

// plain64 is plain32 for numbers of up to twenty digits.
func (r *Reader) plain64(dst []uint64, limit int) []uint64 {
	const head, tail = math.MaxUint64 / 10_000, math.MaxUint64 % 10_000 // of 16 and 4 digits
	b, pos := r.b, r.off
	for len(dst) < limit && pos+32 <= len(b) {
		w := binary.LittleEndian.Uint64(b[pos:])
		n := span(w)
		v, plain := number(w, n), digits(w, n)
		if n == 8 {
			w = binary.LittleEndian.Uint64(b[pos+8:])
			k := span(w)
			plain = plain && digits(w, k)
			v, n = v*power(k)+number(w, k), n+k
			if k == 8 {
				w = binary.LittleEndian.Uint64(b[pos+16:])
				k = span(w)
				plain = plain && digits(w, k)
				last := number(w, k)
				if k > 4 || k == 4 && (v > head || v == head && last > tail) {
					break
				}
				v, n = v*power(k)+last, n+k
			}
		}
		if n == 0 || n > 1 && b[pos] == '0' || b[pos+n] != ',' || !plain {
			break
		}
		dst = append(dst, v)
		if pos += n + 1; b[pos] == ' ' {
			pos++
		}
	}
	r.off = pos
	return dst
}

const ones = 0x0101010101010101

// span returns how many of the word's bytes, from the lowest on, may be
// digits: bit 4 is set in digits, and clear in a comma and in white space. The
// next element's place depends on it, so it is as short as can be; whether the
// bytes are digits is looked at beside that.
func span(w uint64) int { return bits.TrailingZeros64(^w&(0x10*ones)) / 8 }

// digits reports whether the word's lowest n bytes, n up to 8, are digits. A
// carry goes upwards only, from a byte that is none.
func digits(w uint64, n int) bool {
	w ^= '0' * ones // a digit is 0 … 9 now
	return (w+0x76*ones|w)&(0x80*ones)&(1<<(8*n)-1) == 0
}

// number returns the number that the word's lowest n bytes, all digits, write:
// neighbours are joined to pairs, these to fours, these to the eight.
func number(w uint64, n int) uint64 {
	if n == 0 {
		return 0
	}
	w = (w & 0x0F0F0F0F0F0F0F0F) << ((64 - 8*n) & 63) // zeros before the first digit
	w = w*10 + w>>8
	return ((w&0x000000FF000000FF)*(100+1_000_000<<32) + (w>>16&0x000000FF000000FF)*(1+10_000<<32)) >> 32
}

// power returns 10^n, n up to 8.
func power(n int) uint64 {
	return [...]uint64{1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}[n]
}
