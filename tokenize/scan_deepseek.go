package tokenize

// The steps of DeepSeek-V3's pre-tokenizer, each a pattern of its own.

// numbers is \p{N}{1,3}
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

// ideographs is [一-龥぀-ゟ゠-ヿ]+
type ideographs struct{}

func isIdeograph(b []byte, i int) bool {
	c := b[i]
	if c < 0xe3 || c > 0xe9 {
		return false
	}
	r, _ := runeAt(b, i)
	return r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff
}

func (ideographs) next(_ *work, b []byte, from int) (int, int) {
	i := from
	for i < len(b) && !isIdeograph(b, i) {
		i++
	}
	end := i
	for end < len(b) && isIdeograph(b, end) {
		end += 3
	}
	return i, end
}

// deepseek is [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type deepseek struct{}

func (deepseek) next(w *work, b []byte, from int) (int, int) {
	t := w.t
	for i := from; i < len(b); {
		c, n := t.classAt(b, i)
		if n == 1 && c&(classP|classS) != 0 && i+1 < len(b) && isLatin(b[i+1]) {
			end := i + 2
			for end < len(b) && isLatin(b[end]) {
				end++
			}
			return i, end
		}
		if c&(classL|classM) != 0 {
			return i, t.run(b, i+n, classL|classM)
		}
		var next class
		var m int
		if i+n < len(b) {
			next, m = t.classAt(b, i+n)
		}
		switch {
		case next&(classL|classM) != 0 && c&(classNewline|classP|classS) == 0:
			return i, t.run(b, i+n+m, classL|classM)
		case c&(classP|classS) != 0:
			return i, newlines(b, t.run(b, i+n, classP|classS))
		case b[i] == ' ' && next&(classP|classS) != 0:
			return i, newlines(b, t.run(b, i+n+m, classP|classS))
		case c&classSpace != 0:
			return i, t.spaces(b, i, true)
		}
		i += n
	}
	return len(b), len(b)
}

func isLatin(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
