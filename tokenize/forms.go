package tokenize

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

const (
	hangulBase   = 0xAC00
	hangulL      = 0x1100
	hangulV      = 0x1161
	hangulT      = 0x11A7 // one before the first
	hangulLCount = 19
	hangulVCount = 21
	hangulTCount = 28
	hangulCount  = hangulLCount * hangulVCount * hangulTCount
)

// notASCII are the bits that no byte of ASCII has.
const notASCII = 0x8080808080808080

// form is one of Unicode's normal forms, of the judges' version of Unicode, and
// without the limit on combining characters of golang.org/x/text.
type form struct {
	compat  bool
	compose bool
}

// apply appends src in the form.
func (f form) apply(w *work, dst, src []byte) []byte {
	t := w.t
	mask := uint8(quickC)
	if f.compat {
		mask = quickK
	}
	dst = slices.Grow(dst, len(src))
	done, last := 0, 0 // what is appended; the last character that nothing before it can change
	for i := 0; i < len(src); {
		if src[i] < utf8.RuneSelf {
			for i+8 < len(src) && binary.LittleEndian.Uint64(src[i+1:])&notASCII == 0 {
				i += 8
			}
			last = i
			i++
			continue
		}
		r, n := runeAt(src, i)
		if f.safe(t, r, mask) {
			last = i
			i += n
			continue
		}
		// From the last start before to the next one after: nothing outside takes part.
		from := max(last, done)
		end := i + n
		for end < len(src) {
			r, n := runeAt(src, end)
			if f.safe(t, r, mask) {
				break
			}
			end += n
		}
		dst = append(dst, src[done:from]...)
		dst = f.section(t, w, dst, src[from:end])
		done, last, i = end, end, end
	}
	return append(dst, src[done:]...)
}

// safe says that r stays as it is whatever follows, unless it is the character before an unsafe one.
func (f form) safe(t *unicodeTables, r rune, mask uint8) bool {
	if f.compose {
		return t.quick.at(r)&mask == 0
	}
	if t.combining.at(r) != 0 || r >= hangulBase && r < hangulBase+hangulCount {
		return false
	}
	if _, ok := t.canonical[r]; ok {
		return false
	}
	if f.compat {
		_, ok := t.compat[r]
		return !ok
	}
	return true
}

// section appends one section that begins with a start, decomposed, ordered and composed.
func (f form) section(t *unicodeTables, w *work, dst, src []byte) []byte {
	rs := w.runes[:0]
	for i := 0; i < len(src); {
		r, n := runeAt(src, i)
		i += n
		rs = f.decompose(t, rs, r)
	}
	order(t, rs)
	if f.compose {
		rs = compose(t, rs)
	}
	for _, r := range rs {
		dst = utf8.AppendRune(dst, r)
	}
	w.runes = rs
	return dst
}

func (f form) decompose(t *unicodeTables, rs []rune, r rune) []rune {
	if r < 0x80 {
		return append(rs, r)
	}
	if s := r - hangulBase; s >= 0 && s < hangulCount {
		rs = append(rs, hangulL+s/(hangulVCount*hangulTCount), hangulV+s%(hangulVCount*hangulTCount)/hangulTCount)
		if tail := s % hangulTCount; tail != 0 {
			rs = append(rs, hangulT+tail)
		}
		return rs
	}
	if f.compat {
		if d, ok := t.compat[r]; ok {
			return append(rs, d...)
		}
	}
	if d, ok := t.canonical[r]; ok {
		return append(rs, d...)
	}
	return append(rs, r)
}

// order sorts each run of combining characters by class, those of one class as they stood.
func order(t *unicodeTables, rs []rune) {
	for i := 0; i < len(rs); {
		if t.combining.at(rs[i]) == 0 {
			i++
			continue
		}
		end, sorted := i+1, true
		for end < len(rs) && t.combining.at(rs[end]) != 0 {
			sorted = sorted && t.combining.at(rs[end-1]) <= t.combining.at(rs[end])
			end++
		}
		if !sorted {
			slices.SortStableFunc(rs[i:end], func(a, b rune) int { return int(t.combining.at(a)) - int(t.combining.at(b)) })
		}
		i = end
	}
}

// compose joins, in place, each character with the last start where nothing between keeps them apart.
func compose(t *unicodeTables, rs []rune) []rune {
	start, before := -1, uint8(0) // the last start in out, and the class of what came last after it
	out := rs[:0]
	for _, r := range rs {
		c := t.combining.at(r)
		if start >= 0 && (before < c || before == 0 && start == len(out)-1) {
			if joined, ok := join(t, out[start], r); ok {
				out[start] = joined
				continue
			}
		}
		if c == 0 {
			start, before = len(out), 0
		} else {
			before = c
		}
		out = append(out, r)
	}
	return out
}

func join(t *unicodeTables, a, b rune) (rune, bool) {
	if a >= hangulL && a < hangulL+hangulLCount && b >= hangulV && b < hangulV+hangulVCount {
		return hangulBase + ((a-hangulL)*hangulVCount+b-hangulV)*hangulTCount, true
	}
	if s := a - hangulBase; s >= 0 && s < hangulCount && s%hangulTCount == 0 && b > hangulT && b < hangulT+hangulTCount {
		return a + b - hangulT, true
	}
	r, ok := t.pairs[[2]rune{a, b}]
	return r, ok
}
