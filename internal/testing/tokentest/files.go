// Package tokentest has the files of a small model, for tests of what goes by them.
package tokentest

import (
	"encoding/json"
	"testing/fstest"
)

// Template is a chat template in the manner of ChatML, with tools and thinking.
const Template = `{% if tools %}<|im_start|>tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}`

// Files returns tokenizer.json, tokenizer_config.json and chat_template.jinja of a model: BPE of
// bytes with a few merges, the special tokens <s> (id 256 and up), <|im_start|>, <|im_end|>, and a
// <s> before texts. Each text in merges is a further merge of two tokens, "a b".
func Files(template string, merges ...string) fstest.MapFS {
	vocab, all := map[string]int{}, []string{}
	for i, r := range byteRunes() {
		vocab[string(r)] = i
	}
	for _, m := range append([]string{"t h", "th e", "Ġ the", "i n", "Ġ a"}, merges...) {
		all = append(all, m)
		text := ""
		for _, r := range m {
			if r != ' ' {
				text += string(r)
			}
		}
		vocab[text] = len(vocab)
	}
	type added struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		Lstrip     bool   `json:"lstrip"`
		Rstrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	var specials []added
	for i, s := range []string{"<s>", "<|im_start|>", "<|im_end|>"} {
		specials = append(specials, added{ID: len(vocab) + i, Content: s, Special: true})
	}
	bos := specials[0].ID
	type object = map[string]any
	return fstest.MapFS{
		"tokenizer.json": {Data: marshal(object{
			"version": "1.0", "added_tokens": specials, "normalizer": nil,
			"pre_tokenizer": object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
			"post_processor": object{
				"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>", "type_id": 0}}, object{"Sequence": object{"id": "A", "type_id": 0}}},
				"pair":           []any{},
				"special_tokens": object{"<s>": object{"id": "<s>", "ids": []int{bos}, "tokens": []string{"<s>"}}},
			},
			"decoder": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
			"model":   object{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": all},
		})},
		"tokenizer_config.json": {Data: marshal(object{"bos_token": "<s>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"})},
		"chat_template.jinja":   {Data: []byte(template)},
	}
}

// byteRunes are the letters that stand for the bytes in byte-level vocabularies.
func byteRunes() (out [256]rune) {
	next := rune(256)
	for b := range 256 {
		switch r := rune(b); {
		case r >= '!' && r <= '~', r >= '¡' && r <= '¬', r >= '®' && r <= 'ÿ':
			out[b] = r
		default:
			out[b] = next
			next++
		}
	}
	return out
}

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // a fault of this file
	}
	return data
}
