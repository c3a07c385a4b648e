package tokenize

import "unicode/utf8"

// deepseekSteps are the patterns of DeepSeek-V3's pre-tokenizer: each cuts what the one before left.
var deepseekSteps = [...]string{
	`\p{N}{1,3}`,
	`[一-龥぀-ゟ゠-ヿ]+`,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" + blanks,
}

// isDeepseek reports whether a sequence begins with these steps.
func isDeepseek(steps []component) bool {
	if len(steps) < len(deepseekSteps) {
		return false
	}
	for i, pattern := range deepseekSteps {
		c := &steps[i]
		if c.Type != "Split" || c.Behavior != "Isolated" || c.Pattern == nil || c.Pattern.String != nil || c.Pattern.Regex == nil ||
			escapeLines(*c.Pattern.Regex) != pattern {
			return false
		}
	}
	return true
}

// deepseek is all of deepseekSteps in one pass. Numbers and ideographs (and the kana beside them) are kinds
// of characters, and the third pattern matches within one kind: a change of kind is to it the end of the
// text. In numbers it finds nothing.
type deepseek struct{}

const kinds = classN | classIdeograph

func (deepseek) next(w *work, b []byte, from int) (int, int) {
	t := w.t
	if from+1 < len(b) && b[from] < utf8.RuneSelf && isLatin(b[from+1]) {
		// What a word begins with, most often a space: the cases below, of ASCII.
		switch c := t.ascii[b[from]]; {
		case c&(classP|classS) != 0:
			return from, latin(b, from+2)
		case c&(classN|classNewline) == 0:
			return from, t.runOf(b, from+2, classL|classM, 0)
		}
	}
	c, n := t.classAt(b, from)
	kind := c & kinds
	if kind == classN {
		return from, t.digits(b, from, 3)
	}
	for i := from; ; {
		if c&(classL|classM) != 0 {
			return i, t.runOf(b, i+n, classL|classM, kind)
		}
		var next class
		var m int
		if i+n < len(b) {
			if next, m = t.classAt(b, i+n); next&kinds != kind {
				next, m = 0, 0
			}
		}
		switch {
		case c&(classP|classS) != 0:
			if n == 1 && m == 1 && isLatin(b[i+1]) {
				return i, latin(b, i+2)
			}
			end := t.runOf(b, i+n, classP|classS, kind)
			if kind == 0 {
				end = newlines(b, end)
			}
			return i, end
		case next&(classL|classM) != 0 && c&classNewline == 0:
			return i, t.runOf(b, i+n+m, classL|classM, kind)
		case b[i] == ' ' && next&(classP|classS) != 0:
			return i, newlines(b, t.runOf(b, i+n+m, classP|classS, kind))
		case c&classSpace != 0:
			end := t.spaces(b, i, true)
			if end < len(b) && b[end-1] != '\n' && b[end-1] != '\r' {
				// What it leaves to the next piece is white space only if it may not be the end.
				if c, n := t.classAt(b, end); c&classSpace != 0 && end+n < len(b) {
					if c, _ := t.classAt(b, end+n); c&kinds != kind {
						end += n
					}
				}
			}
			return i, end
		}
		if i += n; m == 0 {
			return i, i // the kind ends without a match
		}
		c, n = next, m
	}
}

// runOf is run among the characters of a kind.
func (t *unicodeTables) runOf(b []byte, i int, is, kind class) int {
	for i < len(b) {
		if c := b[i]; c < utf8.RuneSelf {
			if c := t.ascii[c]; c&is == 0 || c&kinds != kind {
				return i
			}
			i++
			continue
		}
		c, n := t.classAt(b, i)
		if c&is == 0 || c&kinds != kind {
			return i
		}
		i += n
	}
	return i
}

// latin is the end of [A-Za-z]* at i.
func latin(b []byte, i int) int {
	for i < len(b) && isLatin(b[i]) {
		i++
	}
	return i
}

func isLatin(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// numbers is \p{N}{1,3}, or with another number.
type numbers struct{ most int }

func (s numbers) next(w *work, b []byte, from int) (int, int) {
	t := w.t
	for i := from; i < len(b); {
		c, n := t.classAt(b, i)
		if c&classN != 0 {
			return i, t.digits(b, i, s.most)
		}
		i += n
	}
	return len(b), len(b)
}
