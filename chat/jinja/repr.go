package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxReprDepth bounds how deep values may stand in one another when they are written.
const maxReprDepth = 200

// appendStr writes str(v).
func appendStr(b []byte, v Value) ([]byte, error) {
	switch v.k {
	case str:
		return append(b, v.s...), nil
	case undefined:
		return b, nil
	}
	return appendRepr(b, v, 0)
}

// toStr is str(v).
func toStr(v Value) (string, error) {
	if v.k == str {
		return v.s, nil
	}
	b, err := appendStr(nil, v)
	return string(b), err
}

// appendRepr writes repr(v).
func appendRepr(b []byte, v Value, depth int) ([]byte, error) {
	if depth > maxReprDepth {
		return b, &LimitError{"values nested too deep to be written"}
	}
	var err error
	switch v.k {
	case undefined:
		return append(b, "Undefined"...), nil
	case none:
		return append(b, "None"...), nil
	case boolean:
		if v.n != 0 {
			return append(b, "True"...), nil
		}
		return append(b, "False"...), nil
	case integer:
		return appendInteger(b, v)
	case float:
		return appendFloat(b, v.float()), nil
	case str:
		if v.markup {
			b = append(appendQuoted(append(b, "Markup("...), v.s), ')')
			return b, nil
		}
		return appendQuoted(b, v.s), nil
	case list, tuple:
		open, shut := byte('['), byte(']')
		if v.k == tuple {
			open, shut = '(', ')'
		}
		b = append(b, open)
		for i, x := range v.items() {
			if i > 0 {
				b = append(b, ", "...)
			}
			if b, err = appendRepr(b, x, depth+1); err != nil {
				return b, err
			}
		}
		if v.k == tuple && len(v.items()) == 1 {
			b = append(b, ',')
		}
		return append(b, shut), nil
	case dict:
		b = append(b, '{')
		for i, e := range v.dict().entries {
			if i > 0 {
				b = append(b, ", "...)
			}
			if b, err = appendRepr(b, e.key, depth+1); err != nil {
				return b, err
			}
			b = append(b, ": "...)
			if b, err = appendRepr(b, e.val, depth+1); err != nil {
				return b, err
			}
		}
		return append(b, '}'), nil
	case view:
		w := v.o.(*dictView)
		b = append(b, "dict_"+w.what.String()+"(["...)
		for i := range w.d.entries {
			if i > 0 {
				b = append(b, ", "...)
			}
			if b, err = appendRepr(b, w.at(i), depth+1); err != nil {
				return b, err
			}
		}
		return append(b, "])"...), nil
	case rng:
		r := v.o.(*pyRange)
		if r.step == 1 {
			return fmt.Appendf(b, "range(%d, %d)", r.start, r.stop), nil
		}
		return fmt.Appendf(b, "range(%d, %d, %d)", r.start, r.stop, r.step), nil
	case object:
		if l, ok := v.o.(*loopObj); ok {
			n, err := l.len(nil)
			if err != nil {
				return b, err
			}
			return fmt.Appendf(b, "<LoopContext %d/%d>", l.index0+1, n), err
		}
		if m, ok := v.o.(*macro); ok {
			if m.code.name == "" {
				return append(b, "<Macro anonymous>"...), nil
			}
			return append(appendQuoted(append(b, "<Macro "...), m.code.name), '>'), nil
		}
		if n, ok := v.o.(*namespace); ok {
			b = append(b, "<Namespace "...)
			b, err = appendRepr(b, n.attrs.Value(), depth+1)
			return append(b, '>'), err
		}
	}
	// Python writes an address.
	return b, &UnsupportedError{"a " + v.typeName() + " as text"}
}

// appendQuoted writes the repr of a string: single quotes, unless it has those and no
// double ones; what cannot be printed is escaped.
func appendQuoted(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == quote || c == '\\':
				b = append(b, '\\', c)
			case c == '\n':
				b = append(b, `\n`...)
			case c == '\r':
				b = append(b, `\r`...)
			case c == '\t':
				b = append(b, `\t`...)
			case c < ' ' || c == 0x7F:
				b = fmt.Appendf(b, `\x%02x`, c)
			default:
				b = append(b, c)
			}
			continue
		}
		r, n := decodeRune(s[i:])
		switch {
		case isPrintable(r):
			b = append(b, s[i:i+n]...)
		case r < 0x100:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
		i += n
	}
	return append(b, quote)
}

// isPrintable is Python's: neither a control, a surrogate, private, unassigned, nor a
// separator other than the space.
func isPrintable(r rune) bool { return unicode.IsPrint(r) }
