package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Load reads a tokenizer.json, or a tekken.json, or a .tiktoken file.
// What it cannot do exactly is an error that wraps ErrUnsupported and names it. data is not
// kept. Truncation and padding are left aside.
func Load(data []byte, o Options) (*Tokenizer, error) {
	t, err := load(data, o)
	if err != nil {
		return nil, fmt.Errorf("tokenize: load: %w", err)
	}
	return t, nil
}

// What a file may ask for at most. The largest of served models has 33 MB and four steps.
const (
	maxFile  = 64 << 20
	maxSteps = 32 // of a normalizer or a pre-tokenizer
	maxText  = 64 // bytes that a step puts in the place of one
	maxGrown = 16 // how many times as long as it was a text gets, in all
)

func load(data []byte, o Options) (*Tokenizer, error) {
	if len(data) > maxFile {
		return nil, refused("a file larger than %d MiB", maxFile>>20)
	}
	if b := bytes.TrimLeft(data, " \t\r\n"); len(b) == 0 || b[0] != '{' {
		return loadTiktoken(data, o)
	}
	if !utf8.Valid(data) {
		return nil, errJSON
	}
	top, err := fields(data)
	if err != nil {
		return nil, err
	}
	if _, ok := top["model"]; !ok && top["vocab"] != nil && top["config"] != nil {
		return loadTekken(top, o)
	}
	return loadTokenizer(top, o)
}

func loadTokenizer(top map[string][]byte, o Options) (*Tokenizer, error) {
	if v, ok := top["version"]; ok && string(v) != `"1.0"` {
		return nil, refused("version %.20s", v)
	}
	t := &Tokenizer{}
	norm, err := parseComponent(top["normalizer"])
	if err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.normalizers, err = normalizers(norm, nil); err != nil {
		return nil, err
	}
	for _, n := range t.normalizers {
		if p, ok := n.(*precompiled); ok {
			t.memory += 4*len(p.units) + len(p.pool)
		}
	}
	if len(t.normalizers) > maxSteps {
		return nil, refused("a normalizer of %d steps", len(t.normalizers))
	}
	pre, err := parseComponent(top["pre_tokenizer"])
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	var byteLevel bool
	if t.stages, byteLevel, err = stages(pre, nil); err != nil {
		return nil, err
	}
	if len(t.stages) > maxSteps {
		return nil, refused("a pre-tokenizer of %d steps", len(t.stages))
	}
	m, err := fields(top["model"])
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	lookup, err := t.loadModel(m, byteLevel)
	if err != nil {
		return nil, err
	}
	if err := t.loadAdded(top["added_tokens"], lookup); err != nil {
		return nil, err
	}
	post, err := parseComponent(top["post_processor"])
	if err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if err := t.loadPost(post); err != nil {
		return nil, err
	}
	t.loadDecoder(top["decoder"])
	t.finish(o)
	return t, nil
}

// finish gives a tokenizer its caches.
func (t *Tokenizer) finish(o Options) {
	if o.PieceCache == 0 {
		o.PieceCache = 4 << 20
	}
	t.cache = newPieceCache(o.PieceCache)
	if m, ok := t.model.(interface{ wholes() *vocab }); ok {
		t.wholes = m.wholes()
	}
	t.turns = newTurnCache(o.TurnCache)
	if t.cache != nil {
		t.memory += t.cache.size()
	}
	t.memory += max(o.TurnCache, 0)
	t.safe = t.proveSafe()
}

// words is what loading asks a model for.
type words struct {
	find func(content string) uint32 // as it stands in the file
	size int                         // how many tokens there are
	// What decoding needs: the tokens by id, as bytes if it is a byte-level model, and
	// those which no text becomes.
	vocab     *vocab
	byteLevel bool
	others    map[string]uint32
}

func (t *Tokenizer) loadModel(m map[string][]byte, byteLevel bool) (*words, error) {
	kind := ""
	if b, ok := m["type"]; ok {
		if err := json.Unmarshal(b, &kind); err != nil {
			return nil, fmt.Errorf("model: type: %w", err)
		}
	}
	switch kind {
	case "BPE", "":
		if kind == "" && m["merges"] == nil {
			return nil, refused("a model without a type")
		}
		return t.loadBPE(m, byteLevel)
	case "WordPiece":
		if !byteLevel {
			return t.loadWordPiece(m)
		}
	case "Unigram":
		if !byteLevel {
			return t.loadUnigram(m)
		}
	}
	return nil, refused("model %q (byte-level: %t)", kind, byteLevel)
}

// loadAdded numbers added tokens as the Hugging Face library does, and refuses a file whose
// own numbers are others.
func (t *Tokenizer) loadAdded(b []byte, lookup *words) error {
	var list []added
	if len(b) > 0 {
		if err := json.Unmarshal(b, &list); err != nil {
			return fmt.Errorf("added_tokens: %w", err)
		}
	}
	t.raw, t.normal = newFinder(), newFinder()
	byContent := map[string]uint32{}
	byID := map[uint32]added{}
	special := map[string]bool{}
	var shown []added // as the library's decoder shows them: normalized, which those it skips are not
	next, most := uint32(lookup.size), uint32(0)
	for _, a := range list {
		if a.Content == "" {
			continue
		}
		id, ok := byContent[a.Content]
		if !ok {
			if id = lookup.find(a.Content); id == none {
				id = next
				next++
			}
		}
		if id != a.ID {
			return refused("added token %q: its id is %d, the library would make it %d", a.Content, a.ID, id)
		}
		byContent[a.Content], byID[id] = id, a
		special[a.Content] = special[a.Content] || a.Special
		most = max(most, id)
	}
	ids := make([]uint32, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		a, f := byID[id], t.raw
		content := []byte(a.Content)
		if a.Normalized {
			f = t.normal
			w := newWork()
			w.reg.steps = stepsPerByte * (len(content) + 100)
			if content = slices.Clone(t.normalize(w, content)); w.reg.err != nil {
				return w.reg.err
			}
			if len(content) == 0 {
				return refused("added token %q: nothing is left of it when it is normalized", a.Content)
			}
		}
		if err := f.add(a, content); err != nil {
			return err
		}
		shown = append(shown, added{Content: string(content), ID: id, Special: special[string(content)]})
		t.memory += 2*len(content)*24 + 96
	}
	d := &t.decoding
	if d.vocab = lookup.vocab; lookup.byteLevel {
		to, _ := byteAlphabet()
		d.alphabet = &to
	}
	d.name(lookup.others, shown)
	return nil
}
