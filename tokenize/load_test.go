package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

const tiny = `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":5,"content":"<s>","special":true}],
"normalizer":%s,"pre_tokenizer":%s,"post_processor":null,"decoder":null,
"model":{"type":"BPE","unk_token":null,"vocab":{"a":0,"b":1,"ab":2,"c":3,"abc":4},"merges":[["a","b"],"ab c"]}}`

// TestRefuses shows that what is not done exactly is named.
func TestRefuses(t *testing.T) {
	cases := []struct{ normalizer, pre, want string }{
		{`{"type":"Precompiled"}`, `null`, "no base64"},
		{`{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAA="}`, `null`, "a trie of 8 bytes in 4"},
		{`{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAD/"}`, `null`, "not UTF-8"},
		{`{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAB4` + strings.Repeat("eHh4", 22) + `"}`, `null`, "a text of"},
		{`{"type":"Sequence","normalizers":[{"type":"Nmt"}]}`, `null`, `normalizer "Nmt"`},
		{`{"type":"Replace","pattern":{"String":""},"content":"x"}`, `null`, "empty text"},
		{`null`, `{"type":"UnicodeScripts"}`, `pre-tokenizer "UnicodeScripts"`},
		{`null`, `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`, "after ByteLevel"},
		{`null`, split(`\bx`), "unknown escape"}, {`null`, split(`x*`), "matches an empty text"}, {`null`, split(`(?<=a)b`), "group of an unknown kind"},
		{`null`, split(`\p{Foo}`), "unknown property Foo"}, {`null`, split(`(a`), "without its end"}, {`null`, split(`[^a`), "without its end"},
		{`null`, split(`(?:a{900}){900}`), "too much repetition"}, {`null`, split(strings.Repeat("(", 40) + "a"), "too deep"},
		{`null`, `{"type":"Split","pattern":{"String":"x"},"behavior":"Other"}`, `behavior "Other"`},
	}
	for _, c := range cases {
		_, err := Load(fmt.Appendf(nil, tiny, c.normalizer, c.pre), Options{})
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.normalizer, c.pre, err, c.want)
		}
	}
	for _, c := range []struct{ old, new, want string }{
		{`"unk_token":null`, `"dropout":0.1`, "dropout"},
		{`"unk_token":null`, `"end_of_word_suffix":"</w>"`, "end_of_word_suffix"},
		{`"unk_token":null`, `"unk_token":"?"`, "unk_token"},
		{`"id":5`, `"id":7`, `added token "<s>"`},
		{`"BPE"`, `"WordLevel"`, `model "WordLevel"`},
		{`"1.0"`, `"2.0"`, "version"},
		{`"post_processor":null`, `"post_processor":{"type":"X"}`, `post-processor "X"`},
	} {
		_, err := Load([]byte(strings.Replace(fmt.Sprintf(tiny, "null", "null"), c.old, c.new, 1)), Options{})
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
	if _, err := Load([]byte("aGk= 0"), Options{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a tiktoken file without a pattern: %v", err)
	}
}

func split(pattern string) string {
	b, _ := json.Marshal(pattern)
	return `{"type":"Split","pattern":{"Regex":` + string(b) + `},"behavior":"Isolated","invert":false}`
}

// TestHostile shows that neither patterns nor texts nor normalizers take much more than their size.
func TestHostile(t *testing.T) {
	racetest.Without(t, "one goroutine encodes")
	load := func(norm, pre string) *Tokenizer {
		tok, err := Load(fmt.Appendf(nil, tiny, norm, pre), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	const long = 1 << 18
	grow := `{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
	for _, c := range []struct {
		name string
		tok  *Tokenizer
		text string
		err  error
	}{
		{"a word of a million letters", load("null", "null"), strings.Repeat("ab", long/2), nil},
		{"all merge", load("null", "null"), strings.Repeat("abc", long/3), nil},
		{"exponential pattern", load("null", split(`(?:a+)+x`)), strings.Repeat("a", 1000), errSteps},
		{"quadratic pattern", load("null", split(`a+x|b`)), strings.Repeat("a", 100_000), errSteps},
		{"growing text", load(`{"type":"Sequence","normalizers":[`+strings.Repeat(grow+",", 20)+grow+`]}`, "null"), strings.Repeat("a", 1000), errGrown},
	} {
		waittest.Ends(t, c.name, func() { // a quadratic way would take hours
			if _, err := c.tok.Encode(nil, c.text, false); !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
		})
	}
}

// FuzzLoad loads files of any kind, and encodes with what it gets.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(tiny, `{"type":"NFC"}`, split(`a+|b`))), "abc <s> é")
	f.Add([]byte(fmt.Sprintf(tiny, `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"x"},{"type":"Lowercase"}]}`, `{"type":"Metaspace","replacement":"_"}`)), "a b")
	f.Add([]byte(`{"config":{"pattern":"a|b","default_vocab_size":3,"default_num_special_tokens":1},"vocab":[{"rank":0,"token_bytes":"YQ=="}]}`), "ab")
	f.Add([]byte(fmt.Sprintf(tiny, `{"type":"Precompiled","precompiled_charsmap":"EAAAAAAEAAAA////YQEAAAAAAIBhAGI="}`, `null`)), "aa\u0301 b")
	f.Add([]byte("YQ== 0\nYg== 1\n"), "ab")
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["?",0],["a",-1.5e-3]]}}`), "aab")
	f.Add([]byte(`{"model":{"type":"WordPiece","unk_token":"?","vocab":{"?":0,"a":1,"##b":2}},"normalizer":{"type":"BertNormalizer"}}`), "aab")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := Load(file, Options{Pattern: KimiPattern, TurnCache: 1 << 16, PieceCache: 1 << 12})
		if err != nil {
			return
		}
		if len(text) < 1000 {
			_, _ = tok.Encode(nil, text, true)
		}
	})
}

// TestMemoryCountsTables: what SentencePiece's tables take is part of Memory.
func TestMemoryCountsTables(t *testing.T) {
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0
	for _, m := range s.Tokenizers {
		with, err := Load(m.File, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range with.normalizers {
			p, ok := n.(*precompiled)
			if !ok {
				continue
			}
			counted++
			var file map[string]json.RawMessage
			if err := json.Unmarshal(m.File, &file); err != nil {
				t.Fatal(err)
			}
			file["normalizer"] = nil
			bare, err := json.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			without, err := Load(bare, Options{})
			if err != nil {
				t.Fatal(err)
			}
			// Added tokens, which are looked for as they are normalized, take other room.
			if got, want := with.Memory()-without.Memory(), 4*len(p.units)+len(p.pool); got < want*9/10 {
				t.Errorf("%s: %d bytes for tables of %d", m.Name, got, want)
			}
		}
	}
	if counted == 0 {
		t.Error("no tokenizer has tables")
	}
}
