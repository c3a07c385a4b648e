package jsonscan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// Str reads a string. It refuses what is not UTF-8, and half a surrogate pair,
// which stands for no character.
func (r *Reader) Str() []byte {
	if r.Peek() != '"' {
		r.unexpected(ErrType, "a string")
		return nil
	}
	start := r.off + 1
	for i := plain(r.b, start); i < len(r.b); i++ {
		switch c := r.b[i]; {
		case c == '"':
			if !utf8.Valid(r.b[start:i]) {
				r.notUTF8()
				return nil
			}
			r.off = i + 1
			return r.b[start:i]
		case c == '\\':
			return r.escaped(start, i)
		case c < ' ':
			r.control(i)
			return nil
		}
	}
	r.Fail(ErrTruncated)
	return nil
}

// plain returns an index from i on before which nothing in b ends a string or is
// out of place in one. It looks at 64 bytes at a time where the machine has vectors for that, and
// else at eight: prompts are long.
func plain(b []byte, i int) int {
	const high = 0x80 * ones
	for i = vectorPlain(b, i); i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// A byte of x below n has its high bit set in (x - ones*n) &^ x, and no other
		// has unless one before it has: the first find is always true.
		if found := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w) & high; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	return i
}

func (r *Reader) notUTF8() { r.Fail(fmt.Errorf("%w: a string is not UTF-8", ErrSyntax)) }

func (r *Reader) control(at int) {
	r.off = at
	r.Fail(fmt.Errorf("%w: control character in a string", ErrSyntax))
}

func (r *Reader) badEscape(at int) {
	if r.off = at; at+1 == len(r.b) {
		r.Fail(ErrTruncated)
		return
	}
	r.Fail(fmt.Errorf("%w: no valid escape in a string", ErrSyntax))
}

// escaped reads the rest of a string whose first backslash is at i.
func (r *Reader) escaped(start, i int) []byte {
	r.text = append(r.text[:0], r.b[start:i]...)
	for i < len(r.b) {
		switch c := r.b[i]; {
		case c == '"':
			if !utf8.Valid(r.text) {
				r.notUTF8()
				return nil
			}
			r.off = i + 1
			return r.text
		case c < ' ':
			r.control(i)
			return nil
		case c != '\\':
			r.text = append(r.text, c)
			i++
		default:
			char, size := escape(r.b[i:])
			if utf16.IsSurrogate(char) {
				low, n := escape(r.b[min(i+size, len(r.b)):])
				char, size = utf16.DecodeRune(char, low), size+n
				if char == utf8.RuneError {
					size = 0
				}
			}
			if size == 0 {
				r.badEscape(i)
				return nil
			}
			r.text = utf8.AppendRune(r.text, char)
			i += size
		}
	}
	r.Fail(ErrTruncated)
	return nil
}

// escape reads the escape that b begins with: what it stands for, maybe half a
// surrogate pair, and its length; 0 if it is none.
func escape(b []byte) (char rune, size int) {
	if len(b) < 2 || b[0] != '\\' {
		return 0, 0
	}
	switch c := b[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		if len(b) < 6 {
			return 0, 0
		}
		for _, c := range b[2:6] {
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			case c >= 'A' && c <= 'F':
				c -= 'A' - 10
			default:
				return 0, 0
			}
			char = char<<4 | rune(c)
		}
		return char, 6
	}
	return 0, 0
}

// skipStr steps over a string. Unlike Str it does not decode it: prompts have
// many escapes.
func (r *Reader) skipStr() {
	for i := r.off + 1; ; {
		if i = plain(r.b, i); i >= len(r.b) {
			break
		}
		switch c := r.b[i]; {
		case c == '"':
			r.off = i + 1
			return
		case c < ' ':
			r.control(i)
			return
		case c == '\\':
			_, size := escape(r.b[i:])
			if size == 0 {
				r.badEscape(i)
				return
			}
			i += size
		default:
			i++
		}
	}
	r.Fail(ErrTruncated)
}
