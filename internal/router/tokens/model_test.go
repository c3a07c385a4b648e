package tokens_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
	"github.com/kvatlas/kvatlas/tokenize"
)

const image = `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`

// What requests become is what the template and the tokenizer make of them, with special
// tokens where the engine adds them; what cannot be known has its reason.
func TestTokens(t *testing.T) {
	files := tokentest.Files(tokentest.Template)
	m, err := tokens.Load(files, tokens.Options{TurnCache: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	judge, err := tokenize.Load(files["tokenizer.json"].Data, tokenize.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		form    tokens.Form
		body    string
		text    string
		special bool
		reason  tokens.Reason
	}{
		{form: tokens.Completion, body: `{"prompt":"in the a<s>"}`, text: "in the a<s>", special: true},
		{form: tokens.Completion, body: `{"prompt":["one","two"]}`, text: "one", special: true},
		{form: tokens.Completion, body: `{"prompt":"","add_special_tokens":false}`, text: ""},
		{form: tokens.Completion, body: `{"prompt":"x","add_special_tokens":1}`, reason: tokens.Unsupported},
		{form: tokens.Completion, body: `{"prompt":"x","truncate_prompt_tokens":5}`, reason: tokens.Unsupported},
		{form: tokens.Completion, body: `{"prompt":"x","prompt_embeds":"…"}`, reason: tokens.Unsupported},
		{form: tokens.Completion, body: `{"prompt":[1,2]}`, reason: tokens.Unsupported},
		{form: tokens.Completion, body: `{"prompt":"\ud800"}`, reason: tokens.NotText},
		{form: tokens.Completion, body: `["x"]`, reason: tokens.Refused},
		{form: tokens.Completion, body: `{"prompt":`, reason: tokens.Refused},
		{form: tokens.Chat, body: `{"messages":[{"role":"user","content":"the in"}]}`, text: "<|im_start|>user\nthe in<|im_end|>\n<|im_start|>assistant\n"},
		{form: tokens.Chat, body: `{"messages":[{"role":"user","content":"a"}],"add_special_tokens":true}`, text: "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", special: true},
		{form: tokens.Chat, body: `{"messages":[],"chat_template_kwargs":{"enable_thinking":false}}`, text: "<|im_start|>assistant\n<think></think>"},
		{form: tokens.Chat, body: image, reason: tokens.Unsupported},
		{form: tokens.Chat, body: `{"messages":[],"chat_template":"{{ 1 }}"}`, reason: tokens.Unsupported},
		{form: tokens.Chat, body: `{"messages":3}`, reason: tokens.Refused},
		{form: 200, body: `{}`, reason: tokens.Unsupported},
	} {
		for range 2 { // the second time from the caches
			got, err := m.Tokens(t.Context(), c.form, []byte(c.body), []uint32{7})
			if c.reason != "" {
				var ask *tokens.AskError
				if !errors.As(err, &ask) || ask.Reason != c.reason || !slices.Contains(tokens.Reasons(), ask.Reason) || len(got) != 1 {
					t.Errorf("%s: %v, %v, want %s", c.body, got, err, c.reason)
				}
				continue
			}
			want, _ := judge.Encode([]uint32{7}, c.text, c.special)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v, want %v", c.body, got, err, want)
			}
		}
	}
}

// How many tokens an image is only the engine knows.
func TestMedia(t *testing.T) {
	m, err := tokens.Load(tokentest.Files(`{% for m in messages %}{% for c in m.content %}<{{ c.type }}>{% endfor %}{% endfor %}`), tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ask *tokens.AskError
	if _, err := m.Tokens(t.Context(), tokens.Chat, []byte(image), nil); !errors.As(err, &ask) || ask.Reason != tokens.Media {
		t.Errorf("%v", err)
	}
}

// Files that say nothing of chats, or something else than the tokenizer of special tokens, are
// good for the rest; others are refused.
func TestLoad(t *testing.T) {
	with := func(name, data string) fstest.MapFS {
		f := tokentest.Files(tokentest.Template)
		f[name] = &fstest.MapFile{Data: []byte(data)}
		return f
	}
	chat, text := []byte(`{"messages":[]}`), []byte(`{"prompt":"x"}`)
	for _, c := range []struct {
		files               fstest.MapFS
		loads, chats, texts bool
	}{
		{with("kvatlas.json", `{"default_chat_template_kwargs":{"enable_thinking":false},"time_zone":"UTC"}`), true, true, true},
		{with("chat_template.jinja", "{% include 'x' %}"), true, false, true},
		{with("tokenizer_config.json", `{"bos_token":"<s>","add_bos_token":true}`), true, true, true},
		{with("tokenizer_config.json", `{"bos_token":"<s>","add_bos_token":false}`), true, true, false},
		{with("tokenizer_config.json", `{"bos_token":"<s>","tokenizer_class":"LlamaTokenizerFast","add_eos_token":true,"eos_token":"<|im_end|>"}`), true, true, false},
		{with("tokenizer_config.json", `[]`), true, false, false},
		{with("kvatlas.json", `{"time_zone":"Nowhere/At_All"}`), false, false, false},
		{with("kvatlas.json", `{"unknown":1}`), false, false, false},
		{with("tokenizer.json", `{}`), false, false, false},
		{fstest.MapFS{}, false, false, false},
	} {
		m, err := tokens.Load(c.files, tokens.Options{})
		if (err == nil) != c.loads {
			t.Errorf("%v", err)
		}
		if err != nil {
			continue
		}
		_, noChat := m.Tokens(t.Context(), tokens.Chat, chat, nil)
		_, noText := m.Tokens(t.Context(), tokens.Completion, text, nil)
		if (noChat == nil) != c.chats || (noText == nil) != c.texts || (m.Chats() == nil) != c.chats {
			t.Errorf("%s %s: chats %v, texts %v", c.files["tokenizer_config.json"].Data, c.files["chat_template.jinja"].Data, noChat, noText)
		}
	}
}

// SGLang puts a BOS before texts where tokenizer_config.json alone says so, as of DeepSeek's tokenizers, and so
// before the prompts of DeepSeek-V3.2, which it writes by an encoder, too. Nobody else's are known.
func TestBeginningInSGLang(t *testing.T) {
	for _, c := range []struct {
		engine, class string
		known         bool
	}{{"sglang", "LlamaTokenizerFast", true}, {"sglang", "PreTrainedTokenizerFast", false}, {"vllm", "LlamaTokenizerFast", false}} {
		files := tokentest.Files("")
		delete(files, "chat_template.jinja")
		var own map[string]any
		if err := json.Unmarshal(files["tokenizer.json"].Data, &own); err != nil {
			t.Fatal(err)
		}
		delete(own, "post_processor")
		data, err := json.Marshal(own)
		if err != nil {
			t.Fatal(err)
		}
		files["tokenizer.json"] = &fstest.MapFile{Data: data}
		files["tokenizer_config.json"] = &fstest.MapFile{Data: fmt.Appendf(nil, `{"bos_token":"<s>","add_bos_token":true,"tokenizer_class":%q}`, c.class)}
		files["config.json"] = &fstest.MapFile{Data: []byte(`{"architectures":["DeepseekV32ForCausalLM"]}`)}
		m, err := tokens.Load(files, tokens.Options{Engine: c.engine})
		if err != nil {
			t.Fatal(err)
		}
		judge, err := tokenize.Load(data, tokenize.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []struct {
			form       tokens.Form
			body, text string
			known      bool
		}{
			{tokens.Completion, `{"prompt":"in the"}`, "<s>in the", c.known},
			{tokens.Completion, `{"prompt":"in the","add_special_tokens":false}`, "in the", true},
			{tokens.Chat, `{"messages":[{"role":"user","content":"a"}]}`, map[bool]string{true: "<s>", false: ""}[c.known] + "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>", c.known || c.engine == "vllm"},
		} {
			want, _ := judge.Encode(nil, q.text, false)
			got, err := m.Tokens(t.Context(), q.form, []byte(q.body), nil)
			if (err == nil) != q.known || q.known && !slices.Equal(got, want) {
				t.Errorf("%v %s: %v %v, want %v", c, q.body, got, err, want)
			}
		}
	}
}

// gpt-oss is known by its vocabulary where config.json is not among the files: its responses are not the
// chats that are made of them.
func TestHarmonyByVocabulary(t *testing.T) {
	for id, reason := range map[int]tokens.Reason{200008: tokens.Unsupported, 200009: tokens.Refused} {
		m, err := tokens.Load(fstest.MapFS{"tokenizer.json": {Data: fmt.Appendf(nil, `{"added_tokens":[{"id":200006,"content":"<|start|>","special":true},{"id":%[1]d,"content":"<|message|>","special":true}],
			"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
			"model":{"type":"BPE","ignore_merges":true,"vocab":{"s":0,"y":1,"t":2,"e":3,"m":4,"system":17360,"<|start|>":200006,"<|message|>":%[1]d},"merges":[]}}`, id)}}, tokens.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Tokens(t.Context(), tokens.Response, []byte(`[]`), nil)
		var ask *tokens.AskError
		if !errors.As(err, &ask) || ask.Reason != reason {
			t.Errorf("%d: %v, want %s", id, err, reason)
		}
	}
}

// A body of very many values, each of which takes more memory than its byte, is the engine's to read.
func TestManyValues(t *testing.T) {
	m, err := tokens.Load(tokentest.Files(tokentest.Template), tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"0,", "{},", "[],", `{"a":0},`} {
		body := `{"messages":[{"role":"user","content":"x"}],"x":[` + strings.Repeat(value, 1<<19) + `0]}`
		_, err := m.Tokens(t.Context(), tokens.Chat, []byte(body), nil)
		var ask *tokens.AskError
		if !errors.As(err, &ask) || ask.Reason != tokens.Limit {
			t.Errorf("%s: %v", value, err)
		}
	}
}
