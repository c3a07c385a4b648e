package tokenize

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestReal compares ids for texts of all kinds with those that the judge gives, for each real
// tokenizer that testdata/fetch.sh brought.
func TestReal(t *testing.T) {
	dir := tokensDir(t)
	n := realTexts(t)
	files, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	if err != nil || len(files) == 0 {
		t.Skipf("no tokenizers in %s", dir)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) { compareReal(t, "tokenizers", file, n, Options{TurnCache: 1 << 20}) })
	}
}

// TestRealTekken does so for Mistral's files.
func TestRealTekken(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(tokensDir(t), "*", "tekken.json"))
	if len(files) == 0 {
		t.Skip("no tekken.json")
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) { compareReal(t, "tekken", file, realTexts(t), Options{TurnCache: 1 << 20}) })
	}
}

// TestRealKimi does so for a tiktoken file with what Kimi does around it.
func TestRealKimi(t *testing.T) {
	file := filepath.Join(tokensDir(t), "kimi", "tiktoken.model")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Skip(err)
	}
	n := uint32(bytes.Count(data, []byte{'\n'}))
	o := Options{Pattern: KimiPattern, Kimi: true, TurnCache: 1 << 20,
		Specials: map[string]uint32{"[BOS]": n, "[EOS]": n + 1, "<|im_end|>": n + 2, "<|im_user|>": n + 3}}
	compareReal(t, "kimi", file, realTexts(t), o)
	tok, err := Load(data, o)
	if err != nil {
		t.Fatal(err)
	}
	j := startJudge(t, "kimi", file)
	for _, text := range []string{strings.Repeat("字", 60_000), strings.Repeat("a", 25_000) + "<|im_end|>", strings.Repeat("ab ", 140_000),
		strings.Repeat(" ", 70_001) + "x", strings.Repeat("x", 24_995) + "<|im_end|>", strings.Repeat("ab 字é\n", 66_666) + "<|im_end|> end", strings.Repeat("\x1c", 25_001)} {
		got, err := tok.Encode(nil, text, false)
		if err != nil {
			t.Fatal(err)
		}
		if want := j.ids(t, []string{text}, false)[0]; !slices.Equal(got, want) {
			t.Errorf("%d bytes of %.10q…: %d ids, the judge says %d others", len(text), text, len(got), len(want))
		}
	}
}

// realTexts is how many texts are compared per tokenizer.
func realTexts(t *testing.T) int {
	n := 100_000
	if s := os.Getenv("KVATLAS_TEST_TEXTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func compareReal(t *testing.T, library, file string, n int, o Options) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(data, o)
	if err != nil {
		t.Fatal(err)
	}
	j := startJudge(t, library, file)
	g := &texts{r: rand.New(rand.NewPCG(1, 2))}
	for _, f := range []*finder{tok.raw, tok.normal} {
		for i, a := range f.tokens {
			if i < 40 || i%20 == 0 {
				g.specials = append(g.specials, a.Content)
			}
		}
	}
	seen, faults, ids := 0, 0, 0
	for seen < n {
		batch := make([]string, min(2000, n-seen))
		for i := range batch {
			batch[i] = g.text()
		}
		special := seen/2000%2 == 1
		want := j.ids(t, batch, special)
		for i, text := range batch {
			got, err := tok.Encode(nil, text, special)
			if err != nil {
				t.Fatal(err)
			}
			ids += len(got)
			if !slices.Equal(got, want[i]) {
				short := shrink(text, func(s string) bool {
					got, err := tok.Encode(nil, s, special)
					return err == nil && !slices.Equal(got, j.ids(t, []string{s}, special)[0])
				})
				got, _ := tok.Encode(nil, short, special)
				t.Errorf("%q: ids %v, the judge says %v", short, got, j.ids(t, []string{short}, special)[0])
				if faults++; faults > 12 {
					t.FailNow()
				}
			}
		}
		seen += len(batch)
	}
	t.Logf("%d texts, %d ids, %.1f MB", seen, ids, float64(tok.Memory())/1e6)
}

// shrink takes characters away while the fault stays.
func shrink(s string, bad func(string) bool) string {
	rs := []rune(s)
	for size := len(rs) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(rs); {
			less := append(slices.Clone(rs[:i]), rs[i+size:]...)
			if bad(string(less)) {
				rs = less
			} else {
				i += size
			}
		}
	}
	return string(rs)
}

// TestRealClusters does so for texts of code points of which each does another thing to grapheme clusters,
// with a tokenizer whose ids show where those end.
func TestRealClusters(t *testing.T) {
	file := filepath.Join(tokensDir(t), "marks", "tokenizer.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Skip(err)
	}
	tok, err := Load(data, Options{})
	if err != nil {
		t.Fatal(err)
	}
	j, r := startJudge(t, "tokenizers", file), rand.New(rand.NewPCG(3, 4))
	kinds := map[uint8][]rune{}
	for c := range rune(0x110000) {
		if c < 0xD800 || c > 0xDFFF {
			k := tables().clusters.at(c)
			kinds[k] = append(kinds[k], c)
		}
	}
	kinds[0xff] = []rune{'a', 0xA9, 0xE9, '\r', '\n', zeroWidthJoiner, 0x200C, 0x1F1E6, 0x1F3FB, 0x301, 0x903}
	names := slices.Sorted(maps.Keys(kinds))
	for range realTexts(t) / 2000 {
		batch := make([]string, 2000)
		for i := range batch {
			rs := make([]rune, 1+r.IntN(9))
			for i := range rs {
				rs[i] = pick(r, kinds[pick(r, names)])
			}
			batch[i] = string(rs)
		}
		for i, want := range j.ids(t, batch, false) {
			if got, err := tok.Encode(nil, batch[i], false); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%+q: ids %v, the judge says %v, %v", batch[i], got, want, err)
			}
		}
	}
}
