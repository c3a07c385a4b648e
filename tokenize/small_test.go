package tokenize

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// small is one tokenizer that testdata/small.py trained, with what the library made of the texts.
type small struct {
	Name    string
	File    json.RawMessage
	Plain   [][]uint32
	Special [][]uint32 // nil where it is the same
}

type smalls struct {
	Texts      []string
	Tokenizers []small
}

var readSmall = sync.OnceValues(func() (s smalls, err error) {
	f, err := os.Open("testdata/small.json.gz")
	if err != nil {
		return s, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return s, err
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return s, err
	}
	return s, json.NewDecoder(bytes.NewReader(b)).Decode(&s)
})

// clusters are grapheme clusters of less than 6 bytes, and of 6, by each of the rules, with what is not joined beside.
var clusters = []string{"a\r\n\u0301b \r\r\n", "e\u0301e\u0301\u0323 e\u0301\u0323\u0307 a\u0323\u0307", "\u0600a\u0600\u0601 \u0600\r \U000110bda\U000110bd\u0301", "\u00a9\u200d\u00a9\u0301 a\u200d\u00a9\u0301 \u00a9\u0301\u200d\u00a9\u0301",
	"\u0915\u094d\u0915\u0301 \u0915\u094d\u0301\u0915\u0301 \u0915\u0301\u0915\u0301 \u0915\u094da\u0301", "\u1100\u1161\u11a8\u0301 \u1100\u0301 \u11a8\u11a8\u0301 \uac00\u1161\u0301 \uac01\u1161\u0301 \uac01\u11a8\u0301 \u1161\u1100\u0301",
	"\u0001\u0301\u0301 \u00ad\u0301\u0301 \u200b\u200d\u0301 \U000e0001\u0301\u0301", "\u0301\u0301\u0301 \u0903a\u0903 e\u0301\u0000\u0301", "A\u0301A\u200dA AA\u3000\u30ab\uff9e\uff76\uff9e\uff76"}

// TestSmall compares the ids of small tokenizers of every kind with those that the Hugging Face
// library gave. KVATLAS_RECORD_TEXTS=file writes the texts for a new recording (testdata/small.py).
func TestSmall(t *testing.T) {
	if file := os.Getenv("KVATLAS_RECORD_TEXTS"); file != "" {
		g := &texts{r: rand.New(rand.NewPCG(7, 7)), specials: []string{"<|end|>", "<|start|>", "<l>", "<r>", "<lr>", "word", "The", "<|End", "<unk>", "[SEP]"}}
		out := append([]string{"", " ", "  word words <l>  <r> x <lr> ", "the <|end|>The  <|END|>"}, samples...)
		out = append(out, clusters...)
		for len(out) < 100 {
			if s := g.text(); len(s) < 250 {
				out = append(out, s)
			}
		}
		b, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Skip("wrote the texts")
	}
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Tokenizers {
		t.Run(m.Name, func(t *testing.T) {
			for _, o := range []Options{{}, {PieceCache: -1}, {PieceCache: 16 * longBytes, TurnCache: 1 << 20}} {
				tok, err := Load(m.File, o)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second time from the caches
					for i, text := range s.Texts {
						for _, special := range []bool{false, true} {
							want := m.Plain[i]
							if special && m.Special[i] != nil {
								want = m.Special[i]
							}
							got, err := tok.Encode(nil, text, special)
							if err != nil {
								t.Fatal(err)
							}
							if !slices.Equal(got, want) {
								t.Fatalf("%+v: %q (special %t): ids %v, the judge says %v", o, text, special, got, want)
							}
						}
					}
				}
			}
		})
	}
}

// TestTurns compares what is remembered of conversations with what is not: long texts with added
// tokens in every line or in none, each going on where another ended, for every kind of tokenizer.
func TestTurns(t *testing.T) {
	racetest.Without(t, "one goroutine encodes")
	t.Parallel()
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Tokenizers {
		plain, err := Load(m.File, Options{})
		if err != nil {
			t.Fatal(err)
		}
		turns, err := Load(m.File, Options{TurnCache: 1 << 18})
		if err != nil {
			t.Fatal(err)
		}
		g := &texts{r: rand.New(rand.NewPCG(9, 9))}
		for _, f := range []*finder{plain.raw, plain.normal} {
			for _, a := range f.tokens {
				g.specials = append(g.specials, a.Content)
			}
		}
		var known []string
		for range 8 {
			text := ""
			if len(known) > 0 {
				text = pick(g.r, known)
				text = strings.ToValidUTF8(text[:g.r.IntN(len(text)+1)], "")
			}
			for more := g.r.IntN(12_000); more > 0; {
				next := g.text()
				if g.r.IntN(8) == 0 {
					next = strings.Repeat(next, 1+g.r.IntN(60)) // a long gap
				}
				if len(g.specials) > 0 {
					next += pick(g.r, g.specials)
				}
				text += next
				more -= len(next)
			}
			known = append(known, text)
			want, err := plain.Encode(nil, text, false)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got, err := turns.Encode(nil, text, false); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: a text of %d bytes has other ids from the cache, %v", m.Name, len(text), err)
				}
			}
		}
	}
}
