package tokenize

import (
	"bytes"
	"unicode/utf8"
	"unsafe"
)

// Range is where in a text a token is from: bytes, from the first to before the last, of whole
// characters, so that tokens which are parts of a character have the same. A token that the
// tokenizer adds to a text is from nowhere: 0, 0.
type Range struct{ From, To int }

// EncodeOffsets is Encode with each token's place in the text appended to at. The error is
// ErrUnsupported of a tokenizer or a text whose tokens are not the text's own bytes side by side:
// of all but byte-level tokenizers, and where a normalizer changes the text.
func (t *Tokenizer) EncodeOffsets(dst []uint32, at []Range, text string, special bool) ([]uint32, []Range, error) {
	d := &t.decoding
	switch {
	case d.alphabet == nil || d.offset != 0 || t.chunks:
		return dst, at, refused("offsets of a tokenizer that is not byte-level")
	case t.trims:
		return dst, at, refused("offsets without the spaces around (trim_offsets)")
	case !t.raw.plain() || !t.normal.plain():
		return dst, at, refused("offsets of added tokens that take in what is around them")
	}
	ids, err := t.Encode(nil, text, special)
	if err != nil {
		return dst, at, err
	}
	body := ids
	if special {
		body = ids[len(t.before) : len(ids)-len(t.after)]
	}
	from := len(at)
	if special {
		at = append(at, make([]Range, len(t.before))...)
	}
	done, b := 0, unsafe.Slice(unsafe.StringData(text), len(text)) // read only
	for _, id := range body {
		token := d.vocab.bytes(id)
		if x, ok := d.named[id]; ok {
			token = []byte(x.name)
		}
		if !bytes.HasPrefix(b[done:], token) {
			return dst, at[:from], refused("offsets of a text that the normalizer changes")
		}
		r := Range{done, done + len(token)}
		done = r.To
		for r.From > 0 && r.From < len(b) && !utf8.RuneStart(b[r.From]) {
			r.From--
		}
		for r.To < len(b) && !utf8.RuneStart(b[r.To]) {
			r.To++
		}
		at = append(at, r)
	}
	if done != len(b) {
		return dst, at[:from], refused("offsets of a text that the normalizer changes")
	}
	if special {
		at = append(at, make([]Range, len(t.after))...)
	}
	return append(dst, ids...), at, nil
}
