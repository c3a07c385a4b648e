package jinja

import (
	"math"
	"unicode/utf8"
)

// jsonStyle is how json.dumps was asked to write.
type jsonStyle struct {
	ascii     bool
	indent    string
	lines     bool // one item a line
	itemSep   string
	keySep    string
	sortKeys  bool
	maxOutput int
	state     *state // of the render, which counts what is done
}

var plainJSON = jsonStyle{itemSep: ", ", keySep: ": "}

// appendJSON writes v as json.dumps does.
func appendJSON(b []byte, v Value, st *jsonStyle, depth int) ([]byte, error) {
	if depth > maxReprDepth {
		return b, &LimitError{"values nested too deep to be written"}
	}
	if st.maxOutput > 0 && len(b) > st.maxOutput {
		return b, errOutput
	}
	switch v.k {
	case none:
		return append(b, "null"...), nil
	case boolean:
		if v.n != 0 {
			return append(b, "true"...), nil
		}
		return append(b, "false"...), nil
	case integer:
		return appendInteger(b, v)
	case float:
		return appendJSONFloat(b, v.float()), nil
	case str:
		return appendJSONString(b, v.s, st.ascii), nil
	case list, tuple:
		items := v.items()
		if len(items) == 0 {
			return append(b, "[]"...), nil
		}
		b = append(b, '[')
		var err error
		for i, x := range items {
			b = st.separate(b, i, depth+1)
			if b, err = appendJSON(b, x, st, depth+1); err != nil {
				return b, err
			}
		}
		return append(st.newline(b, depth), ']'), nil
	case dict:
		return appendJSONDict(b, v.dict(), st, depth)
	}
	return b, typeErr("Object of type %s is not JSON serializable", v.typeName())
}

func (st *jsonStyle) newline(b []byte, depth int) []byte {
	if st.lines {
		b = append(b, '\n')
		for range depth {
			b = append(b, st.indent...)
		}
	}
	return b
}

func (st *jsonStyle) separate(b []byte, i, depth int) []byte {
	if i > 0 {
		b = append(b, st.itemSep...)
	}
	return st.newline(b, depth)
}

func appendJSONDict(b []byte, d *Dict, st *jsonStyle, depth int) ([]byte, error) {
	if d.Len() == 0 {
		return append(b, "{}"...), nil
	}
	entries := d.entries
	if st.sortKeys {
		var err error
		if entries, err = sortedByKey(st.state, entries); err != nil {
			return b, err
		}
	}
	b = append(b, '{')
	for i, e := range entries {
		b = st.separate(b, i, depth+1)
		switch e.key.k {
		case str:
			b = appendJSONString(b, e.key.s, st.ascii)
		case none, boolean, integer, float:
			b = append(b, '"')
			var err error
			if b, err = appendJSON(b, e.key, st, depth+1); err != nil {
				return b, err
			}
			b = append(b, '"')
		default:
			return b, typeErr("keys must be str, int, float, bool or None, not %s", e.key.typeName())
		}
		b = append(b, st.keySep...)
		var err error
		if b, err = appendJSON(b, e.val, st, depth+1); err != nil {
			return b, err
		}
	}
	return append(st.newline(b, depth), '}'), nil
}

func appendJSONFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	return appendFloat(b, f)
}

const hexDigits = "0123456789abcdef"

// appendJSONString writes a string as json.dumps does: with ensure_ascii off only quotes,
// backslashes and what is below a space are escaped.
func appendJSONString(b []byte, s string, ascii bool) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < utf8.RuneSelf || !ascii) && (c != 0x7F || !ascii) {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		n := 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		case '\f':
			b = append(b, '\\', 'f')
		case '\b':
			b = append(b, '\\', 'b')
		default:
			r := rune(c)
			if c >= utf8.RuneSelf {
				r, n = decodeRune(s[i:])
			}
			if r >= 0x10000 {
				r -= 0x10000
				b = appendU(b, 0xD800+r>>10)
				r = 0xDC00 + r&0x3FF
			}
			b = appendU(b, r)
		}
		i += n
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendU(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// tojsonExpr is x|tojson without arguments, which writes itself.
type tojsonExpr struct{ filterExpr }

func (x *tojsonExpr) emit(s *state) error {
	v, err := x.x.eval(s)
	if err != nil {
		return err
	}
	return s.writeJSON(v)
}

func (s *state) writeJSON(v Value) (err error) {
	if v.k == list || v.k == tuple || v.k == dict {
		if err := s.chargeSize(v); err != nil {
			return err
		}
	}
	st := plainJSON
	st.maxOutput = s.limits.Output
	if s.out, err = appendJSON(s.out, v, &st, 0); err == nil && len(s.out) > s.limits.Output {
		err = errOutput
	}
	return err
}

// filterToJSON is the filter tojson as transformers has it.
func filterToJSON(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("tojson", "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return Value{}, err
	}
	st := plainJSON
	st.maxOutput, st.state = len(s.out)+s.limits.Output, s
	st.ascii = given[0].Truth()
	if in := or(given[1], None); in.k != none {
		st.lines = true
		st.itemSep = ","
		switch in.k {
		case integer, boolean:
			if in.int() > 1000 || in.o != nil {
				return Value{}, &LimitError{"a wider indent than it may take"}
			}
			for range in.int() {
				st.indent += " "
			}
		case str:
			st.indent = in.s
		default:
			return Value{}, typeErr("indent must be an int or a str")
		}
	}
	if sep := or(given[2], None); sep.k != none {
		two, err := collect(s, sep)
		if err != nil {
			return Value{}, err
		}
		if len(two) != 2 || two[0].k != str || two[1].k != str {
			return Value{}, typeErr("separators must be two strs")
		}
		st.itemSep, st.keySep = two[0].s, two[1].s
	}
	st.sortKeys = given[3].Truth()
	if err := s.chargeSize(v); err != nil {
		return Value{}, err
	}
	from := len(s.out)
	s.out, err = appendJSON(s.out, v, &st, 0)
	return s.captured(from, err)
}
