package msgpack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrTruncated is wrapped by the error about input that ends too early.
var ErrTruncated = errors.New("msgpack ends too early")

// ErrType is wrapped by the error about a value of another type or range than
// was asked for.
var ErrType = errors.New("unexpected msgpack value")

// Kind is what the next value is.
type Kind uint8

// The kinds of values. None is the end of the input, an invalid byte, or an
// earlier error.
const (
	None Kind = iota
	Nil
	Bool
	Int
	Float
	Str
	Bin
	Array
	Map
	Ext
)

// Reader reads one msgpack value after the other.
type Reader struct {
	b   []byte // the input
	off int    // of the next value; len(b) after an error
	err error
}

// NewReader returns a Reader of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Len returns how many bytes remain; 0 after an error.
func (r *Reader) Len() int { return len(r.b) - r.off }

// Offset returns the position of the next value in the input.
func (r *Reader) Offset() int { return r.off }

// Fail sets the error, if there is none yet. A nil err is none.
func (r *Reader) Fail(err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("at byte %d: %w", r.off, err)
		r.off = len(r.b)
	}
}

func (r *Reader) truncated() { r.Fail(ErrTruncated) }

func (r *Reader) unexpected(want string) {
	if r.Len() == 0 {
		r.truncated()
		return
	}
	r.Fail(fmt.Errorf("%w: %#x, want %s", ErrType, r.b[r.off], want))
}

// Kind returns the kind of the next value without reading it.
func (r *Reader) Kind() Kind {
	if r.Len() == 0 {
		return None
	}
	switch c := r.b[r.off]; {
	case c < 0x80, c >= 0xe0:
		return Int
	case c < 0x90:
		return Map
	case c < 0xa0:
		return Array
	case c < 0xc0:
		return Str
	case c == 0xc0:
		return Nil
	case c == 0xc1:
		return None // never used
	case c < 0xc4:
		return Bool
	case c < 0xc7:
		return Bin
	case c < 0xca:
		return Ext
	case c < 0xcc:
		return Float
	case c < 0xd4:
		return Int
	case c < 0xd9:
		return Ext
	case c < 0xdc:
		return Str
	case c < 0xde:
		return Array
	default:
		return Map
	}
}

// Nil reads a nil if that is next and tells whether it was.
func (r *Reader) Nil() bool {
	if r.Len() > 0 && r.b[r.off] == 0xc0 {
		r.off++
		return true
	}
	return false
}

// Bool reads a boolean; a nil is false.
func (r *Reader) Bool() bool {
	if r.Kind() != Bool {
		if !r.Nil() {
			r.unexpected("a boolean")
		}
		return false
	}
	r.off++
	return r.b[r.off-1] == 0xc3
}

// be reads n bytes that follow the first byte as a big-endian number and steps
// over all of them. n is 1, 2, 4 or 8.
func (r *Reader) be(n int) (v uint64, ok bool) {
	if r.Len() < 1+n {
		r.truncated()
		return 0, false
	}
	b := r.b[r.off+1 : r.off+1+n]
	r.off += 1 + n
	switch n {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), true
	}
	return binary.BigEndian.Uint64(b), true
}

// Array reads an array's header and returns its number of elements, at most
// the number of bytes that remain.
func (r *Reader) Array() int { return r.container("an array", 0x90, 0xdc, 1) }

// Map reads a map's header and returns its number of pairs, at most half the
// number of bytes that remain.
func (r *Reader) Map() int { return r.container("a map", 0x80, 0xde, 2) }

func (r *Reader) container(name string, fix, wide byte, perElement int) int {
	if r.Len() == 0 {
		r.truncated()
		return 0
	}
	var n uint64
	var ok bool
	switch c := r.b[r.off]; {
	case c&0xf0 == fix:
		n, ok = uint64(c&0x0f), true
		r.off++
	case c == wide:
		n, ok = r.be(2)
	case c == wide+1:
		n, ok = r.be(4)
	default:
		r.unexpected(name)
	}
	if !ok {
		return 0
	}
	if n > uint64(r.Len()/perElement) {
		r.Fail(fmt.Errorf("%w: %s of %d in %d bytes", ErrTruncated, name, n, r.Len()))
		return 0
	}
	return int(n)
}

// Str reads a string as a part of the input.
func (r *Reader) Str() []byte {
	if r.Len() == 0 {
		r.truncated()
		return nil
	}
	c := r.b[r.off]
	if c&0xe0 == 0xa0 {
		r.off++
		return r.take(uint64(c & 0x1f))
	}
	if c < 0xd9 || c > 0xdb {
		r.unexpected("a string")
		return nil
	}
	n, ok := r.be(1 << (c - 0xd9))
	if !ok {
		return nil
	}
	return r.take(n)
}

// Bin reads binary data as a part of the input.
func (r *Reader) Bin() []byte {
	if r.Kind() != Bin {
		r.unexpected("binary data")
		return nil
	}
	n, ok := r.be(1 << (r.b[r.off] - 0xc4))
	if !ok {
		return nil
	}
	return r.take(n)
}

func (r *Reader) take(n uint64) []byte {
	if n > uint64(r.Len()) {
		r.truncated()
		return nil
	}
	b := r.b[r.off : r.off+int(n) : r.off+int(n)]
	r.off += int(n)
	return b
}

// Uint64 reads an integer that is not negative, of any width.
func (r *Reader) Uint64() uint64 {
	v, negative := r.integer()
	if negative {
		r.Fail(fmt.Errorf("%w: a negative number", ErrType))
		return 0
	}
	return v
}

// Uint32 reads an integer of 0 … 2^32-1, of any width.
func (r *Reader) Uint32() uint32 {
	v := r.Uint64()
	if v > math.MaxUint32 {
		r.Fail(fmt.Errorf("%w: %d is above 32 bits", ErrType, v))
		return 0
	}
	return uint32(v)
}

// Bits64 reads an integer of either sign and any width as a two's complement.
func (r *Reader) Bits64() uint64 {
	v, _ := r.integer()
	return v
}

// integer reads an integer of any width as a two's complement of 64 bits.
func (r *Reader) integer() (v uint64, negative bool) {
	if r.Len() == 0 {
		r.truncated()
		return 0, false
	}
	c := r.b[r.off]
	switch {
	case c < 0x80:
		r.off++
		return uint64(c), false
	case c >= 0xe0:
		r.off++
		return uint64(int64(int8(c))), true
	case c >= 0xcc && c <= 0xcf:
		v, _ = r.be(1 << (c - 0xcc))
		return v, false
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		v, _ = r.be(n)
		shift := 64 - 8*n
		s := int64(v<<shift) >> shift // extends the sign
		return uint64(s), s < 0
	}
	r.unexpected("an integer")
	return 0, false
}

// Float64 reads a float, or an integer as one.
func (r *Reader) Float64() float64 {
	if r.Len() == 0 {
		r.truncated()
		return 0
	}
	switch r.b[r.off] {
	case 0xca:
		v, _ := r.be(4)
		return float64(math.Float32frombits(uint32(v)))
	case 0xcb:
		v, _ := r.be(8)
		return math.Float64frombits(v)
	}
	v, negative := r.integer()
	if negative {
		return float64(int64(v))
	}
	return float64(v)
}

// Skip steps over one value and all that it contains.
func (r *Reader) Skip() {
	for pending := 1; pending > 0 && r.err == nil; pending-- {
		if r.off < len(r.b) && (r.b[r.off] < 0x80 || r.b[r.off] == 0xc0) { // most there are
			r.off++
			continue
		}
		switch r.Kind() {
		case Array:
			pending += r.Array()
		case Map:
			pending += 2 * r.Map()
		case Str:
			r.Str()
		case Bin:
			r.Bin()
		case Int:
			r.integer()
		case Float:
			r.Float64()
		case Nil, Bool:
			r.off++
		case Ext:
			r.skipExt()
		default:
			r.unexpected("a value")
		}
		if pending-1 > r.Len() { // each of them takes a byte at least
			r.truncated()
		}
	}
}

func (r *Reader) skipExt() {
	c := r.b[r.off]
	if c >= 0xd4 {
		r.off++
		r.take(1 + 1<<(c-0xd4))
		return
	}
	if n, ok := r.be(1 << (c - 0xc7)); ok {
		r.take(1 + n)
	}
}
