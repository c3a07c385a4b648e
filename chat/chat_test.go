package chat_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

const (
	textTemplate  = `{{ bos_token }}{% if tools %}{% for t in tools %}{{ t | tojson }}{{ "\n" }}{% endfor %}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{% for c in m.tool_calls or [] %}({{ c | tojson }}){% endfor %}{{ "\n" }}{% endfor %}{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined %}think={{ enable_thinking }} {{ reasoning_effort }}{% endif %}{% endif %}`
	partsTemplate = `{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{{ c.type }}:{{ c.text }};{% endfor %}{% endif %}{% endfor %}`
)

// TestPrompt shows what the engine's rules make of requests.
func TestPrompt(t *testing.T) {
	for _, c := range []struct{ name, template, defaults, body, want string }{
		{"text", textTemplate, "", `{"messages": [{"role": "user", "content": "hi"}]}`, "<s>[user]hi\n[assistant]"},
		{"parts as text", textTemplate, "", `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": null}]}]}`, "<s>[user]a\nb\n[assistant]"},
		{"no content", textTemplate, "", `{"messages": [{"role": "assistant"}], "add_generation_prompt": false}`, "<s>[assistant]\n"},
		{
			"tools in the engine's order", textTemplate, "",
			`{"messages": [], "tools": [{"function": {"strict": true, "parameters": {"b": 1, "a": 2.0}, "name": "f"}, "type": "function"}]}`,
			`<s>{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2.0}, "strict": true}}` + "\n[assistant]",
		},
		{
			"arguments as values", textTemplate, "",
			`{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": \"\\u00e9\"}"}},
				{"type": "function", "id": "d", "function": {"name": "g", "arguments": ""}}]}]}`,
			`<s>[assistant]({"id": "c", "function": {"arguments": {"b": 1.0, "a": "é"}, "name": "f"}, "type": "function"})` +
				`({"id": "d", "function": {"arguments": {}, "name": "g"}, "type": "function"})` + "\n[assistant]",
		},
		{"reasoning", textTemplate, "", `{"messages": [{"role": "assistant", "content": "x", "reasoning": "r"}]}`, "<s>[assistant]x<r>\n[assistant]"},
		{"defaults", textTemplate, `{"enable_thinking": false}`, `{"messages": [], "chat_template_kwargs": {"enable_thinking": null}}`, "<s>[assistant]think=False "},
		{"over defaults", textTemplate, `{"enable_thinking": false}`, `{"messages": [], "chat_template_kwargs": {"enable_thinking": true}}`, "<s>[assistant]think=True "},
		{"effort", textTemplate, "", `{"messages": [], "reasoning_effort": "none"}`, "<s>[assistant]think=False none"},
		{"parts", partsTemplate, "", `{"messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}`, "[user]text:hi;[tool]a\nb"},
		{"media", partsTemplate, "", `{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}`, "[user]image:;"},
		{
			"continued", textTemplate, "",
			`{"messages": [{"role": "assistant", "content": "so far "}], "add_generation_prompt": false, "continue_final_message": true}`, "<s>[assistant]so far ",
		},
		{
			"continued, trimmed", "{% for m in messages %}{{ m.content | trim }}.{% endfor %}", "",
			`{"messages": [{"role": "assistant", "content": "so far "}], "add_generation_prompt": false, "continue_final_message": true}`, "so far",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := chat.Config{Template: c.template, Tokens: map[string]jinja.Value{"bos_token": jinja.Str("<s>")}}
			if c.defaults != "" {
				v, err := jinja.ParseJSON(c.defaults)
				if err != nil {
					t.Fatal(err)
				}
				cfg.Kwargs = v
			}
			m, err := chat.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			p, err := m.Prompt(context.Background(), c.body, []byte("before"))
			if err != nil || string(p.Text) != "before"+c.want || p.Media != (c.name == "media") {
				t.Errorf("%q, media %v, %v; want %q", p.Text, p.Media, err, c.want)
			}
		})
	}
}

// TestRefused: what the engine refuses is told from what only the engine can do.
func TestRefused(t *testing.T) {
	m, err := chat.New(chat.Config{Template: textTemplate})
	if err != nil {
		t.Fatal(err)
	}
	for body, engine := range map[string]bool{
		`[]`: true, `{`: true, `{}`: true, `{"messages": [1]}`: true, `{"messages": [{"content": "x"}]}`: true,
		`{"messages": [{"role": "user", "content": 1}]}`:                                                                       true,
		`{"messages": [], "add_generation_prompt": true, "continue_final_message": true}`:                                      true,
		`{"messages": [], "reasoning_effort": "much"}`:                                                                         true,
		`{"messages": [], "tools": [{"type": "function"}]}`:                                                                    true,
		`{"messages": [], "chat_template": "x"}`:                                                                               false,
		`{"messages": [], "chat_template_kwargs": {"tokenize": true}}`:                                                         false,
		`{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}`:                      false,
		`{"messages": [], "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}]}`: false,
	} {
		_, err := m.Prompt(context.Background(), body, nil)
		var bad *chat.BadRequestError
		var no *jinja.UnsupportedError
		if engine && !errors.As(err, &bad) || !engine && !errors.As(err, &no) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, src := range []string{"", "{% include 'x' %}", "{{ x | pprint }}"} {
		var no *jinja.UnsupportedError
		if _, err := chat.New(chat.Config{Template: src}); !errors.As(err, &no) {
			t.Errorf("%q: %v", src, err)
		}
	}
}

// TestLoad reads a model's files.
func TestLoad(t *testing.T) {
	files := fstest.MapFS{"tokenizer_config.json": {Data: []byte(`{"bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>", "pad_token": null,
		"chat_template": [{"name": "default", "template": "D{{ bos_token }}{{ eos_token }}{{ pad_token }}"}, {"name": "tool_use", "template": "T"}]}`)}}
	prompt := func(body string) string {
		t.Helper()
		cfg, err := chat.Load(files)
		if err != nil {
			t.Fatal(err)
		}
		m, err := chat.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Prompt(context.Background(), body, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(p.Text)
	}
	if got := prompt(`{"messages": []}`); got != "D<b><e>" {
		t.Errorf("%q", got)
	}
	if got := prompt(`{"messages": [], "tools": []}`); got != "T" {
		t.Errorf("%q", got)
	}
	files["chat_template.jinja"] = &fstest.MapFile{Data: []byte("J")}
	if got := prompt(`{"messages": []}`); got != "J" {
		t.Errorf("%q", got)
	}
	if _, err := chat.Load(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "tokenizer_config.json") {
		t.Errorf("%v", err)
	}
}
