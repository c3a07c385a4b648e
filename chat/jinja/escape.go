package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text is UTF-8 whose surrogates, which Python's strings may hold alone, are written in
// three bytes each like any other code point. Order of bytes is then order of code points,
// and what Python would encode is valid UTF-8 here.

// validText tells whether s is such text.
func validText(s string) bool {
	if utf8.ValidString(s) {
		return true
	}
	for len(s) > 0 {
		r, n := decodeRune(s)
		if r == utf8.RuneError && n == 1 {
			return false
		}
		s = s[n:]
	}
	return true
}

// decodeRune is utf8.DecodeRuneInString that knows surrogates.
func decodeRune(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 && len(s) >= 3 && s[0] == 0xED && s[1] >= 0xA0 && s[1] <= 0xBF && s[2]&0xC0 == 0x80 {
		return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), 3
	}
	return r, n
}

// appendRune is utf8.AppendRune that knows surrogates.
func appendRune(b []byte, r rune) []byte {
	if r >= 0xD800 && r <= 0xDFFF {
		return append(b, 0xED, byte(0x80|r>>6&0x3F), byte(0x80|r&0x3F))
	}
	return utf8.AppendRune(b, r)
}

// normalizeNewlines makes every line end with \n.
func normalizeNewlines(s string) string {
	if strings.IndexByte(s, '\r') < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

var simpleEscapes = map[byte]byte{
	'\\': '\\', '\'': '\'', '"': '"', 'a': 7, 'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11,
}

// unescape gives the value of a string literal: Python's escapes, with one more rule.
// Jinja replaces characters other than ASCII by escapes before it reads escapes, so that
// a backslash before one escapes that escape's backslash.
func unescape(s string) (string, error) {
	s = normalizeNewlines(s)
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		c := s[i]
		if c != '\\' {
			b = append(b, c)
			i++
			continue
		}
		if i++; i == len(s) {
			return "", errors.New("a backslash at a string's end")
		}
		c = s[i]
		if v, ok := simpleEscapes[c]; ok {
			b = append(b, v)
			i++
			continue
		}
		switch {
		case c == '\n':
			i++
		case c >= '0' && c <= '7':
			n := rune(0)
			for j := 0; j < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7'; j++ {
				n = n<<3 | rune(s[i]-'0')
				i++
			}
			b = appendRune(b, n)
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+1+n > len(s) {
				return "", fmt.Errorf("truncated \\%c escape", c)
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || v > utf8.MaxRune {
				return "", fmt.Errorf("\\%s is not an escape", s[i:i+1+n])
			}
			b = appendRune(b, rune(v))
			i += 1 + n
		case c == 'N':
			return "", &UnsupportedError{`\N{…} in strings`}
		case c >= utf8.RuneSelf:
			r, n := decodeRune(s[i:])
			switch {
			case r < 0x100:
				b = fmt.Appendf(b, `\x%02x`, r)
			case r < 0x10000:
				b = fmt.Appendf(b, `\u%04x`, r)
			default:
				b = fmt.Appendf(b, `\U%08x`, r)
			}
			i += n
		default:
			b = append(b, '\\', c)
			i++
		}
	}
	return string(b), nil
}
