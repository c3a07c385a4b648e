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

// TestSmall compares the ids of small tokenizers of every kind with those that the Hugging Face
// library gave. KVATLAS_RECORD_TEXTS=file writes the texts for a new recording (testdata/small.py).
func TestSmall(t *testing.T) {
	if file := os.Getenv("KVATLAS_RECORD_TEXTS"); file != "" {
		g := &texts{r: rand.New(rand.NewPCG(7, 7)), specials: []string{"<|end|>", "<|start|>", "<l>", "<r>", "<lr>", "word", "The", "<|End", "<unk>", "[SEP]"}}
		out := append([]string{"", " ", "  word words <l>  <r> x <lr> ", "the <|end|>The  <|END|>"}, samples...)
		for len(out) < 90 {
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
			for _, o := range []Options{{}, {PieceCache: -1}, {PieceCache: 2 * slotBytes, TurnCache: 1 << 20}} {
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
