package tokenize

import (
	"bytes"
	"unicode/utf8"
)

// literal finds a text.
type literal []byte

func (l literal) next(_ *work, b []byte, from int) (int, int) {
	i := bytes.Index(b[from:], l)
	if i < 0 {
		return len(b), len(b)
	}
	return from + i, from + i + len(l)
}

// charScanner finds single characters.
type charScanner func(t *unicodeTables, c class, r rune) bool

func (s charScanner) next(w *work, b []byte, from int) (int, int) {
	t := w.t
	for i := from; i < len(b); {
		r, n := runeAt(b, i)
		if s(t, t.classes[t.category.at(r)], r) {
			return i, i + n
		}
		i += n
	}
	return len(b), len(b)
}

func isSpace(_ *unicodeTables, c class, _ rune) bool { return c&classSpace != 0 }

func isPunctuation(t *unicodeTables, _ class, r rune) bool {
	return t.traits.at(r)&traitPunctuation != 0
}

func isDigit(t *unicodeTables, _ class, r rune) bool { return t.traits.at(r)&traitDigit != 0 }

// wordScanner finds \w+|[^\w\s]+.
type wordScanner struct{}

func (wordScanner) next(w *work, b []byte, from int) (int, int) {
	t := w.t
	kind := func(i int) (int, int) {
		r, n := runeAt(b, i)
		switch {
		case t.word(r):
			return 1, n
		case t.classes[t.category.at(r)]&classSpace != 0:
			return 0, n
		}
		return 2, n
	}
	for i := from; i < len(b); {
		k, n := kind(i)
		if k == 0 {
			i += n
			continue
		}
		end := i + n
		for end < len(b) {
			next, n := kind(end)
			if next != k {
				break
			}
			end += n
		}
		return i, end
	}
	return len(b), len(b)
}

// run is the end of the run, from i on, of characters with any class of is, and none of not.
func (t *unicodeTables) run(b []byte, i int, is class) int {
	for i < len(b) {
		c := b[i]
		if c < utf8.RuneSelf {
			if t.ascii[c]&is == 0 {
				return i
			}
			i++
			continue
		}
		r, n := runeAt(b, i)
		if t.classes[t.category.at(r)]&is == 0 {
			return i
		}
		i += n
	}
	return i
}

// runNot is the end of the run of characters with no class of not.
func (t *unicodeTables) runNot(b []byte, i int, not class) int {
	for i < len(b) {
		c := b[i]
		if c < utf8.RuneSelf {
			if t.ascii[c]&not != 0 {
				return i
			}
			i++
			continue
		}
		r, n := runeAt(b, i)
		if t.classes[t.category.at(r)]&not != 0 {
			return i
		}
		i += n
	}
	return i
}

// newlines is the end of [\r\n]* at i.
func newlines(b []byte, i int) int {
	for i < len(b) && (b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// digits is the end of \p{N}{1,most} at i, where one stands.
func (t *unicodeTables) digits(b []byte, i, most int) int {
	for ; most > 0 && i < len(b); most-- {
		c, n := t.classAt(b, i)
		if c&classN == 0 {
			break
		}
		i += n
	}
	return i
}

// spaces is the end of \s*[\r\n]+|\s+(?!\S)|\s+ at i, where white space stands; withNewlines
// false leaves the first of these out.
func (t *unicodeTables) spaces(b []byte, i int, withNewlines bool) int {
	// A single space before a word is most of all white space.
	end, last, newline := i, i, -1
	for end < len(b) {
		c, n := t.classAt(b, end)
		if c&classSpace == 0 {
			break
		}
		last = end
		end += n
		if c&classNewline != 0 {
			newline = end
		}
	}
	switch {
	case withNewlines && newline >= 0:
		return newline
	case end == len(b) || last == i:
		return end
	}
	return last
}

// contraction is the end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at i, or i. Without regard to
// case, ſ is an s.
func contraction(b []byte, i int) int {
	if i+1 >= len(b) || b[i] != '\'' {
		return i
	}
	switch b[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if i+2 < len(b) && b[i+2]|0x20 == 'e' {
			return i + 3
		}
	case 'l':
		if i+2 < len(b) && b[i+2]|0x20 == 'l' {
			return i + 3
		}
	case 0xc5 | 0x20: // ſ is c5 bf
		if b[i+1] == 0xc5 && i+2 < len(b) && b[i+2] == 0xbf {
			return i + 3
		}
	}
	return i
}

// gpt2 is 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type gpt2 struct{}

func (gpt2) total() bool { return true }

func (gpt2) next(w *work, b []byte, i int) (int, int) {
	t := w.t
	if b[i] == '\'' && i+1 < len(b) {
		switch b[i+1] {
		case 's', 't', 'm', 'd':
			return i, i + 2
		case 'r', 'v', 'l':
			if i+2 < len(b) && (b[i+1] != 'l' && b[i+2] == 'e' || b[i+1] == 'l' && b[i+2] == 'l') {
				return i, i + 3
			}
		}
	}
	at := i
	if b[i] == ' ' && i+1 < len(b) {
		at++
	}
	c, n := t.classAt(b, at)
	switch {
	case c&classL != 0:
		return i, t.run(b, at+n, classL)
	case c&classN != 0:
		return i, t.run(b, at+n, classN)
	case c&classSpace == 0:
		return i, t.runNot(b, at+n, classSpace|classL|classN)
	}
	return i, t.spaces(b, i, false)
}

// cl100k is the family of
// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type cl100k struct {
	digits int   // at most together
	letter class // \p{L}, or with \p{M}
	longS  bool  // of contractions, where case does not count by Unicode
}

func (*cl100k) total() bool { return true }

func (s *cl100k) next(w *work, b []byte, i int) (int, int) {
	t := w.t
	first := b[i]
	if first == '\'' {
		if end := contraction(b, i); end > i && (s.longS || b[i+1] < utf8.RuneSelf) {
			return i, end
		}
	}
	c, n := t.classAt(b, i)
	switch {
	case c&s.letter != 0:
		return i, t.run(b, i+n, s.letter)
	case c&classN != 0:
		return i, t.digits(b, i, s.digits)
	}
	var next class
	var m int
	if i+n < len(b) {
		next, m = t.classAt(b, i+n)
	}
	if next&s.letter != 0 && c&classNewline == 0 {
		return i, t.run(b, i+n+m, s.letter)
	}
	if c&classSpace == 0 {
		return i, newlines(b, t.runNot(b, i+n, classSpace|classN|s.letter))
	}
	if first == ' ' && m > 0 && next&(classSpace|classN|s.letter) == 0 {
		return i, newlines(b, t.runNot(b, i+n+m, classSpace|classN|s.letter))
	}
	return i, t.spaces(b, i, true)
}

// o200k is the family of
// [^\r\n\p{L}\p{N}]?U*W+(?i:'s|…)?|[^\r\n\p{L}\p{N}]?U+W*(?i:'s|…)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with U for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W for [\p{Ll}\p{Lm}\p{Lo}\p{M}].
type o200k struct {
	digits       int
	contractions bool
	slash        bool // among what follows punctuation
	han          bool // [\p{Han}]+ is first, and neither in U nor in W
}

func (*o200k) total() bool { return true }

func (s *o200k) next(w *work, b []byte, i int) (int, int) {
	t := w.t
	c, n := t.classAt(b, i)
	if s.han && c&classHan != 0 {
		return i, t.run(b, i+n, classHan)
	}
	if c&(classL|classN|classNewline) == 0 {
		end, lower := s.word(t, b, i+n)
		if !lower && c&classM != 0 {
			// A mark before capitals: U*W+ without the optional character comes before U+W* with it.
			end, _ = s.word(t, b, i)
			return i, end
		}
		if end > i+n {
			return i, end
		}
	}
	if c&classL != 0 {
		if end, _ := s.word(t, b, i); end > i {
			return i, end
		}
	}
	if c&classN != 0 {
		return i, t.digits(b, i, s.digits)
	}
	at := -1
	switch {
	case c&(classSpace|classL|classN) == 0:
		at = i + n
	case b[i] == ' ' && i+1 < len(b):
		if c, n := t.classAt(b, i+1); c&(classSpace|classL|classN) == 0 {
			at = i + 1 + n
		}
	}
	if at < 0 {
		return i, t.spaces(b, i, true)
	}
	at = t.runNot(b, at, classSpace|classL|classN)
	for at < len(b) && (b[at] == '\n' || b[at] == '\r' || b[at] == '/' && s.slash) {
		at++
	}
	return i, at
}

// word is the end of U*W+ (lower) or else U+W* at i, with a contraction; i if there is neither.
func (s *o200k) word(t *unicodeTables, b []byte, i int) (end int, lower bool) {
	end = i
	both := -1 // both: the end of the last character of the run of U that is one of W as well
	for end < len(b) {
		c, n := t.classAt(b, end)
		if c&classUpper == 0 || s.han && c&classHan != 0 {
			break
		}
		end += n
		if c&classLower != 0 {
			both = end
		}
	}
	upper := end
	for end < len(b) {
		c, n := t.classAt(b, end)
		if c&classLower == 0 || s.han && c&classHan != 0 {
			break
		}
		end += n
	}
	lower = end > upper || both >= 0
	if end == upper && both >= 0 {
		end = both // U* gives back until W+ has one
	}
	if end > i && s.contractions {
		end = contraction(b, end)
	}
	return end, lower
}
