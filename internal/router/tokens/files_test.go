package tokens

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvatlas/kvatlas/tokenize"
)

// kimi has the files of a small model in the manner of Kimi's: a token for each byte, "th", and
// two special tokens that the configuration names among those behind.
func kimi(config string) fstest.MapFS {
	var model strings.Builder
	for b := range 256 {
		fmt.Fprintf(&model, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(b)}), b)
	}
	fmt.Fprintf(&model, "%s 256\n", base64.StdEncoding.EncodeToString([]byte("th")))
	return fstest.MapFS{
		"tiktoken.model":        {Data: []byte(model.String())},
		"tokenizer_config.json": {Data: []byte(config)},
		"chat_template.jinja":   {Data: []byte("{% for m in messages %}<|im_user|>{{ m.content }}<|im_end|>{% endfor %}")},
	}
}

const kimiConfig = `{"auto_map":{"AutoTokenizer":["tokenization_kimi.TikTokenTokenizer",null]},"tokenizer_class":"TikTokenTokenizer",
	"added_tokens_decoder":{"257":{"content":"<|im_user|>"},"259":{"content":"<|im_end|>"}}}`

// Kimi's tiktoken.model is loaded with the special tokens that its code makes; that of a model
// whose pattern nobody knows here is not.
func TestTiktoken(t *testing.T) {
	m, err := Load(kimi(kimiConfig), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		form Form
		body string
		want []uint32
	}{
		{Completion, `{"prompt":"the"}`, []uint32{256, 'e'}},
		{Completion, `{"prompt":"<|reserved_token_258|>"}`, []uint32{258}},
		{Completion, `{"prompt":"<|reserved_token_512|>"}`, []uint32{512}},
		{Chat, `{"messages":[{"role":"user","content":"th"}]}`, []uint32{257, 256, 259}},
	} {
		if got, err := m.Tokens(t.Context(), c.form, []byte(c.body), nil); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v %v, want %v", c.body, got, err, c.want)
		}
	}
	for config, unsupported := range map[string]bool{
		`{}`: true, `{"auto_map":{"AutoTokenizer":["tokenization_qwen.QWenTokenizer",null]}}`: true, `no`: false,
		strings.Replace(kimiConfig, "<|im_end|>", "<|im_user|>", 1): false,
	} {
		if _, err := Load(kimi(config), Options{}); err == nil || errors.Is(err, tokenize.ErrUnsupported) != unsupported {
			t.Errorf("%s: %v", config, err)
		}
	}
	without := kimi("")
	delete(without, "tokenizer_config.json")
	if _, err := Load(without, Options{}); err == nil {
		t.Error("without tokenizer_config.json special tokens are made up")
	}
}
