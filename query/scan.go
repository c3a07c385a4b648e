package query

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON (RFC 8259) from a body, one value at a time. It accepts
// only the values that requests consist of: objects of one level, texts,
// whole numbers and arrays of them; so it never recurses.
//
// Its methods return nil or a Problem that names the field.
type scanner struct {
	body []byte
	pos  int
	text []byte // scratch for texts with escapes
}

// malformed is the problem of a body that is not JSON.
func (s *scanner) malformed(expected string) *Problem {
	if s.pos >= len(s.body) {
		return bad("body", reasonMalformedJSON, "the body ends where "+expected+" is expected")
	}
	return bad("body", reasonMalformedJSON, "byte "+strconv.Itoa(s.pos)+": expected "+expected)
}

// next skips white space and returns the byte there without taking it; 0 at
// the end, which is never a byte of valid JSON.
func (s *scanner) next() byte {
	for s.pos < len(s.body) {
		switch c := s.body[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// take takes the byte c, after white space.
func (s *scanner) take(c byte, what string) *Problem {
	if s.next() != c {
		return s.malformed(what)
	}
	s.pos++
	return nil
}

// null takes the literal null if it is next, and reports so.
func (s *scanner) null() (bool, *Problem) {
	if s.next() != 'n' {
		return false, nil
	}
	if len(s.body)-s.pos < 4 || string(s.body[s.pos:s.pos+4]) != "null" {
		return false, s.malformed("a value")
	}
	s.pos += 4
	return true, nil
}

// wrongType is the problem of a value that begins like one of another type.
func (s *scanner) wrongType(field, want string) *Problem {
	switch c := s.next(); {
	case c == '"', c == '{', c == '[', c == 't', c == 'f', c == 'n', c == '-', c >= '0' && c <= '9':
		return bad(field, reasonWrongType, "must be "+want)
	}
	return s.malformed("a value")
}

// str takes a text. The result is valid until the next call.
func (s *scanner) str(field string) ([]byte, *Problem) {
	if s.next() != '"' {
		return nil, s.wrongType(field, "a text")
	}
	s.pos++
	start, ascii := s.pos, true
	for ; s.pos < len(s.body); s.pos++ {
		switch c := s.body[s.pos]; {
		case c == '"':
			text := s.body[start:s.pos]
			if !ascii && !utf8.Valid(text) {
				return nil, bad(field, reasonMalformedJSON, "the text is not valid UTF-8")
			}
			s.pos++
			return text, nil
		case c == '\\':
			return s.escapedStr(field, start)
		case c < ' ':
			return nil, s.malformed("no control character in a text")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, s.malformed("the end of a text")
}

// escapedStr goes on with str at the first escape of the text.
func (s *scanner) escapedStr(field string, start int) ([]byte, *Problem) {
	s.text = append(s.text[:0], s.body[start:s.pos]...)
	for s.pos < len(s.body) {
		c := s.body[s.pos]
		switch {
		case c == '"':
			if !utf8.Valid(s.text) {
				return nil, bad(field, reasonMalformedJSON, "the text is not valid UTF-8")
			}
			s.pos++
			return s.text, nil
		case c < ' ':
			return nil, s.malformed("no control character in a text")
		case c != '\\':
			s.text = append(s.text, c)
			s.pos++
		default:
			if p := s.escape(); p != nil {
				return nil, p
			}
		}
	}
	return nil, s.malformed("the end of a text")
}

// escape takes one escape and appends what it stands for to s.text.
func (s *scanner) escape() *Problem {
	if s.pos+1 >= len(s.body) {
		s.pos = len(s.body)
		return s.malformed("an escape")
	}
	switch c := s.body[s.pos+1]; c {
	case '"', '\\', '/':
		s.text = append(s.text, c)
	case 'b':
		s.text = append(s.text, '\b')
	case 'f':
		s.text = append(s.text, '\f')
	case 'n':
		s.text = append(s.text, '\n')
	case 'r':
		s.text = append(s.text, '\r')
	case 't':
		s.text = append(s.text, '\t')
	case 'u':
		return s.unicodeEscape()
	default:
		return s.malformed("an escape")
	}
	s.pos += 2
	return nil
}

// unicodeEscape takes \uXXXX, or two of them that form a surrogate pair. Half
// a pair stands for no character and is refused.
func (s *scanner) unicodeEscape() *Problem {
	r, ok := s.hex4(s.pos)
	if !ok {
		return s.malformed("four hexadecimal digits")
	}
	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := s.hex4(s.pos + 6)
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return s.malformed("a whole surrogate pair")
		}
		size = 12
	}
	s.text = utf8.AppendRune(s.text, r)
	s.pos += size
	return nil
}

// hex4 reads the \uXXXX at the position.
func (s *scanner) hex4(at int) (rune, bool) {
	if at+6 > len(s.body) || s.body[at] != '\\' || s.body[at+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s.body[at+2 : at+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// boolean takes true or false.
func (s *scanner) boolean(field string) (bool, *Problem) {
	s.next()
	rest := s.body[s.pos:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		s.pos += 4
		return true, nil
	case len(rest) >= 5 && string(rest[:5]) == "false":
		s.pos += 5
		return false, nil
	}
	return false, s.wrongType(field, "true or false")
}
