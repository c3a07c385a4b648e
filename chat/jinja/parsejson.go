package jinja

import (
	encoding "encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// ParseJSON reads a JSON text as Python's json.loads does: the order of keys is kept,
// integers have any size and are apart from floats, the last of equal keys counts, escaped
// surrogates may stand alone, and NaN and Infinity are numbers. Strings without escapes are
// parts of text, which is kept as long as they are.
func ParseJSON(text string) (Value, error) {
	if !utf8.ValidString(text) {
		return Value{}, &Error{"the JSON text is not UTF-8"}
	}
	p := &jsonParser{text: text}
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	if p.space(); p.pos != len(text) {
		return Value{}, p.fail("more behind the value")
	}
	return v, nil
}

// maxJSONDepth bounds how deep arrays and objects may stand in one another. Python stops
// at its recursion limit, which its version and the caller's depth decide.
const maxJSONDepth = 180

// maxJSONValues bounds how many values a text may have: each takes some hundred bytes, however short
// it is written. Long texts of few values, as conversations are, have no bound here.
const maxJSONValues = 1 << 18

type jsonParser struct {
	text    string
	pos     int
	values  int
	items   []Value // of arrays that are not finished
	entries []entry // of objects that are not finished
	free    []byte  // room behind the strings that had escapes, without length; they are not written again
}

func (p *jsonParser) fail(what string) error {
	return &Error{fmt.Sprintf("not JSON at byte %d: %s", p.pos, what)}
}

func (p *jsonParser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\n', '\r', '\t':
			p.pos++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *jsonParser) value(depth int) (Value, error) {
	if depth > maxJSONDepth {
		return Value{}, &LimitError{"JSON that is nested deeper than it may be"}
	}
	if p.values++; p.values > maxJSONValues {
		return Value{}, &LimitError{"JSON of more values than it may have"}
	}
	p.space()
	switch c := p.peek(); c {
	case '"':
		s, err := p.str()
		return Value{k: str, s: s}, err
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case 't':
		return p.word("true", True)
	case 'f':
		return p.word("false", False)
	case 'n':
		return p.word("null", None)
	case 'N':
		return p.word("NaN", Float(math.NaN()))
	case 'I':
		return p.word("Infinity", Float(math.Inf(1)))
	}
	return p.number()
}

func (p *jsonParser) word(w string, v Value) (Value, error) {
	if !strings.HasPrefix(p.text[p.pos:], w) {
		return v, p.fail("a value is expected")
	}
	p.pos += len(w)
	return v, nil
}

func (p *jsonParser) array(depth int) (Value, error) {
	p.pos++
	from := len(p.items)
	p.space()
	if p.peek() == ']' {
		p.pos++
		return List(), nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		p.items = append(p.items, v)
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
			continue
		case ']':
			p.pos++
		default:
			return v, p.fail("a comma or the array's end is expected")
		}
		own := make([]Value, len(p.items)-from)
		copy(own, p.items[from:])
		p.items = p.items[:from]
		return List(own...), nil
	}
}

func (p *jsonParser) object(depth int) (Value, error) {
	p.pos++
	from := len(p.entries)
	p.space()
	if p.peek() == '}' {
		p.pos++
		return (&Dict{}).Value(), nil
	}
	for {
		p.space()
		if p.peek() != '"' {
			return Value{}, p.fail("a key is expected")
		}
		k, err := p.str()
		if err != nil {
			return Value{}, err
		}
		if p.space(); p.peek() != ':' {
			return Value{}, p.fail("a colon is expected")
		}
		p.pos++
		v, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		p.entries = append(p.entries, entry{Value{k: str, s: k}, v})
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
			continue
		case '}':
			p.pos++
		default:
			return v, p.fail("a comma or the object's end is expected")
		}
		d := newDictOf(p.entries[from:])
		p.entries = p.entries[:from]
		return d.Value(), nil
	}
}

// newDictOf makes a dict of entries whose keys may repeat.
func newDictOf(entries []entry) *Dict {
	if len(entries) > fewEntries {
		d := NewDict(len(entries))
		for _, e := range entries {
			d.Set(e.key.s, e.val)
		}
		return d
	}
	d := &Dict{entries: make([]entry, 0, len(entries))}
next:
	for i, e := range entries {
		for j := range i {
			if entries[j].key.s == e.key.s {
				d.Set(e.key.s, e.val)
				continue next
			}
		}
		d.entries = append(d.entries, e)
	}
	return d
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special has the high bit set of the first of eight bytes that is a quote, a backslash or a control.
func special(w uint64) uint64 {
	q, b := w^lowBits*'"', w^lowBits*'\\'
	hit := ((w - lowBits*0x20) &^ w) | ((q - lowBits) &^ q) | ((b - lowBits) &^ b)
	return hit & highBits
}

// eight are the bytes from i on.
func eight(s string, i int) uint64 {
	e := s[i : i+8] // the compiler makes one load of the eight
	return uint64(e[0]) | uint64(e[1])<<8 | uint64(e[2])<<16 | uint64(e[3])<<24 |
		uint64(e[4])<<32 | uint64(e[5])<<40 | uint64(e[6])<<48 | uint64(e[7])<<56
}

// plainEnd returns where from i the first quote, backslash or control stands.
func plainEnd(s string, i int) int {
	for i+8 <= len(s) {
		if hit := special(eight(s, i)); hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
		i += 8
	}
	for i < len(s) && s[i] >= ' ' && s[i] != '"' && s[i] != '\\' {
		i++
	}
	return i
}

func (p *jsonParser) str() (string, error) {
	from := p.pos + 1
	end := plainEnd(p.text, from)
	if end < len(p.text) && p.text[end] == '"' {
		p.pos = end + 1
		return p.text[from:end], nil
	}
	return p.escaped(from, end)
}

// room returns b with room for n more bytes and some, in memory of which nobody has a string.
func (p *jsonParser) room(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	more := min(len(p.text), maxStrings)
	return append(make([]byte, 0, max(len(b)+n, min(2*cap(b), len(p.text)), more)), b...)
}

// maxStrings is how much memory is taken at a time for strings that had escapes, but for long ones.
const maxStrings = 64 << 10

// escaped reads a string with escapes; up to end there are none.
func (p *jsonParser) escaped(from, end int) (string, error) {
	s := p.text
	b := append(p.room(p.free, end-from+8), s[from:end]...)
	for i := end; ; {
		b = p.room(b, 8)
		if i+8 <= len(s) {
			// Eight are copied before it is known how many of them are the string's.
			w, n := eight(s, i), len(b)
			encoding.LittleEndian.PutUint64(b[n:n+8], w)
			hit := special(w)
			if hit == 0 {
				b, i = b[:n+8], i+8
				continue
			}
			k := bits.TrailingZeros64(hit) / 8
			b, i = b[:n+k], i+k
		} else if end := plainEnd(s, i); end > i {
			b, i = append(b, s[i:end]...), end
			continue
		}
		p.pos = i
		switch {
		case i >= len(s):
			return "", p.fail("the string has no end")
		case s[i] == '"':
			p.pos, p.free = i+1, b[len(b):]
			return unsafe.String(unsafe.SliceData(b), len(b)), nil
		case s[i] != '\\':
			return "", p.fail("a control character in a string")
		case i+1 == len(s):
			return "", p.fail("the string has no end")
		}
		c := s[i+1]
		i += 2
		switch c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, ok := hex4(s, i)
			if !ok {
				return "", p.fail("not an escape")
			}
			i += 4
			if r >= 0xD800 && r < 0xDC00 && strings.HasPrefix(s[i:], `\u`) {
				if low, ok := hex4(s, i+2); ok && low >= 0xDC00 && low < 0xE000 {
					r = 0x10000 + (r-0xD800)<<10 + low - 0xDC00
					i += 6
				}
			}
			b = appendRune(b, r)
		default:
			return "", p.fail("not an escape")
		}
	}
}

func hex4(s string, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[i : i+4]) {
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (p *jsonParser) number() (Value, error) {
	from := p.pos
	digits := func() int {
		i := p.pos
		for p.pos < len(p.text) && isDigit(p.text[p.pos]) {
			p.pos++
		}
		return p.pos - i
	}
	if p.peek() == '-' {
		p.pos++
		if p.peek() == 'I' {
			return p.word("Infinity", Float(math.Inf(-1)))
		}
	}
	if p.peek() == '0' {
		p.pos++
	} else if digits() == 0 {
		p.pos = from
		return Value{}, p.fail("a value is expected")
	}
	end, isFloat := p.pos, false
	if p.peek() == '.' {
		p.pos++
		if digits() > 0 {
			end, isFloat = p.pos, true
		}
		p.pos = end
	}
	if p.peek()|0x20 == 'e' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if digits() > 0 {
			end, isFloat = p.pos, true
		}
		p.pos = end
	}
	text := p.text[from:end]
	if isFloat {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !isRange(err) {
			return Value{}, p.fail("not a number")
		}
		return Float(f), nil
	}
	if len(text) < 19 {
		n, _ := strconv.ParseInt(text, 10, 64) // digits, and few
		return Int(n), nil
	}
	if len(strings.TrimPrefix(text, "-")) > maxIntDigits {
		return Value{}, p.fail("an integer of more than 4300 digits")
	}
	n, _ := new(big.Int).SetString(text, 10) // digits
	return bigValue(n), nil
}
