package tokenize

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
)

// ranked is a vocabulary whose ids are the order of merging, as tiktoken has it: any two
// neighbours whose bytes together are a token merge, the token of the least id first.
type ranked struct{ bpe }

// newRanked makes the merges that the tokens themselves say: each way to cut one into two others.
func newRanked(v *vocab) (*ranked, error) {
	m := &ranked{bpe{vocab: v, whole: true, unk: none}}
	for c := range 256 {
		if m.bytes[c] = v.find([]byte{byte(c)}); m.bytes[c] == none {
			return nil, refused("a vocabulary without a token for byte 0x%02X", c)
		}
	}
	m.merges = newPairs(len(v.lens))
	for id := range uint32(len(v.lens)) {
		token := v.bytes(id)
		if len(token) > maxAdded {
			return nil, refused("a token longer than %d bytes", maxAdded)
		}
		for i := 1; i < len(token); i++ {
			left := v.find(token[:i])
			if left == none {
				continue
			}
			if right := v.find(token[i:]); right != none {
				m.merges.set(left, right, id, id)
			}
		}
	}
	m.prepare()
	return m, nil
}

// loadTiktoken reads lines of a token in base64 and its id.
func loadTiktoken(data []byte, o Options) (*Tokenizer, error) {
	if o.Pattern == "" {
		return nil, refused("a tiktoken file without Options.Pattern, which it does not hold")
	}
	const shortest = len("YQ== 0\n")
	v := newVocab(min(bytes.Count(data, []byte{'\n'}), len(data)/shortest)+1, len(data)/2)
	var buf []byte
	for n := 1; len(data) > 0; n++ {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		line = bytes.TrimRight(line, "\r")
		if len(line) == 0 {
			continue
		}
		text, number, ok := bytes.Cut(line, []byte{' '})
		if !ok {
			return nil, fmt.Errorf("line %d is not a token and its rank", n)
		}
		var err error
		if buf, err = base64.StdEncoding.AppendDecode(buf[:0], text); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		id, err := strconv.ParseUint(string(number), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(buf) == 0 || v.find(buf) != none {
			return nil, fmt.Errorf("line %d: a token that is empty or stands twice", n)
		}
		if err := v.add(buf, uint32(min(id, maxID))); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	t, err := newTiktoken(v, o.Pattern)
	if err != nil {
		return nil, err
	}
	if err := t.addSpecials(o.Specials); err != nil {
		return nil, err
	}
	t.chunks = o.Kimi
	t.finish(o)
	return t, nil
}

func newTiktoken(v *vocab, pattern string) (*Tokenizer, error) {
	scan, err := scannerFor(pattern)
	if err != nil {
		return nil, err
	}
	m, err := newRanked(v)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{model: m, single: &m.bytes, raw: newFinder(), normal: newFinder(), decoding: decoding{vocab: v, plain: true}}
	// What the pattern does not match tiktoken leaves out.
	t.stages = []stage{{scan: scan, behavior: removed, invert: true}}
	if total, ok := scan.(interface{ total() bool }); ok && total.total() {
		t.stages[0] = stage{scan: scan}
	}
	t.memory = m.size()
	return t, nil
}

// addSpecials takes special tokens. tiktoken looks for them with an expression of all in
// no certain order, so that one that begins another is not certain either.
func (t *Tokenizer) addSpecials(specials map[string]uint32) error {
	names := make([]string, 0, len(specials))
	for s := range specials {
		names = append(names, s)
	}
	sort.Strings(names)
	for i, s := range names {
		if s == "" || i > 0 && strings.HasPrefix(s, names[i-1]) {
			return refused("special token %q, which begins with another", s)
		}
		if err := t.raw.add(added{Content: s, ID: specials[s], Special: true}, []byte(s)); err != nil {
			return err
		}
	}
	t.decoding.name(nil, t.raw.tokens)
	return nil
}

type tekkenConfig struct {
	Pattern  string `json:"pattern"`
	Size     int    `json:"default_vocab_size"`
	Specials int    `json:"default_num_special_tokens"`
	Version  string `json:"version"`
}

// tekkenBOS is the id of <s> in files that do not list their special tokens, and in all that do so far.
const tekkenBOS = 1

// loadTekken reads Mistral's format: special tokens have the first ids, the others follow, and
// special tokens that stand in a text are text.
func loadTekken(top map[string][]byte, o Options) (*Tokenizer, error) {
	c := tekkenConfig{}
	if err := json.Unmarshal(top["config"], &c); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	inner := c.Size - c.Specials
	if c.Specials < 0 || inner <= 0 || c.Size > maxID {
		return nil, refused("tekken of %d tokens with %d special ones", c.Size, c.Specials)
	}
	v := newVocab(min(inner, len(top["vocab"])/16), len(top["vocab"])/8)
	r := newReader(top["vocab"])
	var buf []byte
	n := 0
	err := r.array(func() error {
		rank := none
		buf = buf[:0]
		err := r.object(func(key []byte) error {
			switch string(key) {
			case "rank":
				var err error
				rank, err = r.uint()
				return err
			case "token_bytes":
				s, err := r.str()
				if err == nil {
					buf, err = base64.StdEncoding.AppendDecode(buf[:0], s)
				}
				return err
			}
			_, err := r.skip()
			return err
		})
		if err != nil || n >= inner {
			return err
		}
		if int(rank) != n || len(buf) == 0 || v.find(buf) != none {
			return fmt.Errorf("token %d: it has rank %d, is empty or stands twice", n, rank)
		}
		n++
		return v.add(buf, rank)
	})
	if err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if n < inner {
		return nil, fmt.Errorf("vocab: %d tokens of %d", n, inner)
	}
	specials, err := tekkenSpecials(top["special_tokens"], uint32(c.Specials))
	if err != nil {
		return nil, err
	}
	t, err := newTiktoken(v, c.Pattern)
	if err != nil {
		return nil, err
	}
	t.offset, t.decoding.offset = uint32(c.Specials), uint32(c.Specials)
	bos := slices.IndexFunc(specials, func(a added) bool { return a.Content == "<s>" })
	switch {
	case specials == nil:
		t.before, t.decoding.nameless = []uint32{tekkenBOS}, errNameless
	case bos < 0:
		return nil, refused("tekken without the special token %q", "<s>")
	default:
		t.before = []uint32{specials[bos].ID}
	}
	t.decoding.name(nil, specials)
	t.finish(o)
	return t, nil
}

// tekkenSpecials are the n special tokens, if the file lists any; those that it does not list have
// names by their number.
func tekkenSpecials(b []byte, n uint32) ([]added, error) {
	if len(b) == 0 || string(b) == "null" {
		return nil, nil
	}
	var list []struct {
		Rank uint32 `json:"rank"`
		Text string `json:"token_str"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("special_tokens: %w", err)
	}
	out := make([]added, 0, n)
	for i := uint32(len(list)); i < n; i++ {
		out = append(out, added{Content: fmt.Sprintf("<SPECIAL_%d>", i), ID: i, Special: true})
	}
	for _, s := range list {
		out = append(out, added{Content: s.Text, ID: s.Rank, Special: true})
	}
	return out, nil
}

const (
	kimiText = 400_000 // characters that go to tiktoken at once
	kimiRun  = 25_000  // characters of a run of white space, or of other, in one go
)

// chunked cuts a text as Kimi's tokenizer does, in characters; special tokens across a cut are lost to it as well.
func (t *Tokenizer) chunked(w *work, b []byte, dst []uint32) []uint32 {
	from, chars, run, blank := 0, 0, 0, false
	for i := 0; i < len(b); {
		r, n := runeAt(b, i)
		now := pythonSpace(r)
		switch {
		case chars == kimiText:
			dst = t.text(w, b[from:i], true, dst)
			from, chars, run = i, 0, 1
		case chars == 0 || now != blank:
			run = 1
		default:
			if run++; run > kimiRun {
				dst = t.text(w, b[from:i], true, dst)
				from, run = i, 1
			}
		}
		blank = now
		chars++
		i += n
	}
	return t.text(w, b[from:], true, dst)
}

// pythonSpace is str.isspace: white space, and four separators among the control characters.
func pythonSpace(r rune) bool {
	return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r)
}
