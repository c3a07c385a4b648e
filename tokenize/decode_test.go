package tokenize

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// decoded is a small tokenizer with a decoder, and what the library made of ids
// (testdata/decode.py).
type decoded struct {
	Name           string
	Decoder        json.RawMessage
	IDs            [][]uint32
	Texts, Skipped []string
}

func withDecoder(t testing.TB, file, decoder json.RawMessage) *Tokenizer {
	t.Helper()
	var top map[string]json.RawMessage
	if err := json.Unmarshal(file, &top); err != nil {
		t.Fatal(err)
	}
	top["decoder"] = decoder
	b, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(b, Options{PieceCache: -1})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestDecode compares the texts of ids, decoder by decoder, with those that the Hugging Face
// library gave.
func TestDecode(t *testing.T) {
	f, err := os.Open("testdata/decode.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []decoded
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		t.Fatal(err)
	}
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]json.RawMessage{}
	for _, m := range s.Tokenizers {
		files[m.Name] = m.File
	}
	for _, d := range all {
		tok := withDecoder(t, files[d.Name], d.Decoder)
		for i, ids := range d.IDs {
			for skip, want := range map[bool]string{false: d.Texts[i], true: d.Skipped[i]} {
				got, err := tok.Decode(ids, skip)
				if err != nil || got != want {
					t.Fatalf("%s with %s: ids %v (skip %t): %q %v, the judge says %q", d.Name, d.Decoder, ids, skip, got, err, want)
				}
			}
		}
	}
}

// TestDecodeRefused has decoders that are not done, which hinder nobody from encoding.
func TestDecodeRefused(t *testing.T) {
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	for _, decoder := range []string{`{"type":"CTC"}`, `{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"Regex":"a"},"content":""}]}`,
		`{"type":"Strip","content":"a","start":0,"stop":1}`, `{"type":7}`} {
		tok := withDecoder(t, s.Tokenizers[0].File, json.RawMessage(decoder))
		if ids, err := tok.Encode(nil, "some text", false); err != nil || len(ids) == 0 {
			t.Errorf("%s: %v", decoder, err)
		}
		if text, err := tok.Decode([]uint32{1, 2}, false); err == nil {
			t.Errorf("%s: %q and no error", decoder, text)
		} else if decoder != `{"type":7}` && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", decoder, err)
		}
	}
}

// FuzzLossy makes text of any bytes: what is text stays, and no byte is lost in silence.
func FuzzLossy(f *testing.F) {
	f.Add([]byte("a\xf0\x9f\x98b\xed\xa0\x80\xc0\xaf\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text := lossy(b)
		if !utf8.ValidString(text) || utf8.Valid(b) && text != string(b) || len(b) > 0 && text == "" {
			t.Fatalf("%q becomes %q", b, text)
		}
	})
}

// TestRealDecode compares the texts of ids, random ones and those of texts, with those that the
// judge gives, for each real tokenizer.
func TestRealDecode(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(tokensDir(t), "*", "t*k*n*.json"))
	if err != nil || len(files) == 0 {
		t.Skip("no tokenizers")
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) { compareDecoded(t, file, realTexts(t)/5) })
	}
}

func compareDecoded(t *testing.T, file string, n int) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(data, Options{})
	if err != nil {
		t.Fatal(err)
	}
	library := "tokenizers"
	if filepath.Base(file) == "tekken.json" {
		library = "tekken"
	}
	j := startJudge(t, library, file)
	r := rand.New(rand.NewPCG(8, 9))
	g := &texts{r: r}
	size := uint32(len(tok.decoding.vocab.lens)) + tok.decoding.offset
	if library == "tokenizers" {
		size += 300 // added ones, and ids that there are not
	}
	for seen := 0; seen < n; {
		lists := make([][]uint32, min(2000, n-seen))
		for i := range lists {
			if i%2 == 0 {
				if lists[i], err = tok.Encode(nil, g.text(), true); err != nil {
					t.Fatal(err)
				}
				continue
			}
			for range r.IntN(40) {
				lists[i] = append(lists[i], r.Uint32N(size))
			}
		}
		seen += len(lists)
		skip := seen/2000%2 == 1 || tok.decoding.nameless != nil
		want := j.texts(t, lists, skip)
		for i, ids := range lists {
			got, err := tok.Decode(ids, skip)
			if err != nil || got != want[i] {
				t.Fatalf("ids %v (skip %t): %q %v, the judge says %q", ids, skip, got, err, want[i])
			}
		}
	}
}
