package mockapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

func loadTokenizer(t *testing.T, template, kwargs string) *Tokenizer {
	t.Helper()
	tok, err := LoadTokenizer(tokentest.Files(tokentest.Template), "", template, kwargs)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

const someChat = `"messages":[{"role":"user","content":"the in"}]`

// An engine with a tokenizer generates from what /tokenize says, and /detokenize reads it.
func TestTokenizer(t *testing.T) {
	var seen []uint32
	s, url := start(t, Config{Tokenizer: loadTokenizer(t, "", ""), Seen: func(_ []byte, p []uint32, given bool) {
		seen = p
		if given {
			t.Error("tokens were given")
		}
	}})
	for path, body := range map[string]string{"/v1/completions": `{"model":"m","prompt":"the in a"}`, "/v1/chat/completions": `{"model":"m",` + someChat + `,"max_tokens":3}`} {
		_, data := post(t, url+"/tokenize", body)
		var said struct{ Tokens []uint32 }
		if err := json.Unmarshal([]byte(data), &said); err != nil || len(said.Tokens) == 0 {
			t.Fatalf("%s: %v", data, err)
		}
		var answer struct {
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		status, data := post(t, url+path, body)
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != 200 || answer.Usage.Prompt != len(said.Tokens) || !slices.Equal(seen, said.Tokens) {
			t.Errorf("%s: %d %s, %v; %v tokenized, %v seen", path, status, data, err, said.Tokens, seen)
		}
		ids, _ := json.Marshal(said.Tokens)
		_, data = post(t, url+"/detokenize", `{"tokens":`+string(ids)+`}`)
		if want := map[string]string{"/v1/completions": "the in a", "/v1/chat/completions": "<|im_start|>user\\nthe in"}[path]; !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(data, `\u003c`, "<"), `\u003e`, ">"), want) {
			t.Errorf("%s: %s, want %s", path, data, want)
		}
	}
	if n := s.Tokenized.Load(); n != 4 {
		t.Errorf("%d texts tokenized", n)
	}
	if status, data := post(t, url+"/v1/chat/completions", `{"model":"m","messages":3}`); status != 400 {
		t.Errorf("%d %s", status, data)
	}
}

// Engines differ by their templates and by what templates are given.
func TestOtherTemplates(t *testing.T) {
	body := []byte(`{` + someChat + `}`)
	first, err := loadTokenizer(t, "", "").Prompt(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []*Tokenizer{loadTokenizer(t, "{{ messages[0].content }}", ""), loadTokenizer(t, "", `{"enable_thinking":false}`)} {
		if tokens, err := other.Prompt(t.Context(), body); err != nil || len(tokens) == 0 || slices.Equal(tokens, first) {
			t.Errorf("%v, %v", tokens, err)
		}
	}
	files := tokentest.Files(tokentest.Template)
	for _, name := range []string{"tokenizer_config.json", "chat_template.jinja"} {
		delete(files, name)
	}
	none, err := LoadTokenizer(files, "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Prompt(t.Context(), body); !errors.Is(err, errNoTemplate) {
		t.Error(err)
	}
	if _, err := none.Prompt(t.Context(), []byte(`{"prompt":"x"}`)); err != nil {
		t.Error(err)
	}
	if _, err := LoadTokenizer(fstest.MapFS{}, "", "", ""); err == nil {
		t.Error("no tokenizer, and no error")
	}
}

// Tokens come with a request in each engine's way, from the release on that takes them; an older
// one makes its own.
func TestGivenTokens(t *testing.T) {
	chatWith := func(more string) string { return `{"model":"m",` + someChat + `,"max_tokens":1` + more + `}` }
	vllm, sglang := chatWith(`,"kv_transfer_params":{"prompt_token_ids":[7,8,9]}`), chatWith(`,"input_ids":[7,8,9]`)
	for _, c := range []struct {
		kind, release, body string
		given               bool
	}{
		{KindVLLM, "", vllm, true}, {KindVLLM, "0.33.0", vllm, true}, {KindVLLM, "1.0", vllm, true}, {KindVLLM, "0.26.0", vllm, false}, {KindVLLM, "", sglang, false},
		{KindSGLang, "", sglang, true}, {KindSGLang, "0.5.12.post1", sglang, false}, {KindSGLang, "0.5.23", vllm, false},
		{KindVLLM, "0.1.0", `{"model":"m","prompt":[7,8,9]}`, true}, {KindSGLang, "0.1.0", `{"model":"m","prompt":[7,8,9]}`, true},
	} {
		got, given := []uint32(nil), false
		_, url := start(t, Config{Kind: c.kind, Release: c.release, Tokenizer: loadTokenizer(t, "", ""),
			Seen: func(_ []byte, p []uint32, g bool) { got, given = p, g }})
		path := "/v1/chat/completions"
		if strings.Contains(c.body, `"prompt":`) {
			path = "/v1/completions"
		}
		status, data := post(t, url+path, c.body)
		if status != 200 || given != c.given || slices.Equal(got, []uint32{7, 8, 9}) != c.given {
			t.Errorf("%s %s: %d %s; prompt %v, given %t", c.kind, c.release, status, data, got, given)
		}
	}
	if _, err := New(Config{Model: "m", Kind: "other"}); err == nil {
		t.Error("an engine of no kind")
	}
}

// Texts are tokenized one after the other, each in its time; who leaves waits no longer.
func TestTokenizeTime(t *testing.T) {
	tok := loadTokenizer(t, "", "")
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Model: "m", Tokenizer: tok, TokenizeTime: func(n int) time.Duration { return time.Duration(n) * time.Second }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		begun := time.Now()
		ask := func(ctx context.Context, text string) error {
			body := fmt.Appendf(nil, `{"prompt":%q}`, text)
			var q request
			if err := json.Unmarshal(body, &q); err != nil {
				return err
			}
			_, _, err := s.prompt(ctx, &q, body)
			return err
		}
		done := make(chan error, 3)
		for _, text := range []string{"the", "a in"} {
			go func() { done <- ask(t.Context(), text) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ask(ctx, "left"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begun); took != 7*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
