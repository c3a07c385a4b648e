package tokenize

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// reference encodes what a loaded tokenizer's parts say, in the most literal way: patterns by the
// general machine, merging by looking through all pairs each time, added tokens by trying all at
// each place. It has no caches, tables of pairs or scanners.
type reference struct {
	t *Tokenizer
	m *bpe
}

func (r reference) merge(piece []byte) []uint32 {
	if r.m.whole {
		if id := r.m.vocab.find(piece); id != none {
			return []uint32{id}
		}
	}
	ids := r.m.symbols(nil, piece)
	for {
		best, at := noPair, -1
		for i := 0; i+1 < len(ids); i++ {
			if v := r.m.merges.get(ids[i], ids[i+1]); v>>32 < best>>32 {
				best, at = v, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, uint32(best))
	}
}

// pieces cuts by one pattern, and keeps what is between.
func (r reference) pieces(re *regexp, text []byte) [][]byte {
	w := newWork()
	w.reg.steps = 1 << 30
	var out [][]byte
	for at := 0; at < len(text); {
		s, e := re.next(w, text, at)
		if at < s {
			out = append(out, text[at:s])
		}
		if s < e {
			out = append(out, text[s:e])
		}
		at = e
	}
	return out
}

// encode is for byte-level BPE: patterns are those of the stages.
func (r reference) encode(patterns []*regexp, text string) []uint32 {
	var out []uint32
	flush := func(s string) {
		b := []byte(s)
		for _, n := range r.t.normalizers {
			b = n.apply(newWork(), nil, b)
		}
		parts := [][]byte{b}
		for _, re := range patterns {
			var next [][]byte
			for _, p := range parts {
				next = append(next, r.pieces(re, p)...)
			}
			parts = next
		}
		for _, p := range parts {
			if len(p) > 0 {
				out = append(out, r.merge(p)...)
			}
		}
	}
	from := 0
	for i := 0; i < len(text); {
		longest, id := 0, none
		for _, a := range r.t.raw.tokens {
			if len(a.Content) > longest && strings.HasPrefix(text[i:], a.Content) {
				longest, id = len(a.Content), a.ID
			}
		}
		if id == none {
			i++
			continue
		}
		flush(text[from:i])
		out = append(out, id)
		i += longest
		from = i
	}
	flush(text[from:])
	return out
}

// byteLevel are the small tokenizers that the reference can do, with their patterns.
var byteLevel = map[string][]string{
	"cl100k-1":      {shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks},
	"cl100k-3":      {shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks},
	"ignore-merges": {shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks},
	"o200k":         {wordParts + shortened + `?|` + wordParts2 + shortened + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks},
	"deepseek": {`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`,
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*" + blanks},
}

type referenced struct {
	name     string
	toks     []*Tokenizer // by different caches
	ref      reference
	patterns []*regexp
}

var loadReferenced = sync.OnceValues(func() ([]referenced, error) {
	s, err := readSmall()
	if err != nil {
		return nil, err
	}
	var out []referenced
	for _, m := range s.Tokenizers {
		if byteLevel[m.Name] == nil {
			continue
		}
		r := referenced{name: m.Name}
		for _, o := range []Options{{PieceCache: -1}, {PieceCache: 16 * longBytes, TurnCache: 1 << 18}} {
			t, err := Load(m.File, o)
			if err != nil {
				return nil, err
			}
			r.toks = append(r.toks, t)
		}
		r.ref = reference{r.toks[0], r.toks[0].model.(*bpe)}
		for _, p := range byteLevel[m.Name] {
			re, err := compile(p)
			if err != nil {
				return nil, err
			}
			r.patterns = append(r.patterns, re)
		}
		out = append(out, r)
	}
	return out, nil
})

func compareReference(t *testing.T, text string) {
	all, err := loadReferenced()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		want := r.ref.encode(r.patterns, text)
		for i, tok := range r.toks {
			got, err := tok.Encode(nil, text, false)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s (%d): %q: ids %v, the reference says %v", r.name, i, text, got, want)
			}
		}
	}
}

// FuzzEncode compares with the reference; a text that is not UTF-8 is refused.
func FuzzEncode(f *testing.F) {
	for _, s := range samples {
		f.Add(s)
	}
	f.Add("<|start|>a<|end|> b\n\n<|end")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4000 {
			return
		}
		if !utf8.ValidString(text) {
			all, err := loadReferenced()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := all[0].toks[0].Encode(nil, text, false); err == nil {
				t.Fatal("a text that is not UTF-8 was taken")
			}
			return
		}
		compareReference(t, text)
	})
}

// TestReference compares with the reference on texts of every kind, long ones for the turn cache's
// chunks included.
func TestReference(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	g := &texts{r: rand.New(rand.NewPCG(3, 4)), specials: []string{"<|end|>", "<|start|>"}}
	for range 120 {
		compareReference(t, g.text())
	}
	g.specials = nil // long texts in one part are what is cut into chunks
	for range 2 {
		text := ""
		for len(text) < 20_000 {
			text += strings.ReplaceAll(g.text(), "<|", "<") + pick(g.r, []string{"\n", "\nabc", "\n\nThe", " \nx", "\r\nand"})
		}
		for len(text) > 0 { // each the beginning of the one before: they share chunks
			compareReference(t, text)
			text = strings.ToValidUTF8(text[:len(text)*2/3], "")
			if len(text) < 5000 {
				break
			}
		}
	}
}

// scannerText is a text that patterns are sensitive to.
func scannerText(r *rand.Rand, most int) []byte {
	alphabet := []rune("aZſK'sTrevlD0٣²  \t\n\r\u00a0\u3000.,/!-_+€\u0301\u0903\u20ddʰǅ字々〇⺀かカ・゛\u3099\u3040龥龦\u00ad\x00\u200d😀\U00016ff0")
	var b bytes.Buffer
	for range 1 + r.IntN(most) {
		b.WriteRune(pick(r, alphabet))
	}
	return b.Bytes()
}

// TestScanners compares each scanner with its pattern run by the general machine, on texts that
// patterns are sensitive to: every class of character beside every other.
func TestScanners(t *testing.T) {
	patterns := []string{
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks,
		shortened + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + blanks,
		wordParts + `|` + wordParts2 + `|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks,
		wordParts + `|` + wordParts2 + `|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks,
		KimiPattern, `\p{N}`,
	}
	for _, ps := range byteLevel {
		if len(ps) == 1 {
			patterns = append(patterns, ps[0])
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	w := newWork()
	for _, p := range patterns {
		scan := known(p)
		if scan == nil {
			t.Fatalf("no scanner for %q", p)
		}
		re, err := compile(p)
		if err != nil {
			t.Fatal(err)
		}
		for range 1500 {
			text := scannerText(r, 12)
			for at := 0; at < len(text); {
				w.reg.steps = 1 << 20
				s, e := scan.next(w, text, at)
				ws, we := re.next(w, text, at)
				if s != ws || e != we {
					t.Fatalf("%q from %d: %d to %d, the pattern %q says %d to %d", text, at, s, e, p, ws, we)
				}
				at = e
			}
		}
	}
}

// TestDeepseekInOnePass compares what is one pass here with the three patterns one after the other.
func TestDeepseekInOnePass(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	steps := make([]stage, 0, len(deepseekSteps))
	for _, p := range byteLevel["deepseek"] {
		re, err := compile(p)
		if err != nil {
			t.Fatal(err)
		}
		steps = append(steps, stage{scan: re})
	}
	cuts := func(stages []stage, text []byte) (at []string) {
		tok, w := &Tokenizer{stages: stages, model: &cutModel{&at}}, newWork()
		w.reg.steps = 1 << 30
		tok.whole(w, text, true, nil)
		return at
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range 20_000 {
		text := scannerText(r, 16)
		got, want := cuts([]stage{{scan: deepseek{}}}, text), cuts(steps, text)
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %q, the three patterns say %q", text, got, want)
		}
	}
}

// cutModel notes the pieces that a text is cut into.
type cutModel struct{ to *[]string }

func (m *cutModel) encode(_ *work, piece []byte, dst []uint32) []uint32 {
	*m.to = append(*m.to, string(piece))
	return dst
}
