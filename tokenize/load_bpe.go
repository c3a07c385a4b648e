package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// byteAlphabet are the characters that byte-level models write bytes as: those that
// print stand for themselves, the others follow from U+0100 on.
func byteAlphabet() (to [256]rune, from map[rune]byte) {
	from = make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			to[b] = rune(b)
		} else {
			to[b] = next
			next++
		}
		from[to[b]] = byte(b)
	}
	return to, from
}

// alphabet turns what a file calls a token into bytes, and says whether it is one that text can become.
type alphabet struct {
	table [512]int16 // -1: not of the alphabet
	buf   []byte
}

func newAlphabet() *alphabet {
	a := &alphabet{}
	_, from := byteAlphabet()
	for r := range a.table {
		a.table[r] = -1
		if b, ok := from[rune(r)]; ok {
			a.table[r] = int16(b)
		}
	}
	return a
}

func (a *alphabet) bytes(token []byte) ([]byte, bool) {
	a.buf = a.buf[:0]
	for i := 0; i < len(token); {
		r, n := runeAt(token, i)
		i += n
		if int(r) >= len(a.table) || a.table[r] < 0 {
			return nil, false
		}
		a.buf = append(a.buf, byte(a.table[r]))
	}
	return a.buf, true
}

type bpeOptions struct {
	Dropout *float64 `json:"dropout"`
	Unk     *string  `json:"unk_token"`
	Prefix  *string  `json:"continuing_subword_prefix"`
	Suffix  *string  `json:"end_of_word_suffix"`
	FuseUnk bool     `json:"fuse_unk"`
	Bytes   bool     `json:"byte_fallback"`
	Ignore  bool     `json:"ignore_merges"`
}

func (t *Tokenizer) loadBPE(m map[string][]byte, byteLevel bool) (*words, error) {
	o := bpeOptions{}
	for name, to := range map[string]any{"dropout": &o.Dropout, "unk_token": &o.Unk, "continuing_subword_prefix": &o.Prefix,
		"end_of_word_suffix": &o.Suffix, "fuse_unk": &o.FuseUnk, "byte_fallback": &o.Bytes, "ignore_merges": &o.Ignore} {
		if b := m[name]; b != nil {
			if err := json.Unmarshal(b, to); err != nil {
				return nil, fmt.Errorf("model: %s: %w", name, err)
			}
		}
	}
	switch {
	case o.Dropout != nil && *o.Dropout != 0:
		return nil, refused("BPE with dropout")
	case o.Prefix != nil && *o.Prefix != "":
		return nil, refused("BPE with continuing_subword_prefix")
	case o.Suffix != nil && *o.Suffix != "":
		return nil, refused("BPE with end_of_word_suffix")
	case m["vocab"] == nil || m["merges"] == nil:
		return nil, refused("BPE without vocab or merges")
	}
	b := &bpe{chars: !byteLevel, byteFallback: o.Bytes && !byteLevel, whole: o.Ignore, fuseUnk: o.FuseUnk, unk: none}
	others := map[string]uint32{} // tokens that no text becomes, by what the file calls them
	if err := b.loadVocab(m["vocab"], byteLevel, others); err != nil {
		return nil, fmt.Errorf("model: vocab: %w", err)
	}
	if err := b.loadMerges(m["merges"], byteLevel); err != nil {
		return nil, fmt.Errorf("model: merges: %w", err)
	}
	find := func(content string) uint32 {
		if !byteLevel {
			return b.vocab.find([]byte(content))
		}
		if id, ok := others[content]; ok {
			return id
		}
		if p, ok := newAlphabet().bytes([]byte(content)); ok {
			return b.vocab.find(p)
		}
		return none
	}
	if o.Unk != nil {
		if b.unk = find(*o.Unk); b.unk == none {
			return nil, refused("BPE whose unk_token is not in the vocabulary")
		}
	}
	for c := range 256 {
		if byteLevel {
			b.bytes[c] = b.vocab.find([]byte{byte(c)})
			b.holes = b.holes || b.bytes[c] == none
		} else {
			b.bytes[c] = b.vocab.find(fmt.Appendf(nil, "<0x%02X>", c))
		}
	}
	if byteLevel && !b.holes {
		t.single = &b.bytes
	}
	b.prepare()
	t.model = b
	t.memory += b.size()
	if !byteLevel {
		t.stages = append(t.stages, b.boundaries()...)
	}
	return &words{find: find, size: len(others) + b.vocab.tokens(), vocab: b.vocab, byteLevel: byteLevel, others: others}, nil
}

func (m *bpe) loadVocab(b []byte, byteLevel bool, others map[string]uint32) error {
	n := min(bytes.Count(b, []byte{':'}), len(b)/4)
	m.vocab = newVocab(n, len(b)/2)
	a := newAlphabet()
	r := newReader(b)
	return r.object(func(key []byte) error {
		token, ok := key, true
		if byteLevel {
			token, ok = a.bytes(key)
		}
		if !ok {
			name := string(key)
			id, err := r.uint()
			others[name] = id
			return err
		}
		id, err := r.uint() // which leaves the token in the reader's memory alone
		if err != nil {
			return err
		}
		return m.vocab.add(token, id)
	})
}

// loadMerges reads pairs, or texts of two tokens with a space between. One that makes what is
// not in the vocabulary, or is made of such, is an error to the Hugging Face library as well.
func (m *bpe) loadMerges(b []byte, byteLevel bool) error {
	// A comma per text, two per pair; those in tokens are few.
	m.merges = newPairs(min(bytes.Count(b, []byte{','})/2, len(b)/6))
	left, right, r := newAlphabet(), newAlphabet(), newReader(b)
	var first, joined []byte
	rank := uint32(0)
	part := func(a *alphabet, s []byte) (uint32, []byte, bool) {
		if byteLevel {
			var ok bool
			if s, ok = a.bytes(s); !ok {
				return none, nil, false
			}
		}
		return m.vocab.find(s), s, true
	}
	take := func(ls, rs []byte) error {
		li, lb, lok := part(left, ls)
		ri, rb, rok := part(right, rs)
		rank++
		if !lok || !rok {
			return nil // of characters that no text becomes
		}
		joined = append(append(joined[:0], lb...), rb...)
		id := m.vocab.find(joined)
		if li == none || ri == none || id == none {
			return fmt.Errorf("merge %d is not of tokens", rank-1)
		}
		m.merges.set(li, ri, rank-1, id)
		return nil
	}
	return r.array(func() error {
		if r.Peek() == '[' {
			n := 0
			err := r.array(func() error {
				s, err := r.str()
				if err != nil {
					return err
				}
				if n++; n == 1 {
					first = append(first[:0], s...)
					return nil
				}
				if n > 2 {
					return fmt.Errorf("merge %d is of more than two", rank)
				}
				return take(first, s)
			})
			if err == nil && n != 2 {
				err = fmt.Errorf("merge %d is not of two", rank)
			}
			return err
		}
		s, err := r.str()
		if err != nil {
			return err
		}
		if rank == 0 && bytes.HasPrefix(s, []byte("#version")) {
			return nil
		}
		i := bytes.IndexByte(s, ' ')
		if i < 0 || bytes.IndexByte(s[i+1:], ' ') >= 0 {
			return fmt.Errorf("merge %d is not two tokens with a space between", rank)
		}
		return take(s[:i], s[i+1:])
	})
}

func (v *vocab) tokens() int {
	n := 0
	for _, l := range v.lens {
		if l != none {
			n++
		}
	}
	return n
}
