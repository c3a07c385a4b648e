package jinja

import (
	"errors"
	"math"
	"strings"
	"unicode/utf8"
)

// asciiOnly tells whether each byte of s is a character.
func asciiOnly(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// strLen is len(s) in code points. Bytes that continue one are not counted, which holds for
// surrogates too.
func strLen(s string) int {
	n := len(s)
	for i := 0; i < len(s); i++ {
		if s[i]&0xC0 == 0x80 {
			n--
		}
	}
	return n
}

// strOffset is the offset of the i-th code point, 0 <= i <= len.
func strOffset(s string, i int) int {
	for off := 0; off < len(s); off++ {
		if s[off]&0xC0 != 0x80 {
			if i == 0 {
				return off
			}
			i--
		}
	}
	return len(s)
}

func runeSize(s string, off int) int {
	n := 1
	for off+n < len(s) && s[off+n]&0xC0 == 0x80 {
		n++
	}
	return n
}

// length is len(v); ok is false where v has none.
func length(s *state, v Value) (n int, ok bool, err error) {
	switch v.k {
	case str:
		return strLen(v.s), true, s.charge(len(v.s) / 64)
	case list, tuple:
		return len(v.items()), true, nil
	case dict:
		return v.dict().Len(), true, nil
	case view:
		return v.o.(*dictView).d.Len(), true, nil
	case rng:
		return int(v.o.(*pyRange).len()), true, nil
	case undefined:
		return 0, true, nil
	case object:
		if l, isLoop := v.o.(*loopObj); isLoop {
			n, err := l.len(s)
			return n, true, err
		}
	}
	return 0, false, nil
}

// index gives v[i] of a sequence; ok is false where it ends before i.
func index(v Value, i int64) (Value, bool) {
	at := func(n int) (int, bool) {
		if i < 0 {
			i += int64(n)
		}
		return int(i), i >= 0 && i < int64(n)
	}
	switch v.k {
	case list, tuple:
		if j, ok := at(len(v.items())); ok {
			return v.items()[j], true
		}
	case rng:
		r := v.o.(*pyRange)
		if j, ok := at(int(r.len())); ok {
			return r.at(int64(j)), true
		}
	case str:
		n := len(v.s)
		ascii := asciiOnly(v.s)
		if !ascii {
			n = strLen(v.s)
		}
		if j, ok := at(n); ok {
			if !ascii {
				j = strOffset(v.s, j)
			}
			return Value{k: str, s: v.s[j : j+runeSize(v.s, j)], markup: v.markup}, true
		}
	}
	return Value{}, false
}

// getItem is x[k] as the sandbox gives it: the item, or else the attribute of that name, or
// else undefined.
func getItem(s *state, x, k Value) (Value, error) {
	switch x.k {
	case undefined:
		return Value{}, undefErr(x)
	case dict:
		v, err := x.dict().lookup(k)
		if err != nil {
			if left := (*UnsupportedError)(nil); errors.As(err, &left) {
				return Value{}, err
			}
			break
		}
		if v.k != missing {
			return v, nil
		}
	case list, tuple, rng, str:
		if k.k == integer && k.o == nil || k.k == boolean {
			if x.k == str {
				if err := s.charge(len(x.s) / 64); err != nil {
					return Value{}, err
				}
			}
			if v, ok := index(x, k.int()); ok {
				return v, nil
			}
			return undef("an element"), nil
		}
	}
	if k.k == str {
		v, err := attribute(s, x, k.s)
		if err != nil || v.k != missing {
			return v, err
		}
		return undef(k.s), nil
	}
	return undef("an element"), nil
}

// sliceBounds computes Python's indices of a slice of a sequence of n.
func sliceBounds(n int64, from, to, step Value) (lo, hi, by int64, err error) {
	by = 1
	if step.k != none {
		if by, err = sliceInt(step); err != nil {
			return
		}
		if by == 0 {
			return 0, 0, 0, typeErr("slice step cannot be zero")
		}
	}
	clamp := func(v Value, def int64) (int64, error) {
		if v.k == none {
			return def, nil
		}
		i, err := sliceInt(v)
		if i < 0 {
			i += n
			if i < 0 {
				i = 0
				if by < 0 {
					i = -1
				}
			}
		} else if i >= n {
			i = n
			if by < 0 {
				i = n - 1
			}
		}
		return i, err
	}
	first, last := int64(0), n
	if by < 0 {
		first, last = n-1, -1
	}
	if lo, err = clamp(from, first); err != nil {
		return
	}
	hi, err = clamp(to, last)
	return
}

func sliceInt(v Value) (int64, error) {
	if v.k == integer || v.k == boolean {
		if b := v.big(); b != nil {
			if b.Sign() < 0 {
				return math.MinInt64 / 2, nil
			}
			return math.MaxInt64 / 2, nil
		}
		return max(min(v.int(), math.MaxInt64/2), math.MinInt64/2), nil
	}
	return 0, typeErr("slice indices must be integers or None")
}

// getSlice is x[from:to:step].
func getSlice(s *state, x, from, to, step Value) (Value, error) {
	var n int64
	ascii := true
	switch x.k {
	case list, tuple:
		n = int64(len(x.items()))
	case rng:
		n = x.o.(*pyRange).len()
	case str:
		if err := s.charge(len(x.s) / 32); err != nil {
			return Value{}, err
		}
		n = int64(len(x.s))
		if ascii = asciiOnly(x.s); !ascii {
			n = int64(strLen(x.s))
		}
	case undefined:
		return Value{}, undefErr(x)
	default:
		// Unlike other subscripts, slices are Python's own: there is no way to undefined.
		return Value{}, typeErr("'%s' object is not subscriptable", x.typeName())
	}
	lo, hi, by, err := sliceBounds(n, from, to, step)
	if err != nil {
		return Value{}, err
	}
	count := (&pyRange{lo, hi, by}).len()
	if x.k == str && by == 1 {
		if count == 0 {
			return Value{k: str, markup: x.markup}, nil
		}
		if !ascii {
			lo = int64(strOffset(x.s, int(lo)))
			hi = lo + int64(strOffset(x.s[lo:], int(count)))
		}
		x.s = x.s[lo:hi]
		return x, nil
	}
	if x.k == rng {
		r := x.o.(*pyRange)
		return Value{k: rng, o: &pyRange{r.start + lo*r.step, r.start + hi*r.step, r.step * by}}, nil
	}
	if err := s.alloc(int(count) * valueBytes); err != nil {
		return Value{}, err
	}
	if x.k == str {
		return stepString(x, lo, by, count), nil
	}
	items := x.items()
	if by == 1 {
		return Value{k: x.k, o: &seq{items[lo : lo+count : lo+count]}}, nil
	}
	out := make([]Value, count)
	for i := range out {
		out[i] = items[lo+int64(i)*by]
	}
	return Value{k: x.k, o: &seq{out}}, nil
}

func stepString(x Value, lo, by, count int64) Value {
	var offs []int
	for i := 0; i < len(x.s); i += runeSize(x.s, i) {
		offs = append(offs, i)
	}
	var b strings.Builder
	for i := range count {
		off := offs[lo+i*by]
		b.WriteString(x.s[off : off+runeSize(x.s, off)])
	}
	x.s = b.String()
	return x
}
