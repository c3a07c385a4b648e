package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace is Python's str.isspace of one character.
func isSpace(r rune) bool {
	switch {
	case r <= ' ':
		return r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1C && r <= 0x1F
	case r < utf8.RuneSelf:
		return false
	}
	return unicode.IsSpace(r)
}

func appendUpper(b []byte, r rune) []byte {
	if s, ok := fullUpper[r]; ok {
		return append(b, s...)
	}
	return appendRune(b, unicode.ToUpper(r))
}

func appendTitle(b []byte, r rune) []byte {
	if s, ok := fullTitle[r]; ok {
		return append(b, s...)
	}
	return appendRune(b, unicode.ToTitle(r))
}

// appendLower writes the character of s at i in lower case: a sigma at a word's end is
// another letter.
func appendLower(b []byte, s string, i int, r rune) []byte {
	switch r {
	case 'Σ':
		if finalSigma(s, i) {
			return append(b, "ς"...)
		}
	case 'İ':
		return append(b, "i̇"...)
	}
	return appendRune(b, unicode.ToLower(r))
}

func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) ||
		unicode.Is(unicode.Other_Lowercase, r) || unicode.Is(unicode.Other_Uppercase, r)
}

// isCaseIgnorable is Unicode's property: what stands inside of a word without being of it.
func isCaseIgnorable(r rune) bool {
	switch r {
	case '\'', '.', ':', '^', '`', 0xA8, 0xAD, 0xAF, 0xB4, 0xB7, 0xB8, 0x387, 0x55F, 0x5F4, 0x2018, 0x2019, 0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A:
		return true
	}
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

func finalSigma(s string, i int) bool {
	before := false
	for j := i; j > 0; {
		n := 1
		for j-n > 0 && s[j-n]&0xC0 == 0x80 {
			n++
		}
		j -= n
		if r, _ := decodeRune(s[j:]); !isCaseIgnorable(r) {
			before = isCased(r)
			break
		}
	}
	if !before {
		return false
	}
	for j := i + len("Σ"); j < len(s); {
		r, n := decodeRune(s[j:])
		if !isCaseIgnorable(r) {
			return !isCased(r)
		}
		j += n
	}
	return true
}

// mapCase writes s anew, character by character.
func mapCase(s string, f func(b []byte, i int, r rune) []byte) string {
	b := make([]byte, 0, len(s)+8)
	for i := 0; i < len(s); {
		r, n := decodeRune(s[i:])
		b = f(b, i, r)
		i += n
	}
	return string(b)
}

func upper(s string) string {
	if asciiOnly(s) {
		return strings.ToUpper(s)
	}
	return mapCase(s, func(b []byte, _ int, r rune) []byte { return appendUpper(b, r) })
}

func lower(s string) string {
	if asciiOnly(s) {
		return strings.ToLower(s)
	}
	return mapCase(s, func(b []byte, i int, r rune) []byte { return appendLower(b, s, i, r) })
}

func capitalize(s string) string {
	return mapCase(s, func(b []byte, i int, r rune) []byte {
		if i == 0 {
			return appendTitle(b, r)
		}
		return appendLower(b, s, i, r)
	})
}

func title(s string) string {
	cased := false
	return mapCase(s, func(b []byte, i int, r rune) []byte {
		if cased {
			b = appendLower(b, s, i, r)
		} else {
			b = appendTitle(b, r)
		}
		cased = isCased(r)
		return b
	})
}

func swapcase(s string) string {
	return mapCase(s, func(b []byte, i int, r rune) []byte {
		switch {
		case unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r):
			return appendLower(b, s, i, r)
		case unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r):
			return appendUpper(b, r)
		}
		return appendRune(b, r)
	})
}

// all tells whether s is not empty and f holds for each of its characters.
func all(s string, f func(rune) bool) bool {
	for i := 0; i < len(s); {
		r, n := decodeRune(s[i:])
		if !f(r) {
			return false
		}
		i += n
	}
	return s != ""
}

func isLowerRune(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }
func isUpperRune(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) }

// oneCase is str.islower and str.isupper: some letter has the case, and none another.
func oneCase(s string, want, other func(rune) bool) bool {
	found := false
	for i := 0; i < len(s); {
		r, n := decodeRune(s[i:])
		if other(r) || unicode.IsTitle(r) {
			return false
		}
		found = found || want(r)
		i += n
	}
	return found
}

func isTitled(s string) bool {
	cased, found := false, false
	for i := 0; i < len(s); {
		r, n := decodeRune(s[i:])
		i += n
		switch {
		case isUpperRune(r) || unicode.IsTitle(r):
			if cased {
				return false
			}
			cased, found = true, true
		case isLowerRune(r):
			if !cased {
				return false
			}
			found = true
		default:
			cased = false
		}
	}
	return found
}
