package tokenize

import (
	"encoding/json"
	"fmt"
)

// wordPiece takes the longest token that a word begins with, then of the rest.
type wordPiece struct {
	vocab  *vocab
	unk    uint32
	prefix []byte // of tokens that do not begin a word
	most   int    // characters of a word; a longer one is unknown
}

func (m *wordPiece) encode(w *work, p []byte, dst []uint32) []uint32 {
	chars := 0
	for i := 0; i < len(p); chars++ {
		_, n := runeAt(p, i)
		i += n
	}
	if chars > m.most {
		return append(dst, m.unk)
	}
	from := len(dst)
	for at := 0; at < len(p); {
		id, end := none, len(p)
		w.word = w.word[:0]
		if at > 0 {
			w.word = append(w.word, m.prefix...)
		}
		head := len(w.word)
		w.word = append(w.word, p[at:]...)
		for ; end > at; end = lastRune(p, end) {
			if id = m.vocab.find(w.word[:head+end-at]); id != none {
				break
			}
		}
		if id == none {
			return append(dst[:from], m.unk)
		}
		dst = append(dst, id)
		at = end
	}
	return dst
}

func (t *Tokenizer) loadWordPiece(m map[string][]byte) (*words, error) {
	o := struct {
		Unk    string  `json:"unk_token"`
		Prefix *string `json:"continuing_subword_prefix"`
		Most   *int    `json:"max_input_chars_per_word"`
	}{Unk: "[UNK]"}
	for name, to := range map[string]any{"unk_token": &o.Unk, "continuing_subword_prefix": &o.Prefix, "max_input_chars_per_word": &o.Most} {
		if b := m[name]; b != nil {
			if err := json.Unmarshal(b, to); err != nil {
				return nil, fmt.Errorf("model: %s: %w", name, err)
			}
		}
	}
	w := &wordPiece{prefix: []byte("##"), most: 100}
	if o.Prefix != nil {
		w.prefix = []byte(*o.Prefix)
	}
	if o.Most != nil {
		w.most = *o.Most
	}
	if w.most > 1000 {
		return nil, refused("WordPiece with words of %d characters", w.most)
	}
	b := &bpe{}
	if err := b.loadVocab(m["vocab"], false, nil); err != nil {
		return nil, fmt.Errorf("model: vocab: %w", err)
	}
	w.vocab = b.vocab
	if w.unk = w.vocab.find([]byte(o.Unk)); w.unk == none {
		return nil, refused("WordPiece without its unk_token %q", o.Unk)
	}
	t.model = w
	t.memory += w.vocab.size()
	return &words{find: func(s string) uint32 { return w.vocab.find([]byte(s)) }, size: w.vocab.tokens(), vocab: w.vocab}, nil
}

// bert is BertNormalizer.
type bert struct{ clean, chinese, accents, lower bool }

func (n bert) apply(w *work, dst, src []byte) []byte {
	from := len(dst)
	for i := 0; i < len(src); {
		r, k := runeAt(src, i)
		c := src[i : i+k]
		i += k
		trait := w.t.traits.at(r)
		switch {
		case n.clean && trait&traitRemoved != 0:
		case n.clean && trait&traitBlank != 0:
			dst = append(dst, ' ')
		case n.chinese && trait&traitChinese != 0:
			dst = append(append(append(dst, ' '), c...), ' ')
		default:
			dst = append(dst, c...)
		}
	}
	if n.accents {
		w.word = form{}.apply(w, w.word[:0], dst[from:])
		dst = dst[:from]
		for i := 0; i < len(w.word); {
			r, k := runeAt(w.word, i)
			if w.t.traits.at(r)&traitAccent == 0 {
				dst = append(dst, w.word[i:i+k]...)
			}
			i += k
		}
	}
	if n.lower {
		w.word = lowercase{}.apply(w, w.word[:0], dst[from:])
		dst = append(dst[:from], w.word...)
	}
	return dst
}

// stripAccents is the normalizer of that name: it takes marks away, whether composed or not before.
type stripAccents struct{}

func (stripAccents) apply(w *work, dst, src []byte) []byte {
	for i := 0; i < len(src); {
		r, k := runeAt(src, i)
		if w.t.traits.at(r)&traitMark == 0 {
			dst = append(dst, src[i:i+k]...)
		}
		i += k
	}
	return dst
}
