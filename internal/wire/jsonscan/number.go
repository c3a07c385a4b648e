package jsonscan

import (
	"fmt"
	"math"
	"math/bits"
)

// Uint64 reads an integer of 0 … 2^64-1, written without fraction or exponent.
func (r *Reader) Uint64() uint64 { return r.uint(math.MaxUint64) }

// Uint32 reads an integer of 0 … 2^32-1.
func (r *Reader) Uint32() uint32 { return uint32(r.uint(math.MaxUint32)) }

// uint reads an integer of at most limit.
func (r *Reader) uint(limit uint64) (v uint64) {
	r.Peek()
	i := r.off
	for ; i < len(r.b) && r.b[i]-'0' <= 9; i++ {
		d := uint64(r.b[i] - '0')
		if i-r.off >= 19 && v > (math.MaxUint64-d)/10 {
			r.notUint(limit)
			return 0
		}
		v = 10*v + d
	}
	n := i - r.off
	if n == 0 || v > limit || n > 1 && r.b[r.off] == '0' || i < len(r.b) && (r.b[i] == '.' || r.b[i]|' ' == 'e') {
		r.notUint(limit)
		return 0
	}
	r.off = i
	return v
}

// notUint fails for the reason that the next value is no integer within its
// limit.
func (r *Reader) notUint(limit uint64) {
	start := r.off
	if c := r.Peek(); c != '-' && c-'0' > 9 {
		r.unexpected(ErrType, "an unsigned integer")
		return
	}
	if r.skipNumber(); r.err != nil {
		return
	}
	kind := fmt.Errorf("%w of %d bits", ErrRange, bits.Len64(limit))
	for _, c := range r.b[start:r.off] {
		if c == '.' || c|' ' == 'e' {
			kind = ErrNotInteger
		}
	}
	if r.b[start] == '-' {
		kind = ErrNegative
	}
	r.off = start
	r.Fail(kind)
}

// Int64 reads an integer of -2^63 … 2^64-1 as its 64 bits: negative numbers
// are two's complement, as hashes are that some wires write with a sign.
func (r *Reader) Int64() uint64 {
	if r.Peek() != '-' || r.off+1 == len(r.b) || r.b[r.off+1]-'0' > 9 {
		return r.Uint64()
	}
	start := r.off
	r.off++
	v := r.uint(1 << 63)
	if r.err != nil {
		return 0
	}
	if v == 0 && r.off-start > 2 {
		r.Fail(fmt.Errorf("%w: a number with leading zeros", ErrSyntax))
	}
	return -v
}

// skipNumber steps over a number: -? digits, fraction, exponent.
func (r *Reader) skipNumber() {
	if r.off < len(r.b) && r.b[r.off] == '-' {
		r.off++
	}
	start := r.off
	if r.digits(); r.err == nil && r.b[start] == '0' && r.off > start+1 {
		r.Fail(fmt.Errorf("%w: a number with leading zeros", ErrSyntax))
	}
	if r.off < len(r.b) && r.b[r.off] == '.' {
		r.off++
		r.digits()
	}
	if r.off < len(r.b) && (r.b[r.off] == 'e' || r.b[r.off] == 'E') {
		r.off++
		if r.off < len(r.b) && (r.b[r.off] == '+' || r.b[r.off] == '-') {
			r.off++
		}
		r.digits()
	}
}

func (r *Reader) digits() {
	start := r.off
	for r.off < len(r.b) && r.b[r.off]-'0' <= 9 {
		r.off++
	}
	if r.off == start && r.err == nil {
		if r.off == len(r.b) {
			r.Fail(ErrTruncated)
			return
		}
		r.Fail(fmt.Errorf("%w: %q, want a value", ErrSyntax, r.b[r.off]))
	}
}
