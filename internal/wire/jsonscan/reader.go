package jsonscan

import (
	"errors"
	"fmt"
)

// ErrTruncated is wrapped by the error about input that ends too early.
var ErrTruncated = errors.New("JSON ends too early")

// ErrSyntax is wrapped by the error about input that is not JSON.
var ErrSyntax = errors.New("JSON is malformed")

// ErrType is wrapped by the error about a value of another type or range than
// was asked for.
var ErrType = errors.New("unexpected JSON value")

// These wrap ErrType and say more of what is wrong with a number, or with an
// array of them.
var (
	ErrNegative   = fmt.Errorf("%w: a negative number, want an unsigned integer", ErrType)
	ErrNotInteger = fmt.Errorf("%w: a number with fraction or exponent", ErrType)
	ErrRange      = fmt.Errorf("%w: a number above its limit", ErrType)
	ErrTooMany    = fmt.Errorf("%w: too many elements", ErrType)
)

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
// is not what was wanted. What begins no value at all is never of a wrong type.
func (r *Reader) unexpected(kind error, want string) {
	switch c := r.Peek(); {
	case c == 0 && r.off == len(r.b):
		r.Fail(ErrTruncated)
	case kind == ErrType && !beginsValue(c): //nolint:errorlint // an argument, not somebody's error
		r.Fail(fmt.Errorf("%w: %q, want a value", ErrSyntax, c))
	default:
		r.Fail(fmt.Errorf("%w: %q, want %s", kind, c, want))
	}
}

func beginsValue(c byte) bool {
	switch c {
	case '{', '[', '"', '-', 't', 'f', 'n':
		return true
	}
	return c-'0' <= 9
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

// Bool reads true or false.
func (r *Reader) Bool() bool {
	switch r.Peek() {
	case 't':
		r.literal("true")
		return r.err == nil
	case 'f':
		r.literal("false")
	default:
		r.unexpected(ErrType, "true or false")
	}
	return false
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
		r.skipStr()
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
