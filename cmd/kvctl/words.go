package main

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// plainly writes what it is given to a terminal, with escapes, as JSON has them, for what a terminal
// would obey or what turns other words around: names come from whoever publishes in the fleet.
type plainly struct {
	out  io.Writer
	rest []byte // the beginning of a character; without a character's end it is not written
}

func (p *plainly) Write(text []byte) (int, error) {
	p.rest = append(p.rest, text...)
	var b bytes.Buffer
	for len(p.rest) > 0 && utf8.FullRune(p.rest) {
		r, n := utf8.DecodeRune(p.rest)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteRune(r)
		case r != '\n' && r != '\t' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point):
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		default:
			b.WriteRune(r)
		}
		p.rest = p.rest[n:]
	}
	if _, err := p.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}
