package chat

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// tokenNames are the special tokens that transformers hands to templates.
var tokenNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads from a model's files what New needs of them: tokenizer_config.json, and
// chat_template.jinja and additional_chat_templates where there are, which go before it; and
// config.json, where it is there, which says whether an encoder writes the prompts.
// The other fields are left to the caller.
func Load(files fs.FS) (Config, error) {
	var cfg Config
	text, err := fs.ReadFile(files, "tokenizer_config.json")
	if err != nil {
		return cfg, fmt.Errorf("tokenizer configuration: %w", err)
	}
	v, err := jinja.ParseJSON(string(text))
	if err != nil {
		return cfg, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	conf, ok := v.AsDict()
	if !ok {
		return cfg, errors.New("tokenizer_config.json: not an object")
	}
	if cfg.Encoder, err = encoderOf(files); err != nil {
		return cfg, err
	}
	cfg.Tokens = map[string]jinja.Value{}
	for _, name := range tokenNames {
		if t := tokenText(conf.Get(name)); !t.IsMissing() {
			cfg.Tokens[name] = t
		}
	}
	if err := cfg.templates(conf.Get("chat_template")); err != nil {
		return cfg, err
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{"chat_template.jinja", &cfg.Template}, {"additional_chat_templates/tool_use.jinja", &cfg.ToolTemplate}} {
		text, err := fs.ReadFile(files, f.name)
		switch {
		case err == nil:
			*f.to = string(text)
		case !errors.Is(err, fs.ErrNotExist):
			return cfg, fmt.Errorf("chat template: %w", err)
		}
	}
	return cfg, nil
}

// encoderOf is what writes a model's prompts, as the engine tells by its config.json.
func encoderOf(files fs.FS) (Encoder, error) {
	text, err := fs.ReadFile(files, "config.json")
	if errors.Is(err, fs.ErrNotExist) {
		return Jinja, nil
	}
	if err != nil {
		return Jinja, fmt.Errorf("model configuration: %w", err)
	}
	v, err := jinja.ParseJSON(string(text))
	if err != nil {
		return Jinja, fmt.Errorf("config.json: %w", err)
	}
	if typ, _ := field(v, "model_type").AsString(); typ == string(Harmony) {
		return Harmony, nil
	}
	of := map[string]Encoder{
		"DeepseekV32ForCausalLM": DeepSeekV32, "DeepseekV4ForCausalLM": DeepSeekV4, "DeepseekV4ForConditionalGeneration": DeepSeekV4,
		"DeepseekV41ForCausalLM": DeepSeekV41, "KimiK3ForConditionalGeneration": "kimi_k3",
		"InklingForCausalLM": "inkling", "InklingForConditionalGeneration": "inkling", "MoonshotKimiaForCausalLM": "kimi_audio",
	}
	list, _ := field(v, "architectures").AsList()
	for _, a := range list {
		if name, _ := a.AsString(); of[name] != "" {
			return of[name], nil
		}
	}
	return Jinja, nil
}

// tokenText is a special token's text, which the file has alone or among the token's flags.
func tokenText(v jinja.Value) jinja.Value {
	if d, ok := v.AsDict(); ok {
		v = d.Get("content")
	}
	if _, ok := v.AsString(); !ok {
		return jinja.Value{}
	}
	return v
}

// templates reads chat_template: one, or several with names.
func (cfg *Config) templates(v jinja.Value) error {
	if text, ok := v.AsString(); ok {
		cfg.Template = text
		return nil
	}
	named, ok := v.AsList()
	if !ok {
		return nil
	}
	var names []string
	for _, t := range named {
		d, ok := t.AsDict()
		if !ok {
			return errors.New("tokenizer_config.json: a chat template that is not an object")
		}
		name, _ := d.Get("name").AsString()
		text, _ := d.Get("template").AsString()
		names = append(names, name)
		switch name {
		case "default":
			cfg.Template = text
		case "tool_use":
			cfg.ToolTemplate = text
		}
	}
	if cfg.Template == "" {
		return fmt.Errorf("tokenizer_config.json: no default among the chat templates %s", strings.Join(names, ", "))
	}
	return nil
}
