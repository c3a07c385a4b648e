package tokenize

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// decoding is how ids become text again. It does not change after loading.
type decoding struct {
	vocab    *vocab
	alphabet *[256]rune       // vocab holds bytes, which the file writes so; nil: as the file has them
	named    map[uint32]named // tokens that vocab does not have, or that are added: these go first
	offset   uint32           // tekken: of vocab's ids, behind those of special tokens
	plain    bool             // bytes side by side: what a byte-level decoder does
	steps    []decoder        // otherwise
	spaced   bool             // no decoder at all: a space between any two
	nameless error            // special tokens have no names in the file: they can only be skipped
	err      error            // why it is not possible
}

// named is a token with a name of its own.
type named struct {
	name    string
	raw     []byte // what a byte-level decoder makes of it
	special bool
}

// decoder is a step of a file's decoder, which changes a list of tokens.
type decoder func(tokens [][]byte) [][]byte

// Decode is the text of ids, as the tokenizer's decoder makes it; skip leaves out special
// tokens. Ids of no token are passed over, and bytes that are not UTF-8 become U+FFFD, one for
// each part that could have begun a character.
//
// Encoding the text again need not give the same ids. The error wraps ErrUnsupported, where the
// file's decoder is not done exactly here.
func (t *Tokenizer) Decode(ids []uint32, skip bool) (string, error) {
	d := &t.decoding
	switch {
	case d.err != nil:
		return "", d.err
	case d.plain:
		return d.bytes(ids, skip)
	}
	tokens := make([][]byte, 0, len(ids))
	for _, id := range ids {
		if b := d.token(id, skip); b != nil {
			tokens = append(tokens, b)
		}
	}
	for _, step := range d.steps {
		tokens = step(tokens)
	}
	between := ""
	if d.spaced {
		between = " "
	}
	return string(bytes.Join(tokens, []byte(between))), nil
}

// bytes is Decode where tokens are bytes side by side.
func (d *decoding) bytes(ids []uint32, skip bool) (string, error) {
	text := make([]byte, 0, 4*len(ids))
	from := 0 // tekken: a special token ends what may become a character
	for _, id := range ids {
		x, ok := d.named[id]
		switch {
		case !ok && id >= d.offset:
			text = append(text, d.vocab.bytes(id-d.offset)...)
			continue
		case d.offset > 0:
			text = append(text[:from], lossy(text[from:])...)
		}
		if !skip || ok && !x.special {
			if d.nameless != nil {
				return "", d.nameless
			}
			text = append(text, x.raw...)
		}
		if d.offset > 0 {
			from = len(text)
		}
	}
	return string(text[:from]) + lossy(text[from:]), nil
}

// token is what the file calls a token; nil if there is none, or it is to be left out.
func (d *decoding) token(id uint32, skip bool) []byte {
	if x, ok := d.named[id]; ok {
		if skip && x.special {
			return nil
		}
		return []byte(x.name)
	}
	b := d.vocab.bytes(id)
	if b == nil || d.alphabet == nil {
		return b
	}
	name := make([]byte, 0, 2*len(b))
	for _, c := range b {
		name = utf8.AppendRune(name, d.alphabet[c])
	}
	return name
}

// name gives tokens their names.
func (d *decoding) name(names map[string]uint32, added []added) {
	a := newAlphabet()
	d.named = make(map[uint32]named, len(names)+len(added))
	set := func(id uint32, name string, special bool) {
		raw := []byte(name)
		if d.alphabet != nil { // a name may be of characters that stand for bytes
			if b, ok := a.bytes(raw); ok {
				raw = append([]byte(nil), b...)
			}
		}
		d.named[id] = named{name, raw, special}
	}
	for name, id := range names {
		set(id, name, false)
	}
	for _, x := range added {
		set(x.ID, x.Content, x.Special)
	}
}

// loadDecoder takes the file's decoder. What is not done exactly here is said when it is used:
// encoding does without.
func (t *Tokenizer) loadDecoder(b []byte) {
	d := &t.decoding
	c, err := parseComponent(b)
	if err != nil {
		d.err = fmt.Errorf("tokenize: decoder: %w", err)
		return
	}
	if c == nil {
		d.spaced = true
		return
	}
	for c.Type == "Sequence" && len(c.Decoders) == 1 {
		c = &c.Decoders[0]
	}
	if d.plain = c.Type == "ByteLevel" && d.alphabet != nil; d.plain {
		return
	}
	if d.steps, d.err = decoders(c, nil); d.err != nil {
		d.err = fmt.Errorf("tokenize: %w", d.err)
	}
}

// decoders puts a decoder's steps into one list.
func decoders(c *component, to []decoder) ([]decoder, error) {
	switch c.Type {
	case "Sequence":
		for i := range c.Decoders {
			var err error
			if to, err = decoders(&c.Decoders[i], to); err != nil {
				return nil, err
			}
		}
		return to, nil
	case "ByteLevel":
		return append(to, byteLevelDecoder), nil
	case "ByteFallback":
		return append(to, byteFallbackDecoder), nil
	case "Fuse":
		return append(to, func(tokens [][]byte) [][]byte { return [][]byte{bytes.Join(tokens, nil)} }), nil
	case "Replace":
		if c.Pattern.String == nil || *c.Pattern.String == "" {
			return nil, refused("decoder Replace of a regular expression")
		}
		from, by := []byte(*c.Pattern.String), []byte(c.Content)
		return append(to, eachToken(func(_ int, b []byte) []byte {
			if !bytes.Contains(b, from) {
				return b
			}
			return bytes.ReplaceAll(b, from, by)
		})), nil
	case "Strip":
		// At the end the library itself fails with some tokens.
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop != 0 {
			return nil, refused("decoder Strip of %q, %d at the end", c.Content, c.Stop)
		}
		cut, start := []byte(c.Content), c.Start
		return append(to, eachToken(func(_ int, b []byte) []byte {
			for i := 0; i < start && bytes.HasPrefix(b, cut); i++ {
				b = b[len(cut):]
			}
			return b
		})), nil
	case "Metaspace":
		mark := c.Replacement
		if mark == "" {
			mark = "▁"
		}
		first := c.PrependScheme != "never"
		if c.PrependScheme == "" && c.AddPrefixSpace != nil {
			first = *c.AddPrefixSpace
		}
		return append(to, eachToken(func(i int, b []byte) []byte {
			by := " "
			if i == 0 && first {
				by = ""
			}
			return bytes.ReplaceAll(b, []byte(mark), []byte(by))
		})), nil
	case "WordPiece":
		return append(to, wordPieceDecoder(c)), nil
	}
	return nil, refused("decoder %q", c.Type)
}

func eachToken(f func(i int, b []byte) []byte) decoder {
	return func(tokens [][]byte) [][]byte {
		for i, b := range tokens {
			tokens[i] = f(i, b)
		}
		return tokens
	}
}

// byteLevelDecoder makes of all tokens one text: of those of its alphabet the bytes.
func byteLevelDecoder(tokens [][]byte) [][]byte {
	a := newAlphabet()
	var text []byte
	for _, b := range tokens {
		if raw, ok := a.bytes(b); ok {
			b = raw
		}
		text = append(text, b...)
	}
	return [][]byte{[]byte(lossy(text))}
}

// byteFallbackDecoder makes characters of tokens that stand for bytes. Bytes side by side
// that are no text are all U+FFFD, those among them that would be text too.
func byteFallbackDecoder(tokens [][]byte) [][]byte {
	out := make([][]byte, 0, len(tokens))
	var run []byte
	flush := func() {
		switch {
		case len(run) == 0:
			return
		case utf8.Valid(run):
			out = append(out, run)
		default:
			for range run {
				out = append(out, []byte("\ufffd"))
			}
		}
		run = nil
	}
	for _, b := range tokens {
		if c, ok := byteToken(b); ok {
			run = append(run, c)
			continue
		}
		flush()
		out = append(out, b)
	}
	flush()
	return out
}

// byteToken is the byte that <0x41> and its like stand for.
func byteToken(b []byte) (byte, bool) {
	if len(b) != 6 || string(b[:3]) != "<0x" || b[5] != '>' {
		return 0, false
	}
	n := byte(0)
	for i, c := range b[3:5] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		case c == '+' && i == 0: // Rust reads a sign, too
			c = 0
		default:
			return 0, false
		}
		n = n<<4 | c
	}
	return n, true
}

// wordPieceClean is what is joined again where a decoder has cleanup, in this order.
var wordPieceClean = [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
	{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}}

func wordPieceDecoder(c *component) decoder {
	prefix := []byte("##")
	if c.Prefix != nil {
		prefix = []byte(*c.Prefix)
	}
	clean := c.Cleanup == nil || *c.Cleanup
	return eachToken(func(i int, b []byte) []byte {
		if i > 0 {
			if rest, ok := bytes.CutPrefix(b, prefix); ok {
				b = rest
			} else {
				b = append([]byte(" "), b...)
			}
		}
		if clean {
			text := string(b)
			for _, x := range wordPieceClean {
				text = strings.ReplaceAll(text, x[0], x[1])
			}
			b = []byte(text)
		}
		return b
	})
}

// lossy makes text of bytes: U+FFFD for each longest part of what is not UTF-8 that could
// have begun a character, as Rust and Python have it. Go would put one for each byte.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = max(1, begun(b))
			out = append(out, "\ufffd"...)
		} else {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return string(out)
}

// begun is how many bytes of a character that is not whole stand at the beginning.
func begun(b []byte) int {
	size, low, high := 0, byte(0x80), byte(0xbf)
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		size = 2
	case c >= 0xe0 && c <= 0xef:
		size = 3
		if c == 0xe0 {
			low = 0xa0
		} else if c == 0xed {
			high = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		size = 4
		if c == 0xf0 {
			low = 0x90
		} else if c == 0xf4 {
			high = 0x8f
		}
	}
	n := 1
	for ; n < size && n < len(b) && b[n] >= low && b[n] <= high; n++ {
		low, high = 0x80, 0xbf
	}
	return n
}

var errNameless = errors.New("tokenize: the file does not say what its special tokens are called: skip them")
