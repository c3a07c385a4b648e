package head

import (
	"bytes"
	"strings"
)

// End returns how long the head is that text begins with; 0 if it is not there yet:
// then looked, from where on it is to be looked for, is moved on.
func End(text []byte, looked *int) int {
	for {
		n := bytes.IndexByte(text[*looked:], '\n')
		if n < 0 {
			*looked = len(text)
			return 0
		}
		at := *looked + n + 1
		rest := text[at:]
		switch {
		case len(rest) > 0 && rest[0] == '\n':
			return at + 1
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return at + 2
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			*looked = at - 1 // the line end is not the last that is looked at
			return 0
		}
		*looked = at
	}
}

// Line returns the first line of a text, without its end, and the rest.
func Line(text string) (line, rest string) {
	line, rest, _ = strings.Cut(text, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

// Field returns what the line of a header says; ok is false if it is none, or goes on in
// the next line.
func Field(line string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(line, ":")
	value = strings.Trim(value, " \t")
	return name, value, ok && Token(name) && Printable(value)
}

// Token reports whether a text is one (RFC 9110, 5.6.2).
func Token(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-':
		case c <= ' ' || c >= 0x7f || strings.IndexByte("!#$%&'*+.^_`|~", c) < 0:
			return false
		}
	}
	return text != ""
}

// Printable reports whether a header may have the value (RFC 9110, 5.5).
func Printable(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
