package tokenize

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep values of a file stand in each other.
const maxDepth = 64

var errJSON = errors.New("not valid JSON")

// reader goes once over a file's JSON, in place: a vocabulary of 30 MB is not
// worth a map of Go strings.
type reader struct {
	b   []byte
	at  int
	buf []byte // of the last string that had escapes
}

func (r *reader) fail() error { return fmt.Errorf("%w at byte %d", errJSON, r.at) }

func (r *reader) space() byte {
	for r.at < len(r.b) {
		switch c := r.b[r.at]; c {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return c
		}
	}
	return 0
}

func (r *reader) take(c byte) bool {
	if r.space() == c {
		r.at++
		return true
	}
	return false
}

// str reads a string. What it returns is good until the next one.
func (r *reader) str() ([]byte, error) {
	if !r.take('"') {
		return nil, r.fail()
	}
	from := r.at
	for r.at < len(r.b) {
		switch c := r.b[r.at]; {
		case c == '"':
			r.at++
			return r.b[from : r.at-1], nil
		case c == '\\':
			return r.escaped(from)
		case c < ' ':
			return nil, r.fail()
		default:
			r.at++
		}
	}
	return nil, r.fail()
}

func (r *reader) escaped(from int) ([]byte, error) {
	r.buf = append(r.buf[:0], r.b[from:r.at]...)
	for r.at < len(r.b) {
		c := r.b[r.at]
		switch {
		case c == '"':
			r.at++
			return r.buf, nil
		case c < ' ':
			return nil, r.fail()
		case c != '\\':
			r.buf = append(r.buf, c)
			r.at++
			continue
		}
		if r.at+1 >= len(r.b) {
			break
		}
		c = r.b[r.at+1]
		r.at += 2
		switch c {
		case '"', '\\', '/':
			r.buf = append(r.buf, c)
		case 'b':
			r.buf = append(r.buf, '\b')
		case 'f':
			r.buf = append(r.buf, '\f')
		case 'n':
			r.buf = append(r.buf, '\n')
		case 'r':
			r.buf = append(r.buf, '\r')
		case 't':
			r.buf = append(r.buf, '\t')
		case 'u':
			u, err := r.hex()
			if err != nil {
				return nil, err
			}
			if utf16.IsSurrogate(u) {
				if !bytes.HasPrefix(r.b[r.at:], []byte(`\u`)) {
					return nil, r.fail()
				}
				r.at += 2
				low, err := r.hex()
				if err != nil {
					return nil, err
				}
				if u = utf16.DecodeRune(u, low); u == utf8.RuneError {
					return nil, r.fail()
				}
			}
			r.buf = utf8.AppendRune(r.buf, u)
		default:
			return nil, r.fail()
		}
	}
	return nil, r.fail()
}

func (r *reader) hex() (rune, error) {
	if r.at+4 > len(r.b) {
		return 0, r.fail()
	}
	u, err := strconv.ParseUint(string(r.b[r.at:r.at+4]), 16, 16)
	if err != nil {
		return 0, r.fail()
	}
	r.at += 4
	return rune(u), nil
}

// uint reads a number that is an id.
func (r *reader) uint() (uint32, error) {
	r.space()
	from, n := r.at, uint64(0)
	for r.at < len(r.b) && r.b[r.at] >= '0' && r.b[r.at] <= '9' && n < 1<<32 {
		n = n*10 + uint64(r.b[r.at]-'0')
		r.at++
	}
	if r.at == from || n >= 1<<32-1 {
		return 0, r.fail()
	}
	return uint32(n), nil
}

// skip goes over a value of any kind and returns it.
func (r *reader) skip() ([]byte, error) {
	r.space()
	from, depth := r.at, 0
	for {
		switch c := r.space(); {
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return nil, fmt.Errorf("nested deeper than %d at byte %d", maxDepth, r.at)
			}
			r.at++
		case c == '}' || c == ']':
			depth--
			r.at++
		case c == '"':
			if _, err := r.str(); err != nil {
				return nil, err
			}
		case c == 0 || depth == 0 && (c == ',' || c == ':'):
			return nil, r.fail()
		case c == ',' || c == ':':
			r.at++
			continue
		default:
			for r.at < len(r.b) && bytes.IndexByte([]byte(" \t\r\n,:{}[]\""), r.b[r.at]) < 0 {
				r.at++
			}
		}
		if depth <= 0 {
			return r.b[from:r.at], nil
		}
	}
}

// object calls f with each key; f reads the value.
func (r *reader) object(f func(key []byte) error) error {
	if !r.take('{') {
		return r.fail()
	}
	if r.take('}') {
		return nil
	}
	for {
		key, err := r.str()
		if err != nil {
			return err
		}
		if !r.take(':') {
			return r.fail()
		}
		if err := f(key); err != nil {
			return err
		}
		if r.take('}') {
			return nil
		}
		if !r.take(',') {
			return r.fail()
		}
	}
}

// array calls f before each element; f reads it.
func (r *reader) array(f func() error) error {
	if !r.take('[') {
		return r.fail()
	}
	if r.take(']') {
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if r.take(']') {
			return nil
		}
		if !r.take(',') {
			return r.fail()
		}
	}
}

// fields are an object's values as they stand, by key.
func fields(b []byte) (map[string][]byte, error) {
	m := map[string][]byte{}
	r := reader{b: b}
	err := r.object(func(key []byte) error {
		k := string(key)
		if _, ok := m[k]; ok {
			return fmt.Errorf("%q stands twice", k)
		}
		v, err := r.skip()
		m[k] = v
		return err
	})
	if err == nil && r.space() != 0 {
		err = r.fail()
	}
	return m, err
}
