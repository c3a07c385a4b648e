package tokenize

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	stdregexp "regexp"
	"slices"
	"testing"
	"unicode/utf8"
)

var flags = stdregexp.MustCompile(`"(trim_offsets|lstrip|rstrip|single_word)":\s*true`)

// TestOffsets: the ranges are the text from its beginning to its end, parts of a character alike,
// and the ids are those without ranges.
func TestOffsets(t *testing.T) {
	all, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, s := range all.Tokenizers {
		tok, err := Load(flags.ReplaceAll(s.File, []byte(`"$1":false`)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range all.Texts {
			ids, at, err := tok.EncodeOffsets([]uint32{7}, []Range{{3, 4}}, text, true)
			if errors.Is(err, ErrUnsupported) {
				if len(ids) != 1 || len(at) != 1 {
					t.Fatalf("%s: %q: %v %v with %v", s.Name, text, ids, at, err)
				}
				continue
			}
			want, _ := tok.Encode([]uint32{7}, text, true)
			if err != nil || !slices.Equal(ids, want) || len(at) != len(ids) {
				t.Fatalf("%s: %q: %v %v %v", s.Name, text, ids, at, err)
			}
			told++
			end := 0
			for i, r := range at[1+len(tok.before) : len(at)-len(tok.after)] {
				partly := r.From < end && utf8.RuneCountInString(text[r.From:end]) == 1
				if r.From != end && !partly || r.To < end || !utf8.ValidString(text[r.From:r.To]) {
					t.Fatalf("%s: %q: %d: %v", s.Name, text, i, at)
				}
				end = r.To
			}
			if end != len(text) {
				t.Fatalf("%s: %q: %v", s.Name, text, at)
			}
		}
	}
	if told < 100 {
		t.Errorf("%d texts have offsets", told)
	}
}

// TestPlainText: in EncodePlain special tokens are text.
func TestPlainText(t *testing.T) {
	all, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Tokenizers {
		tok, err := Load(s.File, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(tok.raw.tokens) == 0 || tok.decoding.alphabet == nil {
			continue
		}
		id := tok.raw.tokens[0].ID
		text := "the " + tok.raw.tokens[0].Content + " end"
		with, err := tok.Encode(nil, text, false)
		if err != nil || !slices.Contains(with, id) {
			t.Fatalf("%s: %q: %v %v", s.Name, text, with, err)
		}
		without, err := tok.EncodePlain(nil, text, "")
		if err != nil || slices.Contains(without, id) {
			t.Errorf("%s: %q: %v %v", s.Name, text, without, err)
		}
	}
}

// TestRealOffsets compares offsets with those that the judge gives.
func TestRealOffsets(t *testing.T) {
	dir := tokensDir(t)
	n := realTexts(t)
	files, _ := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Load(data, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := tok.EncodeOffsets(nil, nil, "", false); err != nil {
				t.Skip(err)
			}
			j := startJudge(t, "tokenizers", file)
			g := &texts{r: rand.New(rand.NewPCG(3, 4)), specials: []string{tok.raw.tokens[0].Content}}
			same, changed := 0, 0
			for seen := 0; seen < n; seen += 2000 {
				batch := make([]string, min(2000, n-seen))
				for i := range batch {
					batch[i] = g.text()
				}
				what := judgeOffsets + seen/2000%2
				want := j.numbers(t, uint32(what), batch)
				for i, text := range batch {
					_, at, err := tok.EncodeOffsets(nil, nil, text, what == judgeOffsetsSpecial)
					if errors.Is(err, ErrUnsupported) {
						changed++
						continue
					}
					var got []uint32
					chars := map[int]uint32{len(text): uint32(utf8.RuneCountInString(text))}
					k := uint32(0)
					for b := range text {
						chars[b] = k
						k++
					}
					for _, r := range at {
						got = append(got, chars[r.From], chars[r.To])
					}
					if err != nil || !slices.Equal(got, want[i]) {
						t.Fatalf("%q: %v %v, the judge says %v", text, got, err, want[i])
					}
					same++
				}
			}
			t.Logf("%d texts the same, %d changed by the normalizer", same, changed)
			if same < n/2 {
				t.Error("too few texts have offsets")
			}
		})
	}
}
