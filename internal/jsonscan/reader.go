package jsonscan

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// ErrTruncated is wrapped by the error about input that ends too early.
var ErrTruncated = errors.New("JSON ends too early")

// ErrSyntax is wrapped by the error about input that is not JSON.
var ErrSyntax = errors.New("JSON is malformed")

// ErrType is wrapped by the error about a value of another type or range than
// was asked for.
var ErrType = errors.New("unexpected JSON value")

// maxDepth is how deep skipped values may nest.
const maxDepth = 64

// Reader reads one JSON text.
type Reader struct {
	b    []byte
	off  int // of the next byte; len(b) after an error
	err  error
	text []byte // the last string that had escapes
}

// Reset makes r read b.
func (r *Reader) Reset(b []byte) { r.b, r.off, r.err = b, 0, nil }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Offset returns where in the text the next byte to read is; its end after an
// error.
func (r *Reader) Offset() int { return r.off }

// Fail sets the error, if there is none yet. A nil err is none.
func (r *Reader) Fail(err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("at byte %d: %w", r.off, err)
		r.off = len(r.b)
	}
}

// Peek skips white space and returns the next byte, 0 at the end.
func (r *Reader) Peek() byte {
	for r.off < len(r.b) {
		switch c := r.b[r.off]; c {
		case ' ', '\t', '\n', '\r':
			r.off++
		default:
			return c
		}
	}
	return 0
}

// End requires that nothing but white space follows.
func (r *Reader) End() {
	if r.Peek() != 0 || r.off < len(r.b) {
		r.Fail(fmt.Errorf("%w: %q after the value", ErrSyntax, r.b[r.off]))
	}
}

// unexpected sets the error about the next byte: the input ends there, or it
// is not what was wanted.
func (r *Reader) unexpected(kind error, want string) {
	if c := r.Peek(); c == 0 && r.off == len(r.b) {
		r.Fail(ErrTruncated)
	} else {
		r.Fail(fmt.Errorf("%w: %q, want %s", kind, c, want))
	}
}

// Open reads the bracket that begins an object ('{') or array ('[').
func (r *Reader) Open(bracket byte) bool {
	if r.Peek() != bracket {
		name := "an object"
		if bracket == '[' {
			name = "an array"
		}
		r.unexpected(ErrType, name)
		return false
	}
	r.off++
	return true
}

// More reads the comma before the next member and tells whether there is one,
// else it reads the closing bracket. first is true before the first member
// only; More clears it.
func (r *Reader) More(closing byte, first *bool) bool {
	c := r.Peek()
	switch {
	case r.err != nil:
		return false
	case c == closing:
		r.off++
		return false
	case *first:
		*first = false
		if c == 0 {
			r.unexpected(ErrSyntax, "a value")
			return false
		}
		return true
	case c == ',':
		r.off++
		if r.Peek() == closing {
			r.unexpected(ErrSyntax, "a value")
			return false
		}
		return true
	}
	r.unexpected(ErrSyntax, "a comma or the end")
	return false
}

// Key reads an object's key and its colon.
func (r *Reader) Key() []byte {
	key := r.Str()
	if r.Peek() != ':' {
		r.unexpected(ErrSyntax, "a colon")
		return nil
	}
	r.off++
	return key
}

// Null reads a null if that is next and tells whether it was.
func (r *Reader) Null() bool {
	if r.Peek() != 'n' {
		return false
	}
	r.literal("null")
	return r.err == nil
}

func (r *Reader) literal(s string) {
	if len(r.b)-r.off < len(s) {
		if string(r.b[r.off:]) == s[:len(r.b)-r.off] {
			r.Fail(ErrTruncated)
			return
		}
	} else if string(r.b[r.off:r.off+len(s)]) == s {
		r.off += len(s)
		return
	}
	r.Fail(fmt.Errorf("%w: want %s", ErrSyntax, s))
}

// Str reads a string.
func (r *Reader) Str() []byte {
	if r.Peek() != '"' {
		r.unexpected(ErrType, "a string")
		return nil
	}
	start := r.off + 1
	for i := plain(r.b, start); i < len(r.b); i++ {
		switch c := r.b[i]; {
		case c == '"':
			r.off = i + 1
			return r.b[start:i]
		case c == '\\':
			return r.escaped(start, i)
		case c < ' ':
			r.Fail(fmt.Errorf("%w: control character in a string", ErrSyntax))
			return nil
		}
	}
	r.Fail(ErrTruncated)
	return nil
}

// plain returns an index from i on before which nothing in b ends a string or is
// out of place in one. It looks at eight bytes at a time: prompts are long.
func plain(b []byte, i int) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(low*'"'), w^(low*'\\')
		// A byte of x below n has its high bit set in (x - low*n) &^ x, and no other
		// has unless one before it has: the first find is always true.
		if found := ((quote-low)&^quote | (slash-low)&^slash | (w-low*' ')&^w) & high; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	return i
}

// escaped reads the rest of a string that has a backslash at i. Such strings
// are rare here (no key or number has one), so the standard library does it.
func (r *Reader) escaped(start, i int) []byte {
	for ; i < len(r.b); i++ {
		switch r.b[i] {
		case '\\':
			i++
		case '"':
			var s string
			if err := json.Unmarshal(r.b[start-1:i+1], &s); err != nil {
				r.Fail(fmt.Errorf("%w: %w", ErrSyntax, err))
				return nil
			}
			r.off = i + 1
			r.text = append(r.text[:0], s...)
			return r.text
		}
	}
	r.Fail(ErrTruncated)
	return nil
}

// Uint64 reads an integer of 0 … 2^64-1, written without fraction or exponent.
func (r *Reader) Uint64() uint64 {
	c := r.Peek()
	if c < '0' || c > '9' {
		r.unexpected(ErrType, "an unsigned integer")
		return 0
	}
	var v uint64
	start := r.off
	for ; r.off < len(r.b); r.off++ {
		c := r.b[r.off]
		if c < '0' || c > '9' {
			if c == '.' || c == 'e' || c == 'E' {
				r.Fail(fmt.Errorf("%w: a number with fraction or exponent, want an unsigned integer", ErrType))
				return 0
			}
			break
		}
		d := uint64(c - '0')
		if v > (math.MaxUint64-d)/10 {
			r.Fail(fmt.Errorf("%w: a number above 64 bits", ErrType))
			return 0
		}
		v = 10*v + d
	}
	if r.b[start] == '0' && r.off > start+1 {
		r.Fail(fmt.Errorf("%w: a number with leading zeros", ErrSyntax))
		return 0
	}
	return v
}

// Uint32 reads an integer of 0 … 2^32-1.
func (r *Reader) Uint32() uint32 {
	v := r.Uint64()
	if v > math.MaxUint32 {
		r.Fail(fmt.Errorf("%w: %d is above 32 bits", ErrType, v))
		return 0
	}
	return uint32(v)
}

// Raw reads one value of any kind and returns its text, a part of the input.
func (r *Reader) Raw() []byte {
	r.Peek()
	start := r.off
	if r.Skip(); r.err != nil {
		return nil
	}
	return r.b[start:r.off]
}

// Skip steps over one value and all that it contains.
func (r *Reader) Skip() { r.skip(0) }

func (r *Reader) skip(depth int) {
	if depth > maxDepth {
		r.Fail(fmt.Errorf("%w: nested deeper than %d", ErrSyntax, maxDepth))
		return
	}
	switch c := r.Peek(); {
	case c == '{' && r.Open('{'):
		for first := true; r.More('}', &first); {
			r.Key()
			r.skip(depth + 1)
		}
	case c == '[' && r.Open('['):
		for first := true; r.More(']', &first); {
			r.skip(depth + 1)
		}
	case c == '"':
		r.skipString()
	case c == 't':
		r.literal("true")
	case c == 'f':
		r.literal("false")
	case c == 'n':
		r.literal("null")
	default:
		r.skipNumber()
	}
}

// skipString steps over a string. Unlike Str it does not decode escapes, which
// prompts have many of.
func (r *Reader) skipString() {
	for i := r.off + 1; ; i++ {
		if i = plain(r.b, i); i >= len(r.b) {
			break
		}
		switch c := r.b[i]; {
		case c == '"':
			r.off = i + 1
			return
		case c == '\\':
			if i++; i < len(r.b) && r.b[i] == 'u' {
				for end := i + 4; i < end && i+1 < len(r.b); i++ {
					if h := r.b[i+1]; (h < '0' || h > '9') && (h|0x20 < 'a' || h|0x20 > 'f') {
						r.Fail(fmt.Errorf("%w: \\u without four hex digits", ErrSyntax))
						return
					}
				}
			} else if i < len(r.b) && !strings.ContainsRune(`"\/bfnrt`, rune(r.b[i])) {
				r.Fail(fmt.Errorf("%w: \\%c in a string", ErrSyntax, r.b[i]))
				return
			}
		case c < ' ':
			r.Fail(fmt.Errorf("%w: control character in a string", ErrSyntax))
			return
		}
	}
	r.Fail(ErrTruncated)
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
	for r.off < len(r.b) && r.b[r.off] >= '0' && r.b[r.off] <= '9' {
		r.off++
	}
	if r.off == start {
		if r.off == len(r.b) {
			r.Fail(ErrTruncated)
			return
		}
		r.Fail(fmt.Errorf("%w: %q, want a value", ErrSyntax, r.b[r.off]))
	}
}
